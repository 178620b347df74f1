import dataclasses
import json

import optax
import pytest

from bernflow.errors import ArgumentError
from bernflow.fit.building import zero_flows
from bernflow.fit.settings import DEFAULT_TOLERANCE, Training, resolve_settings
from bernflow.flows.families import FAMILIES, PAPER_LEARNING_RATE

OPTIONS = [field.name for field in dataclasses.fields(Training)]


def resolve(**given):
    """Resolve settings from options of the call and of its `Training`."""
    training = Training(**{name: given.pop(name) for name in OPTIONS if name in given})
    return resolve_settings(**{"components": 1, **given, "training": training})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"family": "bernstien"}, r"family='bernstien' is unknown: .*student-t.* Did you mean 'bernstein'\?$"),
        ({"family": "bernstein:f2"}, r"family='bernstein:f2' is unknown: expected one of"),
        ({"family": None}, r"family=None is unknown: expected one of"),
        ({"family": "gaussian", "order": 5}, r"order=5: the family 'gaussian' has no polynomial; leave order out"),
        ({"family": "student-t", "base": "normal"}, r"base='normal': the family 'student-t' has its own base noise"),
        ({"family": "bernstein-paper", "base": "logistic"}, r"has its own base noise; leave base out"),
        ({"base": "cauchy"}, r"base='cauchy' is unknown: expected one of normal, logistic or None"),
        *(
            ({"tolerance": value}, rf"tolerance={value!r}: expected a number of nats such as 0.01, 0 to train until")
            for value in (-0.01, float("nan"), float("inf"), True, False, "1")
        ),
        ({"tolerance": 0, "steps": 10}, r"steps=10, tolerance=0: one of them ends the training; leave one out"),
        ({"tolerance": 0.1, "steps": 10}, r"steps=10, tolerance=0.1: one of them ends the training; leave one out"),
        (
            {"tolerance": 0.1, "family": "bernstein-paper"},
            r"trains for a number of steps; give steps",
        ),
        ({"precision": "float16"}, r"precision='float16' is unknown: expected one of float32, float64 or None"),
        *(
            ({name: value}, rf"{name}={value!r}: expected a whole number of at least 1, or None")
            for name in ("order", "steps", "num_particles", "restarts", "components")
            for value in (0, -3, 2.5, True, "many")
        ),
        *(
            ({"optimizer": value}, r"optimizer=.*: expected a positive learning rate, an optax optimizer")
            for value in ("adam", 0, -0.1, True, optax.adam)
        ),
    ],
)
def test_wrong_choices_are_named(given, message):
    with pytest.raises(ArgumentError, match=message):
        resolve(**given)


def test_training_checks_its_options_before_any_fit():
    with pytest.raises(ArgumentError, match="order=0: expected a whole number"):
        Training(order=0)
    with pytest.raises(TypeError, match="positional"):
        Training(50)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Training().order = 5
    with pytest.raises(ArgumentError, match=r"training=\{'order': 5\}: expected options such as bf\.Training"):
        resolve_settings(training={"order": 5})


def test_defaults():
    found = resolve()
    assert (found.order, found.base, found.steps) == (20, "normal", None)
    assert (found.num_particles, found.restarts, found.components) == (32, 1, 1)
    assert found.learning_rate == FAMILIES["bernstein"].learning_rate
    paper = resolve(family="bernstein-paper")
    assert (paper.order, paper.num_particles, paper.steps) == (49, 10, 100_000)
    assert paper.learning_rate == PAPER_LEARNING_RATE


@pytest.mark.parametrize(
    ("given", "resolved", "described"),
    [
        ({}, DEFAULT_TOLERANCE, 0.01),
        ({"tolerance": 0.1}, 0.1, 0.1),
        ({"tolerance": 0}, None, 0.0),
        ({"tolerance": 0.0}, None, 0.0),
        ({"steps": 10}, None, None),
        ({"family": "bernstein-paper"}, None, None),
    ],
)
def test_what_ends_the_training(given, resolved, described):
    settings = resolve(**given)
    assert settings.tolerance == resolved
    assert settings.describe()["tolerance"] == described
    assert settings.thorough().tolerance is None


@pytest.mark.parametrize(("dim", "tolerance"), [(1, 0.01), (30, 0.01), (60, 0.02), (450, 0.15), (10_000, 0.15)])
def test_the_default_tolerance_grows_with_the_dimensions(dim, tolerance):
    assert resolve().in_dimension(dim).tolerance == pytest.approx(tolerance)
    # What was given stays, also where it is the default of few dimensions.
    assert resolve(tolerance=0.01).in_dimension(dim).tolerance == 0.01
    assert resolve(tolerance=0).in_dimension(dim).tolerance is None
    assert resolve(steps=10).in_dimension(dim).tolerance is None


def test_choices_are_taken_over():
    found = resolve(order=3, base="logistic", steps=7, num_particles=5, restarts=2, precision="float32", optimizer=0.5)
    assert (found.order, found.base, found.steps, found.num_particles) == (3, "logistic", 7, 5)
    assert (found.restarts, found.precision, found.learning_rate) == (2, "float32", 0.5)
    own = optax.adam(1e-2)
    assert resolve(optimizer=own).optimizer is own
    assert resolve(optimizer=own).learning_rate is None


def test_a_mixture_has_restarts_enough_for_its_components():
    assert resolve(components=3).restarts > 3
    assert resolve(components=3, restarts=1).restarts == 3


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"components": 2}, True),
        ({"components": 1}, False),
        ({"components": None}, False),
        ({"components": 2, "steps": 100}, False),
        ({"components": 2, "family": "bernstein-paper"}, False),
    ],
)
def test_when_flows_are_trained_together(given, expected):
    settings = resolve(**given)
    assert settings.trains_together(zero_flows(settings, 2)) is expected


def test_description_is_json():
    found = json.loads(json.dumps(resolve(family="bernstein-paper", steps=5).describe()))
    assert found["family"] == "bernstein-paper"
    assert found["steps"] == 5


def test_spec():
    spec = resolve(order=4, base="logistic").spec(3)
    assert (spec.dim, spec.order, spec.noise) == (3, 4, "logistic")
