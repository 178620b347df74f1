"""The start must be the posterior where the posterior is Gaussian, in whatever units, and usable where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from benchmarks.targets import BENCHMARKS
from bernflow.fit.start import find_start
from bernflow.models import as_model
from bernflow.preflight import preflight, starting_points
from bernflow.target import Target


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def start_of(target, num=4):
    points_key, path_key = jax.random.split(jax.random.key(0))
    points = preflight(target, starting_points(target, points_key, num))
    return find_start(target, points, path_key)


def gaussian_target(loc, covariance):
    precision = jnp.asarray(np.linalg.inv(covariance))

    def log_density(theta):
        difference = theta["x"] - loc
        return -0.5 * difference @ precision @ difference

    return Target(bf.from_log_density(log_density, init={"x": jnp.zeros(len(loc))}))


def check_exact(found, loc, covariance):
    """Compare in units of the posterior: the whitened mean is 0 and the whitened covariance the identity."""
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    np.testing.assert_allclose(whiten @ (np.asarray(found.loc[0]) - loc), 0.0, atol=1e-3)
    factor = whiten @ np.asarray(found.factor[0])
    np.testing.assert_allclose(factor @ factor.T, np.eye(len(loc)), atol=1e-3)
    np.testing.assert_array_equal(found.factor[0], np.tril(found.factor[0]))
    assert np.all(np.diagonal(found.factor[0]) > 0)
    assert np.all(np.diff(found.elbo) <= 0)


def test_badly_conditioned_gaussian():
    rng = np.random.default_rng(1)
    rotation, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    covariance = rotation @ np.diag(np.geomspace(1e-3, 1e3, 5)) @ rotation.T
    loc = rng.normal(size=5)
    check_exact(start_of(gaussian_target(loc, covariance)), loc, covariance)


def test_wildly_different_units():
    unit = np.array([1e-5, 1.0, 1e5])
    correlation = np.array([[1.0, 0.8, -0.5], [0.8, 1.0, -0.2], [-0.5, -0.2, 1.0]])
    loc = unit * np.array([3.0, -1.0, 10.0])
    covariance = unit[:, None] * correlation * unit
    check_exact(start_of(gaussian_target(loc, covariance)), loc, covariance)


def test_calendar_years():
    # Intercept and slope of a regression on 1950..2019 have correlation -0.9999.
    year = np.arange(1950.0, 2020.0)
    y = 0.02 * (year - 1985) + np.random.default_rng(0).normal(size=70)

    def model(year, y):
        a = numpyro.sample("a", dist.Normal(0.0, 1000.0))
        b = numpyro.sample("b", dist.Normal(0.0, 10.0))
        numpyro.sample("y", dist.Normal(a + b * year, 1.0), obs=y)

    design = np.column_stack([np.ones(70), year])
    covariance = np.linalg.inv(design.T @ design + np.diag([1e-6, 1e-2]))
    correlation = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert correlation == pytest.approx(-0.9999, abs=2e-4)
    target = Target(as_model(model, (year, y), {}))
    check_exact(start_of(target), covariance @ design.T @ y, covariance)


@pytest.mark.parametrize("name", ["funnel", "eight-schools-centered"])
def test_a_funnel_starts_where_its_elbo_is_finite(name):
    # The density of these grows without bound into the neck: a Laplace approximation there would be useless.
    benchmark = BENCHMARKS[name]
    found = start_of(Target(as_model(benchmark.model, benchmark.args, {})), 8)
    assert np.isfinite(found.elbo[0])
    assert found.elbo[0] > benchmark.log_evidence - 10.0
    assert np.isfinite(found.factor[0]).all()
