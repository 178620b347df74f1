"""The stress targets: their densities integrate to the stated evidence, and their exact draws come from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from benchmarks.stress import STRESS
from benchmarks.stress.shapes import mode_centers, mode_weights
from bernflow.models import as_model
from bernflow.target import Target

EXACT = [name for name, benchmark in STRESS.items() if benchmark.exact_draws is not None]
# Standard errors that a correct figure may be off: one of 16,000 is refused, and about 300 are compared.
NUM_ERRORS = 5.0


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def target_of(name):
    benchmark = STRESS[name]
    return Target(as_model(benchmark.model, benchmark.args, {}))


@pytest.mark.parametrize("name", ["ring", "banana", "modes-2-2", "modes-8-2"])
def test_a_plane_density_integrates_to_its_evidence(name):
    target = target_of(name)
    low, high = ((-16.0, 16.0), (-8.0, 60.0)) if name == "banana" else ((-16.0, 16.0), (-16.0, 16.0))
    first, second = np.linspace(*low, 1201), np.linspace(*high, 1201)
    points = np.stack(np.meshgrid(first, second, indexing="ij"), -1).reshape(-1, 2)
    values = np.exp(np.asarray(jax.lax.map(target.log_density, jnp.asarray(points), batch_size=20_000)))
    total = integrate.trapezoid(integrate.trapezoid(values.reshape(1201, 1201), second, axis=1), first)
    assert np.log(total) == pytest.approx(STRESS[name].log_evidence, abs=1e-4)


@pytest.mark.parametrize("name", EXACT)
def test_exact_draws_have_the_score_of_the_density(name):
    """E[x_i d/dx_j log p + (i = j)] = 0 for draws of p, integrated by parts; wrong scales and locations break it."""
    target, num = target_of(name), 4000
    theta = {site: jnp.asarray(value) for site, value in STRESS[name].exact_draws(3, num).items()}
    x = np.asarray(jax.vmap(lambda t: target.layout.unconstrain(t)[0])(theta))
    score = np.asarray(jax.vmap(jax.grad(target.log_density))(jnp.asarray(x)))
    for values in (score, x * score + 1.0):
        error = values.std(0) / np.sqrt(num)
        assert np.all(np.abs(values.mean(0)) < NUM_ERRORS * error + 1e-12)


@pytest.mark.parametrize("name", ["units", "calendar"])
def test_a_conjugate_regression_has_its_evidence(name):
    benchmark, target = STRESS[name], target_of(name)
    x = benchmark.exact_draws(0, 20_000)["b"]
    mean, covariance = x.mean(0), np.cov(x.T)
    # The posterior is Gaussian: log p(y) = log p(y, x) - log p(x | y) at any x, here at the mean of the draws.
    log_posterior = -0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    # The covariance is known to 1 % in every direction, the mean to 0.01 sd.
    assert float(target.log_density(mean)) - log_posterior == pytest.approx(benchmark.log_evidence, abs=0.05)


def test_modes_are_where_they_should_be():
    for name in ("modes-2-10", "modes-8-10"):
        num_modes = int(name.split("-")[1])
        centers = mode_centers(num_modes, 10)
        gaps = np.linalg.norm(centers[:, None] - centers[None], axis=-1)[~np.eye(num_modes, dtype=bool)]
        assert gaps.min() > 8.0
        x = STRESS[name].exact_draws(0, 20_000)["x"]
        nearest = np.argmin(np.linalg.norm(x[:, None] - centers[None], axis=-1), axis=1)
        shares = np.bincount(nearest, minlength=num_modes) / len(x)
        np.testing.assert_allclose(shares, mode_weights(num_modes), atol=5 * np.sqrt(0.25 / len(x)))


@pytest.mark.parametrize("name", [name for name in STRESS if name not in EXACT])
def test_models_with_data_have_a_finite_density(name):
    target = target_of(name)
    value, gradient = jax.value_and_grad(target.log_density)(jnp.full(target.dim, 0.1))
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))
    assert target.dim == {"horseshoe": 50, "cox-process": 256, "item-response": 201, "volatility": 300}.get(name, 3)
