"""In very many dimensions: a start that is the posterior where that is Gaussian, and nothing quadratic anywhere."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.fit.building import zero_flows
from bernflow.fit.engine import find_starts
from bernflow.fit.modes import distinct_places
from bernflow.fit.run import Run
from bernflow.fit.settings import FULL_RATE_DIM, Training, resolve_settings
from bernflow.fit.start import find_start
from bernflow.fit.train.objective import AllRows
from bernflow.fit.train.recipe import CHUNK, StepConfig
from bernflow.fit.train.state import TrainState
from bernflow.fit.train.steps import Inputs, draw_noise, run_chunk, steps_at_once
from bernflow.fit.wide_start import find_wide_start, finder
from bernflow.fit.work import equations
from bernflow.flows import factors
from bernflow.keys import as_key
from bernflow.models import as_model
from bernflow.posterior import sampling
from bernflow.target import Target


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def few(monkeypatch):
    """Let 100 dimensions be very many."""
    monkeypatch.setattr(factors, "MAX_DIM_DENSE", 100)


def low_rank_gaussian(dim, rank=5):
    """Return N(m, D + V V^T) as a model, without a matrix, and the log of its integral."""
    rng = np.random.default_rng(dim)
    loc, scale = rng.normal(size=dim), np.exp(rng.normal(size=dim))
    loadings = rng.normal(size=(dim, rank))
    inner = np.linalg.inv(np.eye(rank) + loadings.T @ loadings)

    def log_density(x):
        e = (x - loc) / scale
        return -0.5 * (e @ e - (e @ loadings) @ inner @ (loadings.T @ e))

    log_integral = 0.5 * dim * np.log(2 * np.pi) + np.sum(np.log(scale)) - 0.5 * np.linalg.slogdet(inner)[1]
    return bf.from_log_density(log_density, init=jnp.zeros(dim)), log_integral


def groups(num):
    """Return means of many groups with a common scale, centered: the density has no mode."""
    rng = np.random.default_rng(num)
    sigma = np.exp(rng.uniform(-1.0, 1.0, num))
    y = 1.0 + 0.7 * rng.normal(size=num) + sigma * rng.normal(size=num)

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(2.0))
        theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([num]).to_event(1))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)

    return Target(as_model(model, (y,), {})), _log_evidence(y, sigma)


def _log_evidence(y, sigma):
    """Integrate over means and their mean exactly, over the log of tau by the trapezoidal rule."""
    log_tau = np.linspace(-8.0, 2.0, 4001)
    variance = sigma**2 + np.exp(2.0 * log_tau)[:, None]
    precision, weighted = np.sum(1.0 / variance, 1) + 1.0 / 25.0, np.sum(y / variance, 1)
    log_p = -0.5 * np.sum(np.log(2 * np.pi * variance) + y**2 / variance, 1)
    log_p += 0.5 * weighted**2 / precision - 0.5 * np.log(25.0 * precision)
    log_p += 0.5 * np.log(2.0 / np.pi) - np.log(2.0) - np.exp(2.0 * log_tau) / 8.0 + log_tau
    return np.logaddexp.reduce(log_p) + np.log(log_tau[1] - log_tau[0])


def log_weights(start, target, num=1000):
    """Return log p - log q of draws of a Gaussian start."""
    z = np.random.default_rng(0).normal(size=(num, len(start.loc)))
    log_q = -0.5 * np.sum(z**2 + np.log(2 * np.pi), 1) - start.log_det()
    return sampling.log_density(target.layout, target.model, start.color(z)) - log_q


def test_the_limit_chooses_the_way(few):
    assert finder(100) is find_start
    assert finder(101) is find_wide_start


def test_a_gaussian_is_met(few):
    model, log_integral = low_rank_gaussian(300)
    target = Target(model)
    starts = find_starts(target, 2, as_key(0), Run())
    assert distinct_places(starts) == [0]
    weights = log_weights(starts.at(0), target)
    # The diagonal is estimated by random signs: exact up to a few thousandths of a nat.
    assert np.var(weights) < 0.02
    assert np.mean(weights) == pytest.approx(log_integral, abs=0.02)


def test_groups_without_a_mode_are_met(few):
    target, log_evidence = groups(300)
    starts = find_starts(target, 4, as_key(0), Run())
    gap = log_evidence - np.mean(log_weights(starts.at(0), target))
    assert 0.0 < gap < 2.5


def test_points_without_a_density_come_last(few):
    def log_density(x):
        return jnp.where(x[0] < -50.0, jnp.nan, -0.5 * jnp.sum((x - 1.0) ** 2))

    target = Target(bf.from_log_density(log_density, init=jnp.zeros(110)))
    found = find_wide_start(target, jnp.stack([jnp.full(110, -99.0), jnp.full(110, 1.0)]), as_key(0))
    assert np.isfinite(found.elbo[0])
    assert np.isnan(found.elbo[1])


def largest(function, *args):
    """Return the size of the largest array on the way of a function."""
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return max(math.prod(v.aval.shape) for equation in equations(jaxpr) for v in equation.outvars)


def test_no_array_of_the_start_is_quadratic():
    dim = 3000
    target = Target(low_rank_gaussian(dim)[0])
    size = largest(lambda x: find_wide_start(target, x, as_key(0)), jnp.zeros((2, dim)))
    # The vectors of Lanczos are the most; p^2 would be 3000 p.
    assert size <= 64 * dim


def defaults(**choices):
    """Return the settings of a fit, all but a few of them those by default."""
    return resolve_settings(training=Training(**choices))


def test_no_array_of_a_step_is_quadratic():
    dim, num_particles = 3000, 2
    target = Target(low_rank_gaussian(dim)[0])
    settings = defaults(num_particles=num_particles)
    flows = zero_flows(settings, dim)
    num_steps = steps_at_once(flows, CHUNK, num_particles)
    shape = {"num_steps": num_steps, "num_particles": num_particles, "widened": True}
    noise = jax.eval_shape(functools.partial(draw_noise, **shape), flows, jax.random.split(jax.random.key(0), (1, 2)))
    flow_arrays = [leaf for leaf in jax.tree.leaves(flows) if hasattr(leaf, "shape")]
    state = jax.eval_shape(settings.optimizer.init, jnp.zeros(sum(leaf[0].size for leaf in flow_arrays)))
    state = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), state)
    noise = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), noise)
    size = largest(
        lambda noise: run_chunk(
            TrainState(flows, None, None, state, None, np.zeros(1, np.int32)),
            AllRows(target),
            Inputs(noise, jnp.zeros(num_steps)),
            jnp.zeros(1),
            config=StepConfig(settings.optimizer, use_score=True),
        )[1],
        jax.tree.map(jnp.asarray, noise),
    )
    # All parameters as one vector, about 270 of them per dimension, or the noise of many steps; p^2 would be 3000 p.
    assert size <= max(400, num_steps * num_particles) * dim


def test_the_rate_does_not_fall_with_very_many_dimensions():
    settings = defaults()
    assert settings.rate_in(2000) == 2e-2 * FULL_RATE_DIM / 2000
    assert settings.rate_in(3000) == settings.rate_in(30_000)


@pytest.mark.slow
def test_a_fit_is_judged_saved_and_loaded(few, tmp_path):
    model, log_integral = low_rank_gaussian(150, rank=2)
    post = bf.fit(model, progress=False)
    assert post.diagnostics.verdict == "good"
    assert post.diagnostics.log_evidence == pytest.approx(log_integral, abs=0.05)
    post.save(tmp_path / "post.bernflow")
    loaded = bf.load(tmp_path / "post.bernflow", model=model)
    for name, values in post.draws(5, key=0).items():
        np.testing.assert_array_equal(loaded.draws(5, key=0)[name], values)


def test_five_thousand_dimensions_are_met():
    model, log_integral = low_rank_gaussian(5000)
    weights = log_weights(find_starts(Target(model), 2, as_key(0), Run()).at(0), Target(model), num=200)
    np.testing.assert_allclose(weights, log_integral, atol=0.01)


@pytest.mark.slow
def test_five_thousand_dimensions_are_fitted():
    model, log_integral = low_rank_gaussian(5000)
    post = bf.fit(model, progress=False)
    # The start is the posterior: no step is taken.
    assert post.settings["steps"] == 0
    assert post.diagnostics.verdict == "good"
    assert post.diagnostics.log_evidence == pytest.approx(log_integral, abs=0.01)
    assert post.diagnostics.elbo == pytest.approx(log_integral, abs=0.01)
