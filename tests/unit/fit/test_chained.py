"""Chains of locals whose exact expectations are known: the fixed point is the Gaussian nearest in KL."""

import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.fit.arrow import Curvature, eliminate
from bernflow.fit.chained import chain_is_gaussian, covariance_of, nearest_chains
from bernflow.fit.conditionals import conditional_moments
from bernflow.flows.structure import Structure
from bernflow.models import as_model
from bernflow.precision import use_precision
from bernflow.target import Target

NUM = 12
STRUCTURE = Structure(1 + NUM, (0,), tuple((i,) for i in range(1, 1 + NUM)), chained=True)
COUNTS = np.random.default_rng(3).poisson(1.5, NUM)


def target_of(likelihood):
    """A random walk with one global, its scale, seen through a likelihood of each state."""

    def log_density(theta):
        g, h = theta["g"], theta["h"]
        scale = jnp.exp(g)
        walk = -0.5 * jnp.sum(((h[1:] - h[:-1]) / scale) ** 2) - NUM * g - 0.5 * (h[0] / scale) ** 2
        return walk + jnp.sum(likelihood(h)) - 0.5 * g**2

    model = bf.from_log_density(log_density, init={"g": jnp.zeros(()), "h": jnp.zeros(NUM)})
    return Target(as_model(model, (), {}))


def moments(target):
    x = np.zeros((3, 1 + NUM))
    x[:, 0] = (-1.0, -0.3, 0.2)
    return conditional_moments(target, STRUCTURE, x)


@pytest.fixture(autouse=True)
def double():
    with use_precision("float64"):
        yield


def test_the_covariance_of_a_chain_is_the_inverse_of_its_precision():
    random = np.random.default_rng(0)
    half = np.tril(np.triu(random.normal(size=(6, 6)), -3)) + 3.0 * np.eye(6)
    whole = half @ half.T
    blocks = np.stack([whole[i : i + 2, i : i + 2] for i in (0, 2, 4)])
    whole[4:, :2] = whole[:2, 4:] = 0.0
    chain = np.stack([np.zeros((2, 2)), whole[2:4, :2], whole[4:, 2:4]])
    curvature = Curvature(blocks[None], chain[None])
    found = covariance_of(eliminate(*curvature))
    exact = np.linalg.inv(whole)
    for b in range(3):
        np.testing.assert_allclose(found.blocks[0, b], exact[2 * b : 2 * b + 2, 2 * b : 2 * b + 2], rtol=1e-9)
    for b in (1, 2):
        here, before = slice(2 * b, 2 * b + 2), slice(2 * b - 2, 2 * b)
        np.testing.assert_allclose(found.chain[0, b], exact[here, before], rtol=1e-9)
    assert found.trace_with(curvature)[0] == pytest.approx(6.0)


def test_a_gaussian_chain_stays_as_it_is():
    target = target_of(lambda h: -0.5 * (h - 1.0) ** 2)
    at = moments(target)
    assert chain_is_gaussian(target, STRUCTURE, at)
    found = nearest_chains(target, STRUCTURE, at)
    np.testing.assert_allclose(found.mode, at.mode, atol=1e-9)
    np.testing.assert_allclose(found.locals.factor, at.locals.factor, rtol=1e-9)
    np.testing.assert_allclose(found.log_density, at.log_density, atol=1e-8)


def test_counts_are_met_in_mean_and_precision():
    # With a Poisson likelihood, E exp(h) = exp(m + v / 2) is exact: the fixed point can be found by Newton's method.
    target = target_of(lambda h: COUNTS * h - jnp.exp(h))
    at = moments(target)
    assert not chain_is_gaussian(target, STRUCTURE, at)
    found = nearest_chains(target, STRUCTURE, at)
    for k, g in enumerate(at.x[:, 0]):
        prior = np.exp(-2.0 * g) * (2.0 * np.eye(NUM) - np.eye(NUM, k=1) - np.eye(NUM, k=-1))
        prior[-1, -1] = np.exp(-2.0 * g)
        mean, covariance = at.mode[k, :, 0], np.linalg.inv(prior + np.diag(np.exp(at.mode[k, :, 0])))
        for _ in range(50):
            rate = np.exp(mean + 0.5 * np.diag(covariance))
            covariance = np.linalg.inv(prior + np.diag(rate))
            mean = mean + covariance @ (COUNTS - rate - prior @ mean)
        sd = np.sqrt(np.diag(covariance))
        before = np.abs(at.mode[k, :, 0] - mean) / sd
        after = np.abs(found.mode[k, :, 0] - mean) / sd
        assert before.max() > 0.1  # standard deviations
        assert after.max() < 0.25 * before.max()
        exact_bound = (
            np.sum(COUNTS * mean - np.exp(mean + 0.5 * np.diag(covariance)))
            - 0.5 * (mean @ prior @ mean + np.trace(prior @ covariance))
            - NUM * g
            - 0.5 * g**2
            + 0.5 * np.linalg.slogdet(covariance)[1]
            + 0.5 * NUM
        )
        assert found.log_density[k] == pytest.approx(exact_bound, abs=0.01)


def test_a_point_where_the_density_is_not_finite_is_told():
    target = target_of(lambda h: jnp.where(h > 0.5, jnp.nan, -0.5 * (h - 0.4) ** 2))
    at = moments(target)
    assert np.isnan(nearest_chains(target, STRUCTURE, at).log_density).all()
