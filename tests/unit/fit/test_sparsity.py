"""Hessians from a few products are those of all rows; where a guess of the pattern is wrong, all rows are computed."""

import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.fit import sparsity
from bernflow.precision import use_precision
from bernflow.target import Target

NUM = 160


@pytest.fixture(autouse=True)
def _double_precision(monkeypatch):
    monkeypatch.setattr(sparsity, "MIN_GUESSED", 100)
    with use_precision("float64"):
        yield


def walk(x):
    """A random walk with a scale."""
    return -jnp.sum((jnp.diff(x[1:], prepend=0.0) / jnp.exp(x[0])) ** 2) - jnp.sum(jnp.exp(x[1:]))


def far_apart(x):
    """The same with two states that interact across the whole walk, which no row tells that is looked at."""
    return walk(x) - 0.01 * x[30] * x[120]


def test_a_guess_has_all_entries():
    target = Target(bf.from_log_density(walk, init=jnp.zeros(NUM)))
    points = np.random.default_rng(0).normal(size=(2, NUM))
    found, expected = sparsity._guessed(target, points), sparsity._row_by_row(target, points)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.toarray(), other.toarray(), atol=1e-12)


def test_sites_of_groups_are_guessed_by_their_distance():
    def groups(theta):
        scaled = (theta["a"] + 0.1 * theta["b"]) / jnp.exp(theta["s"])
        return -jnp.sum(scaled**2) - jnp.sum(jnp.cosh(theta["b"]))

    init = {"s": jnp.zeros(()), "a": jnp.zeros(NUM), "b": jnp.zeros(NUM)}
    target = Target(bf.from_log_density(groups, init=init))
    points = np.random.default_rng(0).normal(size=(2, target.dim))
    found, expected = sparsity._guessed(target, points), sparsity._row_by_row(target, points)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.toarray(), other.toarray(), atol=1e-12)


def test_a_wrong_guess_is_noticed():
    target = Target(bf.from_log_density(far_apart, init=jnp.zeros(NUM)))
    points = np.random.default_rng(0).normal(size=(2, NUM))
    assert sparsity._guessed(target, points) is None
    assert sparsity.sparse_hessians(target, points)[0][30, 120] == pytest.approx(-0.01)


def test_a_guess_takes_few_products(monkeypatch):
    counts = []
    original = sparsity._products
    monkeypatch.setattr(sparsity, "_products", lambda t, x, d: counts.append(len(d)) or original(t, x, d))
    sparsity.sparse_hessians(
        Target(bf.from_log_density(walk, init=jnp.zeros(NUM))), np.random.default_rng(0).normal(size=(2, NUM))
    )
    assert sum(counts) < 40
