"""Simulation-based calibration lets right models pass and catches planted errors.

A right model is called poor with probability 0.001 and not good with probability 0.05, for a new key; the keys here are
fixed, and the first that was tried. The p-value is that of all parameters and the log density together.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints

import bernflow as bf
from bernflow.calibrate.result import POOR_P

NUM = 128
STEPS = 250
X = np.linspace(-1.5, 1.5, 12)


def normal_mean(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def batch_without_its_factor(y):
    # What training on 5 of 20 rows without the factor N / B converges to: the likelihood of all counts 5 / 20 times.
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with handlers.scale(scale=5 / len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def regression_with_correlated_coefficients():
    # Both columns are nearly the same, so that the coefficients have a correlation of -0.95.
    design = np.stack([np.ones(8), 1.0 + 0.3 * X[:8]], 1)
    return bf.Model(
        prior={"b": dist.Normal(0.0, 2.0).expand([2]).to_event(1)},
        likelihood=lambda theta, x: dist.Normal(x @ theta["b"], 1.0),
        y=np.zeros(8),
        x=design,
    )


def scale_on_the_log_scale(with_jacobian):
    """Return a simulator whose density is that of log s; without its Jacobian it is another one."""

    def simulate(key):
        scale_key, data_key = jax.random.split(key)
        s = dist.HalfNormal(1.0).sample(scale_key)
        y = dist.Normal(0.0, s).expand([1]).sample(data_key)

        def logp(theta):
            s = jnp.exp(theta["log_s"])
            density = dist.HalfNormal(1.0).log_prob(s) + jnp.sum(dist.Normal(0.0, s).log_prob(y))
            return density + (theta["log_s"] if with_jacobian else 0.0)

        model = bf.from_log_density(logp, init={"log_s": 0.0}, support={"log_s": constraints.real})
        return {"log_s": jnp.log(s)}, model

    return simulate


def calibrate(*args, **kwargs):
    return bf.calibrate(*args, **{"num_simulations": NUM, "steps": STEPS, "progress": False, **kwargs})


def test_conjugate_normal_model_passes_and_a_lost_batch_factor_does_not():
    # The Gaussian family is exact here, and quickly compiled.
    right, wrong = (
        calibrate(model, np.zeros(20), family="gaussian") for model in (normal_mean, batch_without_its_factor)
    )
    assert right.verdict == "good"
    assert right.num_poor == 0
    # The posterior variance is 1 / (1 / 4 + 20), whatever the data.
    assert right.contraction["mu"].mean() == pytest.approx(1 - 1 / (4 * 20.25), abs=1e-3)
    assert wrong.p_value < POOR_P
    assert "mu: the posterior is too wide" in wrong.status
    # The fit itself is right: only the simulation shows the error.
    assert wrong.num_poor == 0


@pytest.mark.slow
def test_a_lost_jacobian_is_caught():
    right, wrong = (calibrate(simulate=scale_on_the_log_scale(whether), steps=500) for whether in (True, False))
    assert right.verdict == "good"
    assert wrong.p_value < POOR_P
    assert "log_s: the posterior lies too low" in wrong.status


def test_mean_field_of_a_correlated_posterior_is_caught():
    wrong = calibrate(regression_with_correlated_coefficients(), family="gaussian")
    assert wrong.p_value < POOR_P
    assert "b[0]: the posterior is too narrow; b[1]: the posterior is too narrow" in wrong.status


@pytest.mark.slow
def test_full_rank_of_a_correlated_posterior_passes():
    right = calibrate(regression_with_correlated_coefficients(), family="gaussian-fullrank")
    assert right.verdict == "good"
    assert right.num_poor == 0


@pytest.mark.slow
def test_hierarchical_model_passes():
    groups = np.repeat(np.arange(4), 3)

    def model(group, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        numpyro.sample("y", dist.Normal(mu + tau * z[group], 0.5), obs=y)

    found = calibrate(model, groups, np.zeros(12), steps=1000, num_simulations=256)
    assert found.verdict == "good"
    assert found.num_poor <= 0.05 * 256


@pytest.mark.slow
def test_logistic_regression_passes():
    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.5).expand([2]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=b[0] + b[1] * x), obs=y)

    found = calibrate(model, np.linspace(-1.5, 1.5, 30), np.zeros(30, int), steps=500, num_simulations=256)
    assert found.verdict == "good"
    assert found.num_poor == 0


@pytest.mark.slow
def test_p_values_of_right_models_are_uniform():
    found = [calibrate(normal_mean, np.zeros(20), family="gaussian", key=key) for key in range(40)]
    # Below 0.05 lie 2 of 40 on average; more than 8 come with probability 2e-4.
    assert sum(c.p_value < 0.05 for c in found) <= 8
    assert all(c.p_value >= POOR_P for c in found)
