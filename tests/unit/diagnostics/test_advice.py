"""One list of advice, which is true: more steps only where the ELBO still rises, no richer family than the richest."""

import dataclasses

import numpy as np
import pytest

from bernflow.diagnostics import judge
from bernflow.diagnostics.advice import EXACT, MORE_MODES, advise, beyond_status, rise, still_rising
from bernflow.diagnostics.verdict import improper

RNG = np.random.default_rng(0)
GOOD = judge(RNG.normal(size=4000) * 0.01, num_resamples=5)
USABLE = judge(RNG.normal(size=4000) * 0.4, num_resamples=5)
POOR = judge(RNG.normal(size=4000) * 3.0, num_resamples=5)
TAILS = dataclasses.replace(USABLE, khat=0.9, ess_fraction=0.95)
DEFAULTS = {"family": "bernstein", "base": "normal", "restarts": 1, "components": None}


def history(elbo, error=0.01):
    return {"elbo": np.asarray(elbo), "elbo_se": np.full(len(elbo), error)}


FLAT, RISING = history(np.full(100, -5.0)), history(np.linspace(-9, -5, 100))


def text(diagnostics, trained=FLAT, weighted=False, num_parts=1, **settings):
    return " ".join(advise(diagnostics, trained, {**DEFAULTS, **settings}, weighted, num_parts))


def test_a_good_fit_needs_nothing():
    assert advise(GOOD, FLAT, DEFAULTS, False) == ["Use `post.draws()` as they are.", MORE_MODES]
    assert advise(GOOD, FLAT, {**DEFAULTS, "restarts": 8}, False) == ["Use `post.draws()` as they are."]


def test_a_usable_fit_is_weighted_by_default():
    assert USABLE.weights_correct
    assert "resampled by their importance weights" in text(USABLE, weighted=True)
    assert "Load the posterior with its model" in text(USABLE)
    assert advise(USABLE, FLAT, DEFAULTS, True)[-1] == EXACT
    assert not any(d.weights_correct for d in (GOOD, POOR, TAILS, dataclasses.replace(USABLE, missing_mass=0.04)))
    # What lies elsewhere has no weight, however little it is.
    assert not dataclasses.replace(USABLE, missing_mass=0.002, missing_effect=0.6).weights_correct


@pytest.mark.parametrize("diagnostics", [USABLE, POOR, TAILS])
def test_more_steps_are_advised_only_where_the_elbo_rises(diagnostics):
    assert "refine" not in text(diagnostics)
    assert "steps" not in text(diagnostics)
    assert "The ELBO was still rising" in text(diagnostics, RISING)
    assert "was interrupted: `post.refine()`" in text(diagnostics, interrupted=True)
    assert "The time limit has ended the training" in text(diagnostics, out_of_time=True)


def test_the_verdict_and_the_list_advise_the_same():
    """What helps depends on the training, the family and the flow, which the sentence of the verdict does not know."""
    far = judge(np.log1p(2e-5 * np.random.default_rng(0).pareto(0.8, 20_000)), num_resamples=5)
    assert far.khat > 1.0
    tails = judge(np.log1p(0.01 * np.random.default_rng(0).pareto(1.3, 20_000)), num_resamples=5)
    assert 0.7 < tails.khat < 1.0
    for found, limit in (
        (far, "rust central intervals at most"),
        (tails, "rust means of bounded quantities"),
    ):
        assert found.verdict == "usable"
        assert limit in found.status
        assert limit in text(found)
        for remedy in ("refine", "base", "to_nuts"):
            assert remedy not in found.status
        assert "refine" not in text(found)
        assert "to_nuts" not in text(found, num_parts=2), "which a mixture does not have"


def test_no_family_is_richer_than_the_default():
    assert "more flexible" not in text(POOR)
    assert "'gaussian' is a simple one" in text(POOR, family="gaussian")
    assert 'training=bf.Training(base="logistic")' in text(TAILS)
    assert 'base="logistic"' not in text(TAILS, base="logistic")


def test_a_poor_fit_names_its_causes():
    bad = dataclasses.replace(POOR, missing_mass=0.3, num_nonfinite=12)
    found = text(bad, num_parts=2)
    for part in ("Do not use these draws", "components=3", "zero or not a number at 12 of 4,000 draws", "`restarts=8`"):
        assert part in found
    assert "to_nuts" not in found  # which a mixture does not have
    assert "`restarts=8`" not in text(bad, restarts=4)


def test_a_warning_does_not_repeat_what_the_status_advises():
    missed = judge(RNG.normal(size=4000) * 0.01, missing_mass=0.3, num_resamples=5)
    whole = advise(missed, FLAT, DEFAULTS, False)
    assert "fit a mixture with components=2" in missed.status
    assert sum("mixture" in sentence for sentence in whole) == 1
    rest = beyond_status(missed, whole)
    assert rest == [sentence for sentence in whole[1:] if "mixture" not in sentence] != []
    assert beyond_status(POOR, advise(POOR, FLAT, DEFAULTS, False)) == advise(POOR, FLAT, DEFAULTS, False)[1:]
    assert beyond_status(POOR.adding(improper("b", 2e7)), whole) == []


def test_an_improper_posterior_needs_a_prior_and_no_training():
    found = text(POOR.adding(improper("b[0], b[1]", 2e7)), RISING)
    assert "Give b[0], b[1] a proper prior" in found
    assert "refine" not in found
    assert "to_nuts" not in found


def test_an_elbo_that_still_rises_is_seen():
    assert still_rising(RISING)
    assert rise(RISING) == pytest.approx(4.0 * 10 / 99)
    assert not still_rising(history(np.linspace(-9, -5, 100), error=10.0))
    assert not still_rising(FLAT)
    assert not still_rising(history([]))
