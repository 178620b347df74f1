"""What mass outside of a fit does to the verdict."""

import dataclasses

import numpy as np
import pytest

from bernflow.diagnostics import verdict
from bernflow.diagnostics.elsewhere import (
    NOT_SEARCHED,
    Effect,
    Elsewhere,
    Found,
    effect_of,
    join,
    nothing,
)
from bernflow.diagnostics.rounding import unresolved
from bernflow.diagnostics.verdict import judge

LOOKED = ("4,000 heated draws", "64 starts")
EVEN = np.random.default_rng(0).normal(scale=0.01, size=2000)
NORMAL = np.random.default_rng(1).normal(size=(20_000, 2))
# Nearly equal weights of which a few are off by 20 %: a k-hat above 0.7.
FLAT = np.clip(1e-4 * np.random.default_rng(0).standard_cauchy(20_000), -0.2, 0.2)


def found(share, at):
    """Return a share of the whole mass, at one point."""
    return Found(np.array([at]), np.log([share / (1.0 - share)]))


def test_the_share_is_one_of_the_whole():
    assert found(0.3, [0.0, 0.0]).share == pytest.approx(0.3)
    assert nothing(2).share == 0.0
    assert nothing(2).effective() == 0.0


def test_the_effect_is_that_on_the_parameter_that_changes_most():
    effect = effect_of(found(0.01, [0.0, 30.0]), NORMAL)
    sd = np.sqrt(0.99 + 0.01 * 900.0 - 0.09)
    assert effect.parameter == 1
    assert effect.sd_error == pytest.approx(sd - 1.0, rel=0.02)
    assert effect.mean_error == pytest.approx(0.3 / sd, rel=0.1)
    assert effect.matters
    assert not effect_of(found(0.001, [0.0, 5.0]), NORMAL).matters
    assert effect_of(nothing(2), NORMAL) == Effect()


def test_a_standard_deviation_that_does_not_exist_is_not_compared():
    cauchy = np.random.default_rng(2).standard_cauchy((20_000, 1))
    assert not effect_of(found(1e-6, [1e12]), cauchy).matters


@pytest.mark.parametrize(
    ("share", "effect", "verdict"),
    [
        (0.0, Effect(), "good"),
        (0.009, Effect(), "good"),
        (0.02, Effect(), "usable"),
        (0.06, Effect(), "poor"),
        (0.002, Effect(mean_error=0.0, sd_error=1.4), "usable"),
        (0.002, Effect(mean_error=0.2, sd_error=0.0), "usable"),
        (0.002, Effect(mean_error=0.05, sd_error=0.05), "good"),
    ],
)
def test_what_was_found_limits_the_verdict(share, effect, verdict):
    result = judge(EVEN, elsewhere=Elsewhere(LOOKED, share, effect, "b[1]"))
    assert result.verdict == verdict
    assert result.missing_mass == share
    assert result.missing_effect == max(effect.mean_error, effect.sd_error)
    assert result.looked == "4,000 heated draws and 64 starts"


def test_the_status_says_what_was_looked_at_and_found():
    nothing_found = judge(EVEN, elsewhere=Elsewhere(LOOKED))
    assert "No mass was found elsewhere among 4,000 heated draws and 64 starts." in nothing_found.status
    around = judge(EVEN, elsewhere=Elsewhere(LOOKED, 0.2, Effect(0.0, 3.0), "b[1]"))
    assert "heated noise found 20.0 % of the posterior mass around this fit" in around.status
    assert "makes its sd 4 times as large" in around.status
    modes = judge(EVEN, elsewhere=Elsewhere(LOOKED, 0.2, modes=True))
    assert "other starts found 20.0 % of the posterior mass in modes that this fit does not cover" in modes.status
    assert "components=2" in modes.status


def test_what_restarts_have_found_counts_if_it_is_more():
    elsewhere = Elsewhere(LOOKED, 0.02)
    assert judge(EVEN, missing_mass=0.3, elsewhere=elsewhere).missing_mass == 0.3
    assert judge(EVEN, missing_mass=0.01, elsewhere=elsewhere).missing_mass == 0.02


def test_nearly_equal_weights_are_good_at_any_khat_only_after_a_search():
    searched = judge(FLAT, elsewhere=Elsewhere(LOOKED))
    assert searched.khat > 0.7
    assert searched.verdict == "good"
    assert judge(FLAT, elsewhere=NOT_SEARCHED).verdict == "usable"


def test_above_a_khat_of_1_no_sentence_calls_the_bulk_accurate():
    result = judge(np.log1p(2e-5 * np.random.default_rng(0).pareto(0.8, 20_000)))
    assert result.khat > 1.0
    assert result.verdict == "usable"
    assert "bulk is accurate" not in result.status


@pytest.mark.parametrize(
    ("draws", "log_weights", "why"),
    [
        (NORMAL, EVEN, None),
        (1e9 + NORMAL, EVEN, None),
        (NORMAL, EVEN - 1e9, None),
        (1e16 + 0.0 * NORMAL, EVEN, r"the draws of a are 1e\+16 to within rounding errors"),
        (1e15 + NORMAL, EVEN, "the draws of a are"),
        (np.zeros((100, 2)), EVEN, "the draws of a are 0"),
        (NORMAL, EVEN + 1e14, "the log density is known to 0.02 nats only"),
    ],
)
def test_what_is_lost_in_rounding_is_told(draws, log_weights, why):
    told = unresolved(draws, log_weights, ["a", "b"])
    if why is None:
        assert told is None
    else:
        with pytest.raises(AssertionError, match=why):
            raise AssertionError(told)
        result = judge(EVEN).adding(verdict.unresolved(told))
        assert result.verdict == "poor"
        assert "sign of the log density" in result.status
        assert "weights are nearly equal" not in result.status


def test_words_are_joined():
    assert join(["a"]) == "a"
    assert join(["a", "b", "c"]) == "a, b and c"


def test_figures_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Elsewhere(LOOKED).share = 1.0
