import dataclasses

import numpy as np
import pytest

from bernflow.diagnostics import Diagnostics
from bernflow.diagnostics.verdict import judge
from bernflow.semistructured.verdict import Evidence, attenuation, find, judge_effects

FINE = Evidence(
    names=("age", "sex"),
    effect=np.array([0.6, -0.3]),
    sd=np.array([0.1, 0.1]),
    before=np.array([0.58, -0.28]),
    by_fold=np.array([[0.7, -0.2], [0.5, -0.4]]),
    by_fold_sd=np.full((2, 2), 0.14),
    rise=0.002,
    rise_se=0.001,
    shown=np.array([0.2, 0.0]),
    agreement=0.98,
    attenuation=0.01,
    dispersion=(1.0, 0.05),
    has_features=True,
    interrupted=False,
)


def test_nothing_is_found_where_nothing_is_wrong():
    assert find(FINE) == []
    assert find(dataclasses.replace(FINE, before=None, rise=None)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"before": np.array([0.5, -0.3])}, ("'age' moved by 1.0 sd", "undertrained")),
        ({"rise": 0.02}, ("rose by 0.020 per row", "undertrained")),
        (
            {"by_fold": np.array([[0.6, -0.9], [0.6, 0.3]])},
            ("disagree on the effect of 'sex': -0.9 ± 0.14, 0.3 ± 0.14",),
        ),
        ({"shown": np.array([0.97, 0.0])}, ("predict 97% of the variance of 'age'",)),
        (
            {"agreement": 0.6, "attenuation": 0.2},
            ("correlation of only 0.60", "too small where a predictor is left out, here by up to 20%"),
        ),
        ({"dispersion": (1.44, 0.05)}, ("vary 1.44 times", "factor of about 1.20")),
        ({"has_features": False}, ("no linear last layer",)),
        ({"interrupted": True}, ("interrupted",)),
    ],
)
def test_every_finding_has_its_cause(change, words):
    (finding,) = find(dataclasses.replace(FINE, **change))
    assert all(word in finding for word in words)


def test_rises_within_their_error_are_no_finding():
    assert find(dataclasses.replace(FINE, rise=0.02, rise_se=0.01)) == []


def test_the_attenuation_is_that_of_a_predictor_left_out():
    """A logistic regression without f, fitted to very many rows; the networks know half of the variance of f."""
    rng = np.random.default_rng(0)
    x, known, unknown = rng.normal(size=(3, 200_000))
    y = rng.random(200_000) < 1 / (1 + np.exp(-(x + known + unknown)))
    design, beta = np.column_stack([x, known]), np.zeros(2)
    for _ in range(20):
        p = 1 / (1 + np.exp(-design @ beta))
        beta += np.linalg.solve((design.T * (p * (1 - p))) @ design, design.T @ (y - p))
    assert attenuation(1.0, 1.0) == 0.0
    assert attenuation(-0.1, 1.0) == attenuation(0.05, 2.0) == 0.2
    assert attenuation(0.5, float(np.var(known * beta[1]))) == pytest.approx(1 - beta[0], abs=0.02)


def test_a_finding_costs_the_verdict():
    good: Diagnostics = judge(np.zeros(2000))
    assert judge_effects(good, []) is good
    worse = judge_effects(good, ["The networks disagree."])
    assert (good.verdict, worse.verdict) == ("good", "usable")
    assert worse.status.startswith("Usable (ESS 100.0 % of the draws): The networks disagree.")
    assert not worse.weights_correct
    poor = judge(np.random.default_rng(0).standard_cauchy(2000))
    assert (poor.verdict, judge_effects(poor, ["x"]).verdict) == ("poor", "poor")
