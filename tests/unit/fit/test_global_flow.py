"""The flow of the globals, trained on a regression of their log density: against a density that is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow.fit.arrow import Locals
from bernflow.fit.conditionals import Moments
from bernflow.fit.global_flow import fit_globals
from bernflow.fit.marginal import GlobalGaussian
from bernflow.fit.settings import resolve_settings
from bernflow.fit.surrogate import fit_surrogate
from bernflow.flows.affine import TriangularAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.keys import as_key
from bernflow.precision import use_precision

SETTINGS = resolve_settings()
LOC, TRIL = np.array([-0.5, 0.3]), np.array([[0.6, 0.0], [-0.1, 0.5]])


@pytest.fixture(autouse=True)
def _double_precision():
    with use_precision("float64"):
        yield


def log_density(g):
    """Log scale s and mean of ten groups whose means are integrated out: skewed, and a funnel from the prior of s."""
    variance = 0.3 + np.exp(2.0 * g[..., 0])
    return -0.5 * g[..., 0] ** 2 - 5.0 * np.log(variance) - 0.5 * (4.0 + 10.0 * g[..., 1] ** 2) / variance


def points(num, spread=1.4):
    return LOC + spread * np.random.default_rng(num).normal(size=(num, 2)) @ TRIL.T


def test_the_regression_predicts_values_that_it_has_not_seen():
    surrogate = fit_surrogate(LOC, TRIL, points(200), log_density(points(200)))
    new = points(500, spread=1.0)
    radius = np.linalg.norm((new - LOC) @ np.linalg.inv(TRIL).T, axis=1)
    found = np.asarray(jax.vmap(surrogate.log_density)(new))
    error = (found - found[0]) - (log_density(new) - log_density(new[0]))
    assert np.std(error[radius < 0.8 * surrogate.reach]) < 0.02


def test_far_away_the_log_density_falls_along_every_ray():
    surrogate = fit_surrogate(LOC, TRIL, points(200), log_density(points(200)))
    directions = np.random.default_rng(0).normal(size=(50, 2))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    far = LOC + surrogate.reach * np.multiply.outer([1.5, 2.5, 50.0], directions @ TRIL.T)
    values = np.asarray(jax.vmap(jax.vmap(surrogate.log_density))(far))
    assert np.isfinite(values).all()
    assert (np.diff(values, axis=0) < 0.0).all()


def test_noise_is_no_log_density_of_globals():
    noise = np.random.default_rng(1).normal(size=200)
    assert fit_surrogate(LOC, TRIL, points(200), 3.0 * noise) is None


def moments_of(g):
    num = len(g)
    nothing = np.zeros((num, 0, 1))
    return Moments(g, np.zeros((num, 2)), nothing, Locals(np.zeros((num, 0, 1, 1)), None), log_density(g))


def test_the_flow_is_trained_to_the_log_density_without_its_gradient():
    flow = BernsteinFlow(jax.random.key(0), TriangularAffine(jnp.asarray(LOC), jnp.asarray(TRIL)), order=20, width=32)
    gaussian = GlobalGaussian(LOC, TRIL, LOC, moments_of(LOC[None]).locals)
    trained, at = fit_globals(flow, gaussian, moments_of(points(200)), [0, 1], moments_of, SETTINGS, as_key(0))
    assert len(at.x) > 200
    x, log_q = trained.sample_and_log_prob(jax.random.key(5), 4000)
    weights = np.exp(
        log_density(np.asarray(x)) - np.asarray(log_q) - np.max(log_density(np.asarray(x)) - np.asarray(log_q))
    )
    start, log_start = flow.sample_and_log_prob(jax.random.key(5), 4000)
    before = np.exp(log_density(np.asarray(start)) - np.asarray(log_start))
    assert np.mean(weights) ** 2 / np.mean(weights**2) > 0.99
    assert np.mean(before) ** 2 / np.mean(before**2) < 0.9
