import numpy as np
import pytest

from bernflow.fit.train.permutation import permuted


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 64, 1000, 4097])
def test_every_row_comes_once(size):
    np.testing.assert_array_equal(np.sort(permuted(np.arange(size), size, [3, 0])), np.arange(size))


def test_the_order_depends_on_the_seed_and_on_nothing_else():
    whole = permuted(np.arange(1000), 1000, [1, 0])
    np.testing.assert_array_equal(permuted(np.array([7, 400]), 1000, [1, 0]), whole[[7, 400]])
    for seed in ([2, 0], [1, 1]):
        assert np.mean(permuted(np.arange(1000), 1000, seed) == whole) < 0.02


def test_the_order_is_random():
    # Ranks and places are uncorrelated, and so are neighbors: four standard errors of 1 / sqrt(n), one false alarm in
    # 8,000 per comparison, and three of them.
    size = 10**5 + 7
    rows = permuted(np.arange(size), size, [0, 0]).astype(float)
    limit = 4 / np.sqrt(size)
    assert abs(np.corrcoef(rows, np.arange(size))[0, 1]) < limit
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < limit
    assert abs(np.corrcoef(rows % 2, np.arange(size) % 2)[0, 1]) < limit


def test_rows_beyond_32_bits():
    size = 10**12
    rows = permuted(np.arange(1000), size, [0, 0])
    assert len(np.unique(rows)) == 1000
    assert rows.max() < size
    assert rows.max() > 0.98 * size
