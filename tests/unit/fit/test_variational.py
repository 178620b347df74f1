"""Gaussians nearest in KL to locals given globals, and skewed noise: against one-dimensional quadrature."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import ndtr

import bernflow as bf
from bernflow.fit.conditionals import conditional_moments
from bernflow.fit.skewed import skewed_shapes
from bernflow.fit.variational import are_gaussian, nearest_gaussians, nodes_for, skewness
from bernflow.flows.bernstein import centered_polynomial, increments
from bernflow.flows.structure import Structure
from bernflow.precision import use_precision
from bernflow.target import Target

COUNTS = np.array([0.0, 1.0, 3.0, 8.0])
BLOCKS = Structure(5, (0,), tuple((i + 1,) for i in range(4)))
PAIRS = Structure(5, (0,), ((1, 2), (3, 4)))
GRID = np.linspace(-8.0, 8.0, 4001)


@pytest.fixture(autouse=True)
def _double_precision():
    with use_precision("float64"):
        yield


def counts(x):
    """Log rates around x[0], each with one count."""
    return -0.5 * x[0] ** 2 - 0.5 * jnp.sum((x[1:] - x[0]) ** 2) + jnp.sum(COUNTS * x[1:] - jnp.exp(x[1:]))


def pairs(x):
    """Two locals of each pair add up to a log rate."""
    total = x[1::2] + 0.5 * x[2::2]
    return -0.5 * jnp.sum(x**2) + jnp.sum(COUNTS[:2] * total - jnp.exp(total))


def target_of(function):
    return Target(bf.from_log_density(function, init=jnp.zeros(5)))


def moments_at(function, structure, x):
    target = target_of(function)
    return target, conditional_moments(target, structure, x)


def test_gaussian_locals_are_told_from_others():
    def linear(x):
        return -0.5 * x[0] ** 2 - 0.5 * jnp.sum((x[1:] - x[0]) ** 2) * jnp.exp(x[0]) - jnp.sum((x[1:] - COUNTS) ** 2)

    assert are_gaussian(*arguments(linear, BLOCKS))
    assert not are_gaussian(*arguments(counts, BLOCKS))


def arguments(function, structure):
    target, at = moments_at(function, structure, np.zeros((2, 5)))
    return target, structure, at


def test_means_and_scales_are_those_that_minimize_the_divergence():
    x = np.array([[0.4, 0.0, 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0, 0.0]])
    target, at = moments_at(counts, BLOCKS, x)
    found = nearest_gaussians(target, BLOCKS, at)
    for row in range(2):
        bounds = 0.0
        for i, count in enumerate(COUNTS):

            def divergence(parameters, count=count, row=row):
                mean, log_sd = parameters
                # E[log p] of a normal local, in closed form.
                squares = np.exp(2 * log_sd) + (mean - x[row, 0]) ** 2
                return 0.5 * squares - count * mean + np.exp(mean + 0.5 * np.exp(2 * log_sd)) - log_sd

            best = minimize(divergence, [0.0, 0.0], tol=1e-12)
            assert found.mode[row, i, 0] == pytest.approx(best.x[0], abs=2e-3)
            assert found.locals.factor[row, i, 0, 0] == pytest.approx(np.exp(best.x[1]), rel=5e-3)
            bounds -= best.fun
        expected = bounds - 0.5 * x[row, 0] ** 2 + 0.5 * BLOCKS.num_locals
        assert found.log_density[row] == pytest.approx(expected, abs=1e-3)


def test_cross_derivatives_are_those_of_the_density():
    target, at = moments_at(pairs, PAIRS, np.zeros((1, 5)))
    at = nearest_gaussians(target, PAIRS, at)
    found = skewness(target, PAIRS, at)
    direction = np.array([1.0, 0.5])
    for block in range(2):
        inverse = np.linalg.inv(at.locals.factor[0, block])
        factor = np.linalg.inv(np.linalg.cholesky(inverse.T @ inverse)).T
        along = factor.T @ direction
        mean, variance = direction @ at.mode[0, block], along @ along
        rate = np.exp(mean + 0.5 * variance)  # expected under the Gaussian
        np.testing.assert_allclose(found.third[block], -rate * along**3, rtol=0.02, atol=1e-3)
        np.testing.assert_allclose(
            found.by_squares[block][1, 0], -rate * along[0] ** 2 * along[1], rtol=0.02, atol=1e-3
        )
        np.testing.assert_allclose(
            found.by_products[block][1, 0], -rate * along[1] ** 2 * along[0], rtol=0.02, atol=1e-3
        )


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_nodes_have_the_moments_of_noise(size):
    z, weights = nodes_for(size)
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weights @ z, 0.0, atol=1e-12)
    covariance = np.einsum("q,qi,qj->ij", weights, z, z)
    np.testing.assert_allclose(covariance, np.eye(size), atol=1e-9 if size <= 3 else 0.7)


@pytest.mark.parametrize(("third", "fourth"), [(0.0, 0.0), (0.15, 0.0), (-0.3, -0.1)])
def test_shapes_have_the_quantiles_of_skewed_noise(third, fourth):
    raw, shift = skewed_shapes(np.array([third]), np.array([fourth]), 20, "normal")
    density = np.exp(-0.5 * GRID**2 + third * (GRID**3 - 3 * GRID) / 6 + fourth * (GRID**4 - 6 * GRID**2 + 3) / 24) * (
        np.abs(GRID) < 4
    )
    below = np.cumsum(density) / np.sum(density)
    z = np.linspace(-2.0, 2.0, 9)
    expected = np.interp(ndtr(z), below, GRID)
    found = centered_polynomial(increments(jnp.asarray(raw)), jnp.asarray((z + 4.0) / 8.0)[:, None])[0][:, 0] + shift
    np.testing.assert_allclose(found, expected, atol=0.02)
