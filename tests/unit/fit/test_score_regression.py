"""Regressions of the score: they find what a flow can represent, and leave an exact flow alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln

import bernflow as bf
from bernflow.diagnostics import importance
from bernflow.fit.deadline import Deadline
from bernflow.fit.score_regression import look, regress_score
from bernflow.fit.skewed import displaced_shapes
from bernflow.flows.structure import Structure
from bernflow.flows.structured import StructuredBernsteinFlow
from bernflow.keys import as_key
from bernflow.precision import use_precision
from bernflow.target import Target

NUM_GLOBALS, NUM_LOCALS = 3, 6
STRUCTURE = Structure(
    NUM_GLOBALS + NUM_LOCALS, tuple(range(NUM_GLOBALS)), tuple((NUM_GLOBALS + i,) for i in range(NUM_LOCALS))
)
RANDOM = np.random.default_rng(3)
SLOPES = RANDOM.normal(size=(NUM_LOCALS, NUM_GLOBALS))
TRIL = np.linalg.cholesky(np.cov(RANDOM.normal(size=(NUM_GLOBALS, 12))) + 0.3 * np.eye(NUM_GLOBALS))
LOC = np.array([0.5, -0.4, 0.3])
SDS = np.array([0.5, 0.7, 0.9, 1.1, 1.4, 1.8])


@pytest.fixture(autouse=True)
def _double_precision():
    with use_precision("float64"):
        yield


def gaussian(x):
    """A density with evidence one: correlated globals, and locals linear in them."""
    g, local = x[:NUM_GLOBALS], x[NUM_GLOBALS:]
    white = jnp.linalg.solve(TRIL, g - LOC)
    z = (local - SLOPES @ g) / SDS
    const = -0.5 * len(x) * np.log(2 * np.pi) - np.sum(np.log(np.diag(TRIL))) - np.sum(np.log(SDS))
    return const - 0.5 * jnp.sum(white**2) - 0.5 * jnp.sum(z**2)


def skewed(x):
    """Logarithms of gamma variates, of shape exp(g) + 4 for locals: skewed, with scales that depend on the globals."""
    g, local = x[:NUM_GLOBALS], x[NUM_GLOBALS:]
    shape = 5.0
    first = jnp.sum(shape * g - jnp.exp(g)) - NUM_GLOBALS * gammaln(shape)
    own = 4.0 + jnp.exp(g[0] - 1.5)
    return first + jnp.sum(own * local - jnp.exp(local) - jax.scipy.special.gammaln(own))


def flow_at(loc, scale, num_neighbors=0):
    tril = jnp.asarray(scale * np.eye(NUM_GLOBALS))
    sizes = {"order": 20, "width": 8, "num_neighbors": num_neighbors}
    return StructuredBernsteinFlow(as_key(0), STRUCTURE, jnp.asarray(loc), tril, **sizes)


def target_of(log_density):
    return Target(bf.from_log_density(log_density, init=jnp.zeros(STRUCTURE.dim)))


def elbo_of(flow, target):
    return importance.elbo(look(flow, target, as_key(99)).log_weights)


def test_a_gaussian_is_found_from_standard_normal_noise():
    flow, target = flow_at(np.zeros(NUM_GLOBALS), 1.0), target_of(gaussian)
    assert elbo_of(flow, target)[0] < -5.0
    found, error = elbo_of(regress_score(flow, target, as_key(1), Deadline.start()), target)
    # Exactly zero; what is left is noise of coefficients: 9 dimensions, some 10 coefficients each, 2,000 draws.
    assert -0.02 < found < 3.0 * error + 1e-6


def test_skewed_noise_and_scales_that_depend_on_globals_are_found():
    flow, target = flow_at(np.full(NUM_GLOBALS, np.log(5.0)), 0.45), target_of(skewed)
    found, error = elbo_of(regress_score(flow, target, as_key(1), Deadline.start()), target)
    assert -0.05 < found < 3.0 * error
    # A Gaussian of the globals alone cannot come as near: each loses about 0.008 nats by its skewness.
    assert elbo_of(flow, target)[0] < -1.0


def test_dependence_on_products_of_globals_is_found():
    def curved(x):
        """Standard normal, with the third global and the locals moved by products of the first two: evidence one."""
        g, local = x[:NUM_GLOBALS], x[NUM_GLOBALS:]
        moved = g.at[2].add(-0.5 * g[0] * g[1]).at[1].add(-0.4 * (g[0] ** 2 - 1.0))
        z = local - 0.3 * g[0] * moved[1]
        return -0.5 * jnp.sum(moved**2) - 0.5 * jnp.sum(z**2) - 0.5 * len(x) * np.log(2 * np.pi)

    target = target_of(curved)
    straight, bent = (flow_at(np.zeros(NUM_GLOBALS), 1.0, num_neighbors=num) for num in (0, 3))
    straight, bent = (regress_score(flow, target, as_key(1), Deadline.start()) for flow in (straight, bent))
    found, error = elbo_of(bent, target)
    assert -0.1 < found < 3.0 * error
    assert elbo_of(straight, target)[0] < found - 0.1


def test_a_chain_depends_on_products_of_its_last_locals_and_its_scales_on_them():
    """The globals are standard normal, the locals move with products of the two before them, or grow with the last."""
    num = 40
    structure = Structure(1 + num, (0,), tuple((1 + i,) for i in range(num)), chained=True)

    def curved(x):
        first, second, third = x[1:-2], x[2:-1], x[3:]
        scale = jnp.exp(0.15 * second)
        white = (third - 0.15 * first * second) / scale
        total = jnp.sum(white**2) + 2.0 * jnp.sum(jnp.log(scale)) + jnp.sum(x[:3] ** 2)
        return -0.5 * total - 0.5 * len(x) * np.log(2 * np.pi)

    target = Target(bf.from_log_density(curved, init=jnp.zeros(structure.dim)))
    elbos = []
    for num_neighbors in (0, 8):
        flow = StructuredBernsteinFlow(
            as_key(0), structure, jnp.zeros(1), jnp.eye(1), order=20, width=8, num_neighbors=num_neighbors
        )
        elbos.append(elbo_of(regress_score(flow, target, as_key(1), Deadline.start()), target))
    (straight, _), (bent, error) = elbos
    # About 0.02 nats in each of 38 locals; nearly all of them are gained.
    assert straight < -0.5
    assert 0.25 * straight < bent < 3.0 * error


def test_an_exact_flow_stays_as_it_is():
    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    flow = flow_at(np.zeros(NUM_GLOBALS), 1.0)
    after = regress_score(flow, target_of(log_density), as_key(1), Deadline.start())
    z = RANDOM.normal(size=STRUCTURE.dim)
    np.testing.assert_allclose(after.transform_and_log_det(z)[0], z, atol=1e-10)


def test_a_density_that_is_not_finite_leaves_the_flow_as_it_is():
    flow = flow_at(np.zeros(NUM_GLOBALS), 1.0)
    target = target_of(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), jnp.nan))
    assert regress_score(flow, target, as_key(1), Deadline.start()) is flow


def test_rounds_end_with_the_time():
    clock = iter([0.0, 7.0, *[9.0] * 20]).__next__
    flow, target = flow_at(np.zeros(NUM_GLOBALS), 1.0), target_of(gaussian)
    assert regress_score(flow, target, as_key(1), Deadline.start(10, clock)) is flow


def test_shapes_are_displaced_as_their_noise():
    flow = flow_at(np.zeros(NUM_GLOBALS), 1.0)
    second, third = np.full(NUM_LOCALS, 0.08), np.full(NUM_LOCALS, -0.01)
    raw, shift = displaced_shapes(np.asarray(flow.locals.raw), second, third, "normal")
    conditional = flow.locals
    conditional = eqx.tree_at(lambda c: c.raw, conditional, jnp.asarray(raw))
    for z in (-1.5, 0.0, 1.0, 2.0):
        value = conditional.shape(jnp.full(NUM_LOCALS, z)).tailed.value + shift
        np.testing.assert_allclose(value, z + 0.08 * (z**2 - 1) - 0.01 * (z**3 - 3 * z), atol=0.01)
