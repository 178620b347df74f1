"""Errors of the moments of a fit, by draws of a wider distribution."""

import numpy as np
import pytest
from scipy import stats

from bernflow.diagnostics.moments import NUM_GROUPS, Weighed, errors_of

NUM = 20_000


def weigh(p, q, dim=1, num=NUM):
    """Weigh draws of a mixture of q and a Cauchy distribution."""
    random = np.random.default_rng(0)
    wide = stats.cauchy(scale=3.0)
    x = np.where(random.random((num, dim)) < 0.5, q.rvs((num, dim), random), wide.rvs((num, dim), random))
    log_m = np.sum(np.logaddexp(q.logpdf(x), wide.logpdf(x)) - np.log(2.0), -1) + np.log(num)
    log_p, log_q = (np.sum(density.logpdf(x), -1) - log_m for density in (p, q))
    return Weighed(x, log_p, log_q, np.arange(num) % NUM_GROUPS), q.rvs((num, dim), random)


class Mixed:
    """A normal with a wide part."""

    def __init__(self, share, width):
        self.parts = [(1.0 - share, stats.norm()), (share, stats.norm(scale=width))]

    def logpdf(self, x):
        return np.logaddexp(*(np.log(weight) + part.logpdf(x) for weight, part in self.parts))

    def rvs(self, size, random):
        wide = random.random(size) < self.parts[1][0]
        return np.where(wide, self.parts[1][1].rvs(size, random), self.parts[0][1].rvs(size, random))


def test_where_the_fit_is_the_posterior_there_is_no_noise():
    found = errors_of(*weigh(stats.norm(), stats.norm(), dim=3))
    assert found.mean == pytest.approx(0.0, abs=1e-12)
    assert found.sd_se == pytest.approx(0.0, abs=1e-12)
    assert found.are_right
    assert not found.are_wrong
    assert found.effect().mean_error == 0.0


@pytest.mark.parametrize("share", [1e-6, 0.003])
def test_a_wide_part_that_the_fit_has_too_little_of_is_seen(share):
    """Of the second, half is there: nowhere is the density a hundred times too low."""
    p, q = Mixed(0.007, 25.0), Mixed(share, 25.0)
    found = errors_of(*weigh(p, q))
    exact = np.sqrt((1.0 + 0.007 * 624.0) / (1.0 + share * 624.0)) - 1.0
    assert found.sd[0] == pytest.approx(exact, abs=4.0 * found.sd_se[0])
    assert found.are_wrong
    assert not found.are_right
    assert found.effect().sd_error == pytest.approx(exact, rel=0.2)
    assert found.effect().matters


def test_a_fit_that_is_too_wide_or_moved_is_wrong():
    wide = errors_of(*weigh(stats.norm(), stats.norm(scale=1.3)))
    assert wide.sd[0] == pytest.approx(1.0 / 1.3 - 1.0, abs=0.01)
    assert wide.effect().sd_error < 0.0
    assert wide.effect().matters
    moved = errors_of(*weigh(stats.norm(0.2), stats.norm()))
    assert moved.mean[0] == pytest.approx(-0.2, abs=0.02)
    assert moved.effect().mean_error == pytest.approx(0.2, abs=0.02)


def test_what_rests_on_few_draws_is_neither_wrong_nor_right():
    weighed, draws = weigh(stats.norm(), stats.norm(), num=2000)
    log_p = weighed.log_p.copy()
    log_p[7] += 5.0
    found = errors_of(weighed._replace(log_p=log_p), draws)
    assert not found.are_wrong
    assert not found.are_right


def test_what_has_no_standard_deviation_is_not_judged():
    found = errors_of(*weigh(stats.cauchy(scale=2.0), stats.cauchy()))
    assert not found.known.any()
    assert not found.are_wrong
    # With three degrees of freedom there is one, and it is right.
    assert errors_of(*weigh(stats.t(3), stats.t(3))).are_right


def test_excess_is_the_mass_that_the_fit_lacks():
    p, q = Mixed(0.2, 30.0), Mixed(0.05, 30.0)
    weighed, _ = weigh(p, q)
    excess = weighed.excess()
    x = np.linspace(-200.0, 200.0, 400_001)
    more = np.exp(p.logpdf(x)) - np.exp(q.logpdf(x))
    exact = np.sum(more[more > 0.2 * np.exp(q.logpdf(x))]) * 1e-3
    assert np.exp(np.logaddexp.reduce(excess.log_mass)) == pytest.approx(exact, rel=0.05)
    weights = excess.weights()
    assert np.sqrt(weights @ excess.points[:, 0] ** 2) == pytest.approx(30.0, rel=0.1)


def test_two_sets_of_draws_make_one_estimate():
    first, draws = weigh(Mixed(0.007, 25.0), stats.norm(), num=2000)
    second, _ = weigh(Mixed(0.007, 25.0), stats.norm(), num=6000)
    both = first.joined(second, 3.0)
    assert np.exp(np.logaddexp.reduce(both.log_q)) == pytest.approx(1.0, abs=0.05)
    assert errors_of(both, draws).sd_se[0] < errors_of(first, draws).sd_se[0]
