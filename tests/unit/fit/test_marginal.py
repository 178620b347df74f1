"""The Laplace marginal of the globals, against exact answers where the locals are Gaussian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.fit.conditionals import conditional_moments
from bernflow.fit.marginal import find_globals, laplace_marginal
from bernflow.flows.structure import Structure
from bernflow.precision import use_precision
from bernflow.target import Target

NUM = 12
Y = np.random.default_rng(0).normal(0.5, 1.5, NUM)


@pytest.fixture(autouse=True)
def _double_precision():
    with use_precision("float64"):
        yield


def centered(x):
    """Means of groups around mu with scale exp(s); x = (s, mu, means)."""
    s, mu, means = x[0], x[1], x[2:]
    prior = -0.5 * (s**2 + mu**2) - 0.5 * jnp.sum(((means - mu) / jnp.exp(s)) ** 2) - NUM * s
    return prior - 0.5 * jnp.sum((Y - means) ** 2)


def integrated(g):
    """The same with the means integrated out."""
    s, mu = g
    variance = jnp.exp(2 * s) + 1.0
    normal = -0.5 * (s**2 + mu**2) - 0.5 * jnp.sum((Y - mu) ** 2) / variance
    return normal - 0.5 * NUM * jnp.log(variance) + 0.5 * NUM * jnp.log(2 * jnp.pi)


def walk(x):
    """A random walk with scale exp(s), observed with noise and one count; x = (s, states)."""
    s, states = x[0], x[1:]
    steps = jnp.diff(states, prepend=0.0)
    return -0.5 * s**2 - 0.5 * jnp.sum((steps / jnp.exp(s)) ** 2) - NUM * s - 0.5 * jnp.sum((Y - states) ** 2)


def target_of(function, dim):
    return Target(bf.from_log_density(function, init=jnp.zeros(dim)))


BLOCKS = Structure(NUM + 2, (0, 1), tuple((i + 2,) for i in range(NUM)))
CHAIN = Structure(NUM + 1, (0,), tuple((2 * i + 1, 2 * i + 2) for i in range(NUM // 2)), chained=True)
DENSE = Structure(NUM + 1, (0,), (tuple(range(1, NUM + 1)),))


def test_value_and_gradient_are_exact_for_gaussian_locals():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, NUM + 2))
    found = laplace_marginal(target_of(centered, NUM + 2), BLOCKS, x)
    np.testing.assert_allclose(found.value, jax.vmap(integrated)(x[:, :2]), rtol=1e-9)
    np.testing.assert_allclose(found.gradient, jax.vmap(jax.grad(integrated))(x[:, :2]), rtol=1e-5, atol=1e-5)


def test_chain_and_dense_block_agree_with_the_dense_hessian():
    target = target_of(walk, NUM + 1)
    x = np.random.default_rng(2).normal(size=(3, NUM + 1))
    hessian = jax.vmap(jax.hessian(walk))(x)[:, 1:, 1:]
    for structure in (CHAIN, DENSE):
        at = conditional_moments(target, structure, x)
        np.testing.assert_allclose(at.gradient[:, 1:], 0.0, atol=1e-6)
        log_det = -0.5 * np.linalg.slogdet(-np.asarray(hessian))[1]
        np.testing.assert_allclose(at.locals.log_det(), log_det, rtol=1e-9)
        # Deviations drawn by unit noise have the inverse curvature as their covariance.
        noise = structure.by_block(np.eye(NUM))
        columns = structure.flat(np.stack([at.at([0]).locals.color(z[None])[0] for z in noise]))
        np.testing.assert_allclose(columns.T @ columns, np.linalg.inv(-np.asarray(hessian[0])), atol=1e-9)
        rhs = structure.by_block(np.ones((3, NUM)))
        solved = structure.flat(at.locals.solve(rhs[..., None])[..., 0])
        np.testing.assert_allclose(
            solved, np.linalg.solve(-np.asarray(hessian), np.ones((3, NUM, 1)))[..., 0], rtol=1e-7
        )


def test_the_mode_is_that_of_the_marginal_and_not_that_of_the_joint_density():
    """The joint density of a centered hierarchy is unbounded at zero scale; its marginal is not."""
    points = np.zeros((1, NUM + 2)) + 0.1
    found = find_globals(target_of(centered, NUM + 2), BLOCKS, points, scales=[0])
    np.testing.assert_allclose(jax.grad(integrated)(found.loc), 0.0, atol=0.05)
    covariance = np.linalg.inv(-np.asarray(jax.hessian(integrated)(found.loc)))
    np.testing.assert_allclose(found.tril @ found.tril.T, covariance, rtol=0.02, atol=1e-4)


def test_a_point_without_a_density_is_dropped():
    def log_density(x):
        return jnp.where(x[0] > 1.0, -jnp.inf, -0.5 * jnp.sum(x**2) - 0.5 * jnp.sum((x[1:] - x[0]) ** 2))

    at = conditional_moments(target_of(log_density, 4), Structure(4, (0,), ((1,), (2,), (3,))), np.eye(4)[:2] * 2.0)
    assert np.isnan(at.log_density[0])
    assert np.isfinite(at.log_density[1])
