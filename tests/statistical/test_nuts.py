"""NUTS in the space of a fit is exact, however bad the fit.

Means and standard deviations are compared within 4 Monte Carlo standard errors by ArviZ (6e-5 false alarms each): below
0.2 % for a new key, none for the fixed ones.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_stats.base import array_stats
from scipy import stats

import bernflow as bf
from benchmarks.targets import BENCHMARKS, FUNNEL_SD
from bernflow.flows.affine import DiagonalAffine
from bernflow.flows.gaussian import LocationScale

SAMPLERS = ("numpyro", "blackjax")
COVARIANCE = np.array([[1.0, 1.8, 0.0], [1.8, 4.0, 0.3], [0.0, 0.3, 0.25]])
MEAN = np.array([1.0, -2.0, 0.5])


def assert_exact(values, mean, sd, limit=4.0):
    """Compare draws, (chains, num), with exact moments."""
    assert abs(values.mean() - mean) < limit * float(array_stats.mcse(values, method="mean"))
    assert abs(values.std(ddof=1) - sd) < limit * float(array_stats.mcse(values, method="sd"))


@pytest.fixture(scope="module")
def correlated():
    """Fit a correlated Gaussian by independent ones, in a few steps, and then shift the fit."""

    def log_density(theta):
        d = theta["x"] - MEAN
        return -0.5 * d @ jnp.asarray(np.linalg.inv(COVARIANCE)) @ d

    model = bf.from_log_density(log_density, init={"x": np.zeros(3)})
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a poor fit is what is asked for
        return bf.fit(model, family="gaussian", steps=100, progress=False)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_narrow_and_shifted_fit_gives_exact_draws(correlated, sampler):
    post = correlated
    with jax.enable_x64(True):
        # Two standard deviations off and a third of the width, on top of the missing correlations.
        post.distribution = LocationScale(DiagonalAffine(jnp.array(MEAN) + 2.0, jnp.array([0.3, 0.6, 0.15])))
    assert np.abs(post.draws(4000)["x"].mean(0) - MEAN).max() > 1.9
    run = post.to_nuts(1000, sampler=sampler, progress=False)
    assert run.diagnostics.verdict == "good"
    x = run.draws()["x"]
    for i in range(3):
        assert_exact(x[..., i], MEAN[i], np.sqrt(COVARIANCE[i, i]))
    product = (x[..., 0] - MEAN[0]) * (x[..., 1] - MEAN[1])
    assert abs(product.mean() - COVARIANCE[0, 1]) < 4 * float(array_stats.mcse(product, method="mean"))


def test_beta_bernoulli():
    y = np.array([1, 1, 0, 1, 1, 1])

    def model(y):
        p = numpyro.sample("p", dist.Beta(1.1, 1.1))
        numpyro.deterministic("odds", p / (1 - p))
        numpyro.sample("y", dist.Bernoulli(p), obs=y)

    with warnings.catch_warnings(action="ignore", category=UserWarning):
        post = bf.fit(model, y, family="gaussian", steps=100, progress=False)
    run = post.to_nuts(1500, progress=False)
    exact = stats.beta(1.1 + y.sum(), 1.1 + len(y) - y.sum())
    p = run.draws()["p"]
    assert_exact(p, exact.mean(), exact.std())
    for level in (0.01, 0.1, 0.5, 0.9, 0.99):
        below = (p < exact.ppf(level)).astype(float)
        assert abs(below.mean() - level) < 4 * float(array_stats.mcse(below, method="mean"))
    np.testing.assert_allclose(run.draws()["odds"], p / (1 - p))


@pytest.fixture(scope="module")
def hierarchy():
    fits = {}

    def fit(name):
        if name not in fits:
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                fits[name] = bf.fit(BENCHMARKS[name].model, *BENCHMARKS[name].args, progress=False)
        return fits[name]

    return fit


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_eight_schools_centered(hierarchy, sampler):
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        # Below tau = exp(-6), which has 5e-4 of the mass, few draws have shaped the fit and trajectories may break.
        run = hierarchy("eight-schools-centered").to_nuts(2000, target_accept=0.95, sampler=sampler, progress=False)
    assert run.diagnostics.rhat < 1.01
    assert run.diagnostics.verdict != "poor"
    tau = run.draws()["tau"]
    # Moments by quadrature. The fit alone has 0.0007 to 0.0022 of its mass below exp(-4), the posterior 0.0037.
    assert_exact(tau, 3.5977, 3.2200)
    neck = (tau < 0.1).astype(float)
    assert abs(neck.mean() - 0.02031) < 4 * float(array_stats.mcse(neck, method="mean"))


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_funnel(hierarchy, sampler):
    run = hierarchy("funnel").to_nuts(2000, sampler=sampler, progress=False)
    assert run.diagnostics.verdict == "good"
    assert_exact(run.draws()["v"], 0.0, FUNNEL_SD)
