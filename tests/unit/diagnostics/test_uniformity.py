import numpy as np
import pytest
from scipy import stats

from bernflow.diagnostics.uniformity import holm, rank_band, rank_ecdf, rank_p_value
from bernflow.errors import ArgumentError

NUM, NUM_DRAWS = 60, 30


def uniform_ranks(rng, num=NUM):
    return rng.integers(0, NUM_DRAWS + 1, num)


def test_ecdf_counts_the_ranks_below():
    points, shares = rank_ecdf([0, 0, 1, 3], 3)
    np.testing.assert_allclose(points, [1 / 4, 2 / 4, 3 / 4])
    np.testing.assert_allclose(shares, [2 / 4, 3 / 4, 3 / 4])


def test_p_values_of_uniform_ranks_are_uniform():
    rng = np.random.default_rng(0)
    p = np.array([rank_p_value(uniform_ranks(rng), NUM_DRAWS) for _ in range(1000)])
    for level in (0.02, 0.1, 0.5):
        # Ranks are discrete, so that a p-value may be a little too large, never too small; four standard errors.
        assert np.mean(p <= level) <= level + 4 * np.sqrt(level * (1 - level) / 1000)
        assert np.mean(p <= level) >= 0.75 * level - 4 * np.sqrt(level * (1 - level) / 1000)


def test_the_band_and_the_p_value_are_the_same_test():
    rng = np.random.default_rng(1)
    band = rank_band(NUM, NUM_DRAWS, 0.9)
    outside = []
    for _ in range(200):
        ranks = uniform_ranks(rng) if rng.uniform() < 0.5 else np.minimum(uniform_ranks(rng), uniform_ranks(rng))
        _, shares = rank_ecdf(ranks, NUM_DRAWS)
        outside.append(np.any((shares < band.lower - 1e-12) | (shares > band.upper + 1e-12)))
        assert outside[-1] == (rank_p_value(ranks, NUM_DRAWS) < 0.1)
    assert 0 < sum(outside) < 200


def test_one_point_is_a_binomial_test():
    # Ranks of one draw: only the number of zeros counts.
    ranks = np.array([0] * 2 + [1] * 8)
    assert rank_p_value(ranks, 1) == pytest.approx(stats.binomtest(2, 10).pvalue)


@pytest.mark.parametrize("spoil", [lambda u: 0.8 * u, lambda u: 0.5 + 0.6 * (u - 0.5), lambda u: u**2])
def test_wrong_ranks_are_found(spoil):
    u = np.random.default_rng(2).uniform(size=300)
    assert rank_p_value(np.floor(spoil(u) * 101).astype(int), 100) < 1e-4


def test_holm():
    p = np.array([0.01, 0.04, 0.03])
    np.testing.assert_allclose(holm(p), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1.0, 1.0])


def test_arguments_are_checked():
    with pytest.raises(ArgumentError, match="expected a vector of whole numbers from 0 to num_draws=10"):
        rank_p_value([3, 11], 10)
    for ranks in ([], [[1, 2]], [-1, 3]):
        with pytest.raises(ArgumentError, match=r"The ranks have shape .*: expected a vector"):
            rank_p_value(ranks, 10)
    with pytest.raises(ArgumentError, match=r"prob=1\.0: expected a probability between 0 and 1"):
        rank_band(10, 10, 1.0)
