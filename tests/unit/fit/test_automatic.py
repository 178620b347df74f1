"""When a mixture is tried unasked."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from bernflow.diagnostics import Finding, judge
from bernflow.fit.automatic import _better, _may_mix, _with_missed
from bernflow.fit.start import Gaussian

TWO_PLACES = Gaussian(np.array([[0.0, 0.0], [9.0, 9.0]]), np.stack([np.eye(2)] * 2), np.array([-10.0, -10.5]))
ONE_PLACE = Gaussian(np.zeros((2, 2)), np.stack([np.eye(2)] * 2), np.array([-10.0, -10.0]))


def diagnostics(verdict, elbo, missing=None, effect=None, improper=""):
    found = (Finding("improper" if improper else "weights", verdict, "so", parameters=improper),)
    figures = {"log_evidence": -10.0, "elbo": elbo, "missing_mass": missing, "missing_effect": effect}
    return dataclasses.replace(judge(np.zeros(30), num_resamples=2), findings=found, **figures)


def may_mix(verdict, left, probes=TWO_PLACES, missing=None, effect=None, improper=None, steps=None, dim=11):
    """Ask about a fit that is `left` nats from the posterior as far as its weights tell."""
    settings = SimpleNamespace(components=None, restarts=1, steps=steps, family=SimpleNamespace(mixes=True))
    judged = diagnostics(verdict, -10.0 - left, missing, effect, improper or "")
    posterior = SimpleNamespace(diagnostics=judged, settings={"interrupted": False, "out_of_time": False})
    return _may_mix(settings, SimpleNamespace(dim=dim), posterior, probes)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"verdict": "good", "left": 0.5}, False),
        ({"verdict": "usable", "left": 0.5}, True),
        ({"verdict": "usable", "left": 0.5, "probes": ONE_PLACE}, False),
        # In few dimensions more paths are affordable.
        ({"verdict": "usable", "left": 0.5, "probes": ONE_PLACE, "dim": 10}, True),
        ({"verdict": "good", "left": 0.5, "probes": ONE_PLACE, "dim": 10}, False),
        ({"verdict": "usable", "left": 0.5, "steps": 100}, False),
        # What is left is less than what a mixture must gain.
        ({"verdict": "usable", "left": 0.005}, False),
        ({"verdict": "usable", "left": 0.005, "missing": 0.2}, True),
        # Only moments notice so little mass.
        ({"verdict": "usable", "left": 0.0, "missing": 0.002, "effect": 2.0}, True),
        ({"verdict": "usable", "left": 0.0, "missing": 0.002, "effect": 0.05}, False),
        # Weights that cannot be relied upon do not tell what is left.
        ({"verdict": "poor", "left": 0.005}, True),
        ({"verdict": "poor", "left": 0.5, "improper": "x"}, False),
    ],
)
def test_when_a_mixture_is_tried(case, expected):
    assert may_mix(**case) is expected


@pytest.mark.parametrize(
    ("elbos", "missing", "chosen"),
    [
        ((-1.0, -0.5), (0.0, 0.0), 1),
        ((-1.0, -0.995), (0.0, 0.0), 0),
        ((-1.0, np.nan), (0.0, 0.0), 0),
        ((np.nan, -1.0), (0.0, 0.0), 1),
        # The second covers mass that the first misses, and that is worth little.
        ((-1.0, -0.995), (0.02, 0.0), 1),
        ((-1.0, -1.1), (0.02, 0.0), 0),
        ((-1.0, -0.995), (0.02, 0.02), 0),
    ],
)
def test_of_two_fits_the_better_is_taken_with_what_both_took(elbos, missing, chosen):
    taken = {"steps": 10, "training_gradients": 320, "interrupted": False, "out_of_time": False}
    fits = [
        SimpleNamespace(
            diagnostics=diagnostics("good", elbos[i], missing[i]),
            settings=dict(taken, interrupted=i == 1),
        )
        for i in range(2)
    ]
    best = _better(*fits)
    assert best is fits[chosen]
    assert best.settings == dict(taken, steps=20, training_gradients=640, interrupted=True)


def test_a_mixture_begins_where_mass_was_missed():
    missed = Gaussian(np.array([[30.0, 30.0]]), np.eye(2)[None], np.array([-np.inf]))
    starts, places = _with_missed(TWO_PLACES, [0, 1], missed)
    assert starts.loc[places].tolist() == [[0.0, 0.0], [30.0, 30.0], [9.0, 9.0]]
    assert _with_missed(TWO_PLACES, [0, 1], None) == (TWO_PLACES, [0, 1])
