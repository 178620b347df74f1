import numpy as np
import pytest

from bernflow.fit.checks.rays import MIN_QR_ROWS, _upper


@pytest.mark.parametrize(("num", "dim"), [(MIN_QR_ROWS + 1, 3), (4 * MIN_QR_ROWS, 2), (50, 1), (500, 2 * MIN_QR_ROWS)])
def test_the_triangle_of_many_rows_comes_from_those_of_few(num, dim):
    matrix = np.random.default_rng(num).normal(size=(num, dim))
    upper = _upper(matrix)
    np.testing.assert_array_equal(upper, np.triu(upper))
    np.testing.assert_allclose(upper.T @ upper, matrix.T @ matrix, atol=1e-10)
