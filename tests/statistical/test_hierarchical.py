"""Hierarchical posteriors with exact answers: locals integrated out, globals by quadrature."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.flows.structured import StructuredBernsteinFlow

NUM_GROUPS, NOISE = 40, 1.0
# The scale of the groups is well away from zero: the neck of a funnel is a test of its own.
Y = np.random.default_rng(3).normal(1.0, np.sqrt(1.5**2 + NOISE**2), NUM_GROUPS)


def centered(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(2.0))
    with numpyro.plate("groups", NUM_GROUPS):
        means = numpyro.sample("means", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(means, NOISE), obs=y)


def noncentered(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(2.0))
    with numpyro.plate("groups", NUM_GROUPS):
        raw = numpyro.sample("raw", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu + tau * raw, NOISE), obs=y)


def exact():
    """Log evidence, and mean and sd of mu and tau, on a grid."""
    mu, tau = np.meshgrid(np.linspace(-2.0, 4.0, 801), np.linspace(1e-4, 5.0, 2001), indexing="ij")
    log_p = dist.Normal(0.0, 5.0).log_prob(mu) + dist.HalfNormal(2.0).log_prob(tau)
    with jax.enable_x64(True):
        log_p = np.asarray(log_p, float)
        scale = np.sqrt(tau**2 + NOISE**2)
        for y in Y:
            log_p = log_p + np.asarray(-0.5 * ((y - mu) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi))
    cell = (mu[1, 0] - mu[0, 0]) * (tau[0, 1] - tau[0, 0])
    weight = np.exp(log_p - log_p.max())
    total = weight.sum()
    moments = {
        name: (np.sum(weight * v) / total, np.sqrt(np.sum(weight * v**2) / total - (np.sum(weight * v) / total) ** 2))
        for name, v in (("mu", mu), ("tau", tau))
    }
    return log_p.max() + np.log(total * cell), moments


@pytest.fixture(scope="module")
def fit():
    """Fit either parameterization, once."""
    return functools.cache(lambda model: bf.fit(model, Y, progress=False, tolerance=0.01))


@pytest.mark.parametrize("model", [centered, noncentered])
def test_evidence_and_globals_are_exact_in_either_parameterization(fit, model):
    post = fit(model)
    assert isinstance(post.distribution, StructuredBernsteinFlow)
    assert post.diagnostics.verdict == "good"
    log_evidence, moments = exact()
    # The false-alarm rate of 4 standard errors is 6e-5; the grid is exact to 1e-4.
    assert abs(post.diagnostics.log_evidence - log_evidence) < 4 * post.diagnostics.log_evidence_se + 1e-3
    assert log_evidence - post.diagnostics.elbo < 0.01 + 4 * post.diagnostics.elbo_se
    draws = post.draws(20_000, key=1)
    for name, (mean, sd) in moments.items():
        values = np.asarray(draws[name])
        assert abs(values.mean() - mean) < (4 / np.sqrt(20_000) + 0.03) * sd
        assert abs(values.std() / sd - 1.0) < 4 / np.sqrt(20_000) + 0.03


def test_a_structured_posterior_is_saved_whole(fit, tmp_path):
    post = fit(noncentered)
    loaded = bf.load(post.save(tmp_path / "post.bernflow"), noncentered, Y)
    theta = post.draws(50, key=2)
    np.testing.assert_array_equal(loaded.draws(50, key=2)["raw"], theta["raw"])
    np.testing.assert_allclose(loaded.log_prob(theta), post.log_prob(theta))
    assert repr(loaded.structure) == (
        "2 globals (tau, mu) and 40 blocks of 1 local each, independent given the globals"
    )
    refined = loaded.refine(steps=250, progress=False)
    assert refined.diagnostics.verdict == "good"


@pytest.mark.slow
def test_counts_by_group_of_a_plain_density_are_good_against_the_evidence_of_each_group():
    """Locals that are not Gaussian: the evidence of every group is an integral in one dimension."""
    counts = np.random.default_rng(5).poisson(np.exp(np.random.default_rng(6).normal(1.0, 0.5, 50)))
    grid = np.linspace(-8.0, 8.0, 2001)

    def log_density(x):
        s, mu, rates = x[0], x[1], x[2:]
        prior = -0.5 * (s / 0.5) ** 2 - 0.5 * mu**2 - 0.5 * jnp.sum(((rates - mu) / jnp.exp(s)) ** 2) - 50 * s
        return prior + jnp.sum(counts * rates - jnp.exp(rates))

    post = bf.fit(bf.from_log_density(log_density, init=jnp.zeros(52)), progress=False, tolerance=0.01)
    assert isinstance(post.distribution, StructuredBernsteinFlow)
    s, mu = np.meshgrid(np.linspace(-2.5, 1.0, 141), np.linspace(-1.0, 3.0, 161), indexing="ij")
    log_p = -0.5 * (s / 0.5) ** 2 - 0.5 * mu**2 - 50 * s
    for count in np.unique(counts):
        rate = mu[..., None] + np.exp(s)[..., None] * grid
        inside = -0.5 * grid**2 + count * rate - np.exp(rate)
        group = np.log(np.sum(np.exp(inside), -1) * (grid[1] - grid[0])) + s
        log_p += np.sum(counts == count) * group
    cell = (s[1, 0] - s[0, 0]) * (mu[0, 1] - mu[0, 0])
    log_evidence = log_p.max() + np.log(np.sum(np.exp(log_p - log_p.max())) * cell)
    assert abs(post.diagnostics.log_evidence - log_evidence) < 4 * post.diagnostics.log_evidence_se + 1e-3
    assert post.diagnostics.verdict == "good"
