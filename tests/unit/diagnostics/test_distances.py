import numpy as np
import pytest

from bernflow.diagnostics import sliced_wasserstein, standardized_errors
from bernflow.errors import ArgumentError

N = 4000


def sample(seed, num=N, dim=3):
    return np.random.default_rng(seed).normal(size=(num, dim))


def test_a_shift_is_measured_exactly():
    a = sample(0)
    # A common shift d moves every projection by u.d, whose mean square is |d|^2 / p.
    measured = sliced_wasserstein(a, a + np.array([0.6, 0.0, 0.0]), num_projections=2000)
    # The mean square of a coordinate of a random direction: sd 0.3 over 2000 directions, halved by the root.
    assert measured == pytest.approx(0.6 / np.sqrt(3), rel=5 * 0.3 / (1 / 3) / 2 / np.sqrt(2000))
    assert sliced_wasserstein(a, a) == 0.0


def test_equal_distributions_are_close_also_with_other_numbers():
    same = sliced_wasserstein(sample(0), sample(1, 1000))
    narrow = sliced_wasserstein(sample(0), 0.5 * sample(1, 1000))
    # Two samples of N and 1000 differ by about sqrt(1/N + 1/1000) = 0.035 in every projection's mean.
    assert same < 5 * 0.035
    assert narrow == pytest.approx(0.5, abs=5 * 0.035)
    assert sliced_wasserstein(sample(0), sample(1), seed=3) == sliced_wasserstein(sample(1), sample(0), seed=3)


def test_standardized_errors():
    errors = standardized_errors(sample(0) * [1, 0.5, 1] * 2 + [0, 0, 1], sample(1) * 2)
    tolerance = 5 * np.sqrt(2 / N)
    np.testing.assert_allclose(errors["mean"], [0, 0, 0.5], atol=tolerance)
    np.testing.assert_allclose(errors["sd"], [0, -0.5, 0], atol=tolerance)


def test_few_draws_are_measured_exactly():
    # In one dimension every direction is the axis: the quantiles of two draws are read at the levels of four.
    a, b = np.array([[0.0], [4.0]]), np.array([[0.0], [1.0], [3.0], [4.0]])
    assert sliced_wasserstein(a, b) == pytest.approx(0.0)
    assert sliced_wasserstein(a, np.maximum(b, 1.0)) == pytest.approx(0.5)
    errors = standardized_errors([[1.0], [3.0]], [[0.0], [0.0], [3.0]])
    assert errors["mean"] == pytest.approx((2.0 - 1.0) / np.sqrt(3.0))
    assert errors["sd"] == pytest.approx(np.sqrt(2.0) / np.sqrt(3.0) - 1.0)


@pytest.mark.parametrize(("a", "b"), [((5, 2), (5, 3)), ((5,), (5,)), ((1, 2), (5, 2))])
def test_shapes_are_checked(a, b):
    with pytest.raises(ArgumentError, match=r"The samples have shapes .* with the same p"):
        sliced_wasserstein(np.zeros(a), np.zeros(b))


def test_other_arguments_are_checked():
    with pytest.raises(ArgumentError, match="num_projections=0: expected at least 1"):
        sliced_wasserstein(sample(0), sample(1), num_projections=0)
    with pytest.raises(ArgumentError, match=r"reference is constant in dimensions \[1\]"):
        standardized_errors(sample(0), sample(1) * [1, 0, 1])
