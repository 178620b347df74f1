"""Particles from far around a fit end wherever the posterior has mass, whatever the fit has seen."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.diagnostics.verdict import judge_weights
from bernflow.errors import ArgumentError
from bernflow.fit.checks.effort import CHECKS, resolve_checks
from bernflow.fit.checks.evidence import Evidence, Subject
from bernflow.fit.checks.heated import HeatedDraws
from bernflow.fit.checks.tempered import TemperedRun, is_affordable, run_tempered
from bernflow.fit.deadline import Deadline
from bernflow.fit.settings import Training, resolve_settings
from bernflow.flows.affine import TriangularAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.keys import as_key
from bernflow.models import as_model
from bernflow.target import Target


def settings(checks="default"):
    return resolve_settings(checks=checks, training=Training(precision="float64"))


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def normal(x, scale=1.0):
    return jnp.sum(-0.5 * (x / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi))


def two(distance, share, dim):
    offset = np.zeros(dim)
    offset[0] = distance
    return lambda x: jnp.logaddexp(jnp.log1p(-share) + normal(x), jnp.log(share) + normal(x - offset))


def target_of(log_density, dim):
    return Target(bf.from_log_density(log_density, np.zeros(dim)))


def draws(dim, num=5000):
    return np.random.default_rng(0).normal(size=(num, dim))


@pytest.mark.parametrize("dim", [1, 5, 20])
def test_the_evidence_is_that_of_the_posterior(dim):
    ended = run_tempered(target_of(lambda x: 3.0 + normal(x), dim), draws(dim), None, 1, as_key(0))
    assert ended.log_evidence == pytest.approx(3.0, abs=0.5)  # the spread over keys is 0.15 in 20 dimensions
    assert ended.found(3.0).share == 0.0
    assert np.std(ended.points, 0) == pytest.approx(np.ones(dim), abs=0.15)


@pytest.mark.parametrize(("dim", "distance"), [(1, 30.0), (2, 6.0), (10, 30.0)])
def test_a_mode_that_no_draw_has_met_is_found_with_its_mass(dim, distance):
    share = 0.3
    ended = run_tempered(target_of(two(distance, share, dim), dim), draws(dim), None, 1, as_key(0))
    found = ended.found(math.log1p(-share))
    assert found.share == pytest.approx(share, abs=0.12)
    assert np.mean(found.points[:, 0]) == pytest.approx(distance, rel=0.1)


def subject_of(target, num, log_evidence, chosen=None):
    fit = LocationScale(TriangularAffine(jnp.zeros(2), jnp.eye(2)))
    x = draws(2, num)
    log_weights = np.full(num, log_evidence)
    told = judge_weights(log_weights), target, chosen or settings(), Deadline.start()
    return Subject(fit, x, log_weights, *told, as_key(0), as_key(1))


def test_the_prior_tells_how_far_to_go():
    where = np.array([400.0, -100.0])

    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 100.0).expand([2]).to_event(1))
        numpyro.factor("modes", jnp.logaddexp(normal(x), jnp.log(4.0) + 8.5 + normal(x - where)))

    target = Target(as_model(model, (), {}))
    subject = subject_of(target, 5000, -math.log(2e4 * math.pi))
    before = Evidence(points=np.empty((0, 2)))
    assert TemperedRun().applies(subject, before)
    assert not TemperedRun().applies(subject, Evidence())
    evidence = TemperedRun().run(subject, before)
    assert evidence.looked == ("a tempered run of 1,000 particles",)
    found = evidence.sightings[0].found
    assert found.share == pytest.approx(0.8, abs=0.1)
    assert np.mean(found.points, 0) == pytest.approx(where, rel=0.05)


def test_what_has_no_density_far_away_ends_with_nothing():
    def corner(x):
        return jnp.where(jnp.all(x > 0.0), normal(x), -jnp.inf)

    ended = run_tempered(target_of(corner, 2), np.abs(draws(2)), None, 1, as_key(0))
    assert ended.log_evidence == pytest.approx(math.log(0.25), abs=0.3)
    nowhere = target_of(lambda x: jnp.where(x[0] > 1e9, 0.0, -jnp.inf), 1)
    assert run_tempered(nowhere, draws(1), None, 1, as_key(0)) is None
    assert run_tempered(target_of(normal, 2), np.zeros((5000, 2)), None, 1, as_key(0)) is None
    assert run_tempered(target_of(normal, 2), draws(2, 10), None, 1, as_key(0)) is None


def test_expensive_densities_are_left_out_unless_asked_for():
    def expensive(x):
        return normal(x) + 1e-9 * jnp.sum(jnp.outer(jnp.arange(500.0) * x[0], jnp.ones(500)))

    default, thorough = CHECKS["default"], CHECKS["thorough"]
    assert is_affordable(target_of(normal, 5), default)
    assert not is_affordable(target_of(expensive, 5), default)
    assert is_affordable(target_of(expensive, 5), thorough)
    assert not is_affordable(target_of(normal, 30), default)
    assert is_affordable(target_of(normal, 30), thorough)
    assert not is_affordable(target_of(normal, 101), thorough)


def test_thorough_checks_look_at_more():
    subject = subject_of(target_of(normal, 2), 20_000, 0.0, settings("thorough"))
    evidence = TemperedRun().run(subject, HeatedDraws().run(subject, Evidence()))
    assert evidence.looked == ("20,000 heated draws", "2 tempered runs of 1,000 particles")
    assert evidence.elsewhere(["a", "b"]).share < 1e-6
    assert evidence.places is None


def test_unknown_checks_are_refused():
    assert resolve_checks("thorough").thorough
    assert settings("thorough").describe()["checks"] == "thorough"
    for wrong in ("all", None, True):
        with pytest.raises(ArgumentError, match=r"checks=.* is unknown: expected one of 'default', 'thorough'"):
            resolve_checks(wrong)


def test_the_verdict_says_so():
    post = bf.fit(target_of(normal, 1).model, family="gaussian", steps=20, progress=False, checks="thorough")
    assert post.settings["checks"] == "thorough"
    assert "2 tempered runs of 1,000 particles" in post.diagnostics.looked
