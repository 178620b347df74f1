"""Gaussian starts that climb their ELBO."""

import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.fit.deadline import Deadline
from bernflow.fit.settling import settle
from bernflow.fit.start import Gaussian
from bernflow.keys import as_key
from bernflow.precision import use_precision
from bernflow.target import Target

DIM = 8
RANDOM = np.random.default_rng(5)
TRIL = np.linalg.cholesky(np.cov(RANDOM.normal(size=(DIM, 3 * DIM))))
LOC = 40.0 * RANDOM.normal(size=DIM)


@pytest.fixture(autouse=True)
def _double_precision():
    with use_precision("float64"):
        yield


def settled(log_density, deadline=None, scale=1.0):
    target = Target(bf.from_log_density(log_density, init=jnp.zeros(DIM)))
    start = Gaussian(np.zeros(DIM), scale * np.eye(DIM), np.asarray(-1e9))
    return settle(target, start, as_key(1), deadline or Deadline.start())


def test_a_distant_gaussian_is_found():
    def log_density(x):
        white = jnp.linalg.solve(TRIL, x - LOC)
        return -0.5 * jnp.sum(white**2) - np.sum(np.log(np.diag(TRIL))) - 0.5 * DIM * np.log(2.0 * np.pi)

    found = settled(log_density)
    # Rounds end where less than 0.05 nats are left.
    np.testing.assert_allclose(np.linalg.solve(TRIL, found.loc - LOC), 0.0, atol=0.1)
    np.testing.assert_allclose(
        np.linalg.solve(TRIL, found.factor) @ np.linalg.solve(TRIL, found.factor).T, np.eye(DIM), atol=0.1
    )
    assert found.elbo == pytest.approx(0.0, abs=0.05)


def test_under_kinks_the_scale_is_that_of_the_highest_elbo():
    """Of all Gaussians, that with sigma = sqrt(pi / 2) has the highest ELBO for the density exp(-|x|) / 2."""
    found = settled(lambda x: -jnp.sum(jnp.abs(x - LOC)) - DIM * np.log(2.0), scale=0.01)
    sds = np.linalg.norm(found.factor, axis=1)
    np.testing.assert_allclose(sds, np.sqrt(np.pi / 2.0), rtol=0.1)
    np.testing.assert_allclose(found.loc, LOC, atol=0.1)
    # log sigma + (1 + log 2 pi) / 2 - E|x| - log 2, in every dimension.
    highest = DIM * (0.5 * np.log(np.pi / 2.0) + 0.5 * (1.0 + np.log(2.0 * np.pi)) - 1.0 - np.log(2.0))
    assert found.elbo == pytest.approx(highest, abs=0.1)


def test_where_the_density_is_not_finite_the_start_stays():
    found = settled(lambda x: jnp.where(x[0] > 0, -jnp.sum(x**2), jnp.nan))
    assert found.elbo == -1e9
    np.testing.assert_array_equal(found.loc, np.zeros(DIM))


def test_rounds_end_with_the_time():
    clock = iter([0.0, *[9.0] * 20]).__next__
    found = settled(lambda x: -0.5 * jnp.sum((x - LOC) ** 2), Deadline.start(10, clock))
    np.testing.assert_array_equal(found.loc, np.zeros(DIM))
