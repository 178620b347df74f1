"""Globals with a scale of their own: found where the exact marginal of the scale has its mode."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

import bernflow as bf
from bernflow.fit.nested import find_nested
from bernflow.flows.structure import Structure
from bernflow.models import as_model
from bernflow.precision import use_precision
from bernflow.target import Target

NUM_ITEMS, NUM_PEOPLE, TRUE_SCALE = 14, 20, 0.5


def test_scales_are_found_with_all_others_integrated_out():
    random = np.random.default_rng(1)
    item, person = TRUE_SCALE * random.normal(size=NUM_ITEMS), random.normal(size=NUM_PEOPLE)
    y = item + person[:, None] + random.normal(size=(NUM_PEOPLE, NUM_ITEMS))

    def log_density(theta):
        s, b, a = theta["s"], theta["b"], theta["a"]
        effects = -0.5 * jnp.sum((b / jnp.exp(s)) ** 2) - NUM_ITEMS * s
        return effects - 0.5 * jnp.sum(a**2) - 0.5 * jnp.sum((y - b - a[:, None]) ** 2) - 0.5 * s**2

    init = {"s": jnp.zeros(()), "b": jnp.zeros(NUM_ITEMS), "a": jnp.zeros(NUM_PEOPLE)}
    first = 1 + NUM_ITEMS
    structure = Structure(first + NUM_PEOPLE, tuple(range(first)), tuple((first + i,) for i in range(NUM_PEOPLE)))

    def moments(s):
        """Mean and covariance of the items given their scale, and the log marginal of that."""
        precision = np.exp(-2 * s) * np.eye(NUM_ITEMS) + NUM_PEOPLE * (np.eye(NUM_ITEMS) - 1 / (NUM_ITEMS + 1))
        covariance = np.linalg.inv(precision)
        potential = (y - y.sum(1, keepdims=True) / (NUM_ITEMS + 1)).sum(0)
        mean = covariance @ potential
        log_marginal = 0.5 * potential @ mean + 0.5 * np.linalg.slogdet(covariance)[1] - NUM_ITEMS * s - 0.5 * s**2
        return mean, covariance, log_marginal

    with use_precision("float64"):
        target = Target(as_model(bf.from_log_density(log_density, init=init), (), {}))
        order = [target.layout.labels().index(name) for name in ("s",)]
        assert order == [0]  # the scale comes first, as the structure says
        found = find_nested(target, structure, np.full((2, structure.dim), 0.5), [0])
    mode = minimize_scalar(lambda s: -moments(s)[2], bounds=(-5, 3), method="bounded").x
    h = 0.05
    sd = (-(moments(mode + h)[2] - 2 * moments(mode)[2] + moments(mode - h)[2]) / h**2) ** -0.5
    assert found.loc[0] == pytest.approx(mode, abs=0.3 * sd)
    assert found.tril[0, 0] == pytest.approx(sd, rel=0.25)
    mean, covariance, _ = moments(found.loc[0])
    np.testing.assert_allclose(found.loc[1:], mean, atol=1e-3)
    joint = found.tril @ found.tril.T
    slope = (moments(mode + h)[0] - moments(mode - h)[0]) / (2 * h)
    np.testing.assert_allclose(
        joint[1:, 1:], covariance + np.outer(slope, slope) * joint[0, 0], atol=0.1 * covariance[0, 0]
    )


def test_two_scales_far_from_each_other_are_found():
    random = np.random.default_rng(2)
    x = random.normal(size=NUM_PEOPLE)
    intercepts, slopes = 6.0 * random.normal(size=NUM_ITEMS), 0.1 * random.normal(size=NUM_ITEMS)
    noise = 0.2 * random.normal(size=(NUM_PEOPLE, NUM_ITEMS))
    y = intercepts + x[:, None] * slopes + random.normal(size=NUM_PEOPLE)[:, None] + noise

    def log_density(theta):
        s, b, c, a = theta["s"], theta["b"], theta["c"], theta["a"]
        effects = sum(-0.5 * jnp.sum((e / jnp.exp(s[i])) ** 2) - NUM_ITEMS * s[i] for i, e in enumerate((b, c)))
        residual = (y - b - x[:, None] * c - a[:, None]) / 0.2
        return effects - 0.5 * jnp.sum(a**2) - 0.5 * jnp.sum(residual**2)

    def minus_log_marginal(s):
        item, person = np.tile(np.eye(NUM_ITEMS), (NUM_PEOPLE, 1)), np.repeat(np.eye(NUM_PEOPLE), NUM_ITEMS, 0)
        by_x = np.repeat(x, NUM_ITEMS)[:, None] * item
        effects = np.exp(2 * s[0]) * item @ item.T + np.exp(2 * s[1]) * by_x @ by_x.T
        covariance = effects + person @ person.T + 0.04 * np.eye(y.size)
        return 0.5 * np.linalg.slogdet(covariance)[1] + 0.5 * y.ravel() @ np.linalg.solve(covariance, y.ravel())

    init = {"s": jnp.zeros(2), "b": jnp.zeros(NUM_ITEMS), "c": jnp.zeros(NUM_ITEMS), "a": jnp.zeros(NUM_PEOPLE)}
    first = 2 + 2 * NUM_ITEMS
    structure = Structure(first + NUM_PEOPLE, tuple(range(first)), tuple((first + i,) for i in range(NUM_PEOPLE)))
    with use_precision("float64"):
        target = Target(as_model(bf.from_log_density(log_density, init=init), (), {}))
        found = find_nested(target, structure, np.full((2, structure.dim), 0.5), [0, 1])
    exact = minimize(minus_log_marginal, [2.0, -2.0]).x
    # Farther apart than shifts of both and one round of parabolas can lead.
    assert exact[0] - exact[1] > 3.0
    np.testing.assert_allclose(found.loc[:2], exact, atol=0.1)
