"""One dense block of locals: moments averaged over the block and interpolated between values of the globals."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy import optimize, stats

import bernflow as bf
from bernflow.fit.averages import averaged_moments
from bernflow.fit.conditionals import conditional_moments
from bernflow.fit.dense_start import averaged_design
from bernflow.fit.global_flow import draw_globals
from bernflow.fit.interpolation import fit_interpolant, interpolate
from bernflow.fit.marginal import GlobalGaussian
from bernflow.flows.affine import TriangularAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.dense import DenseConditional
from bernflow.flows.structure import Structure
from bernflow.flows.structured import StructuredBernsteinFlow
from bernflow.keys import as_key
from bernflow.precision import use_precision
from bernflow.target import Target

NUM = 36
DESIGN = np.random.default_rng(0).normal(size=(60, NUM)) / 6.0
OUTCOME = np.random.default_rng(1).normal(size=60) + DESIGN @ np.random.default_rng(2).normal(size=NUM)


@pytest.fixture(autouse=True)
def _double_precision():
    with use_precision("float64"):
        yield


def target_of(log_density, dim):
    return Target(bf.from_log_density(log_density, init=jnp.zeros(dim)))


def components(x):
    """Effects with a standard deviation exp(x[0]), seen with noise of exp(x[1])."""
    effects = x[2:]
    prior = -0.5 * jnp.sum((effects / jnp.exp(x[0])) ** 2) - NUM * x[0] - 0.5 * NUM * np.log(2 * np.pi)
    noise = -0.5 * jnp.sum(((OUTCOME - DESIGN @ effects) / jnp.exp(x[1])) ** 2) - 60 * x[1] - 30 * np.log(2 * np.pi)
    return prior + noise - 0.5 * jnp.sum(x[:2] ** 2)


def exact_marginal(g):
    covariance = np.exp(2 * g[0]) * DESIGN @ DESIGN.T + np.exp(2 * g[1]) * np.eye(60)
    return stats.multivariate_normal(np.zeros(60), covariance).logpdf(OUTCOME) - 0.5 * np.sum(g**2)


def gaussian_at_the_mode(target, structure):
    mode = optimize.minimize(lambda g: -exact_marginal(g), np.zeros(2))
    at = conditional_moments(target, structure, np.concatenate([mode.x, np.zeros(NUM)])[None])
    return GlobalGaussian(mode.x, np.linalg.cholesky(mode.hess_inv), at.x[0], at.locals)


def gaussian_flow(gaussian, at=None):
    return BernsteinFlow(
        as_key(0), TriangularAffine(jnp.asarray(gaussian.loc), jnp.asarray(gaussian.tril)), order=6, width=4
    )


def assert_same_draws(flow, other):
    z = np.random.default_rng(5).normal(size=(20, 2))
    np.testing.assert_allclose(draw_globals(flow, z)[0], draw_globals(other, z)[0], atol=1e-12)


def test_locals_given_globals_are_those_of_a_linear_model():
    structure = Structure(NUM + 2, (0, 1), (tuple(range(2, NUM + 2)),))
    target = target_of(components, NUM + 2)
    gaussian, leaders, averaged = averaged_design(
        target, structure, gaussian_at_the_mode(target, structure), gaussian_flow, np.random.default_rng(0)
    )
    loc, tril = gaussian.loc, gaussian.tril
    flow = StructuredBernsteinFlow(as_key(0), structure, jnp.asarray(loc), jnp.asarray(tril), order=6, width=4)
    assert isinstance(flow.locals, DenseConditional)
    assert_same_draws(leaders, flow.leaders)
    flow = eqx.tree_at(lambda flow: flow.locals, flow, interpolate(flow.locals, gaussian, averaged))
    z = np.asarray(flow.sample_base(as_key(2), 200))
    draw = jax.jit(jax.vmap(flow.transform_and_log_det))
    x, log_det = map(np.asarray, draw(z))
    # The flow of the globals is still their Gaussian: its part of log q is known.
    log_q_globals = stats.multivariate_normal(loc, tril @ tril.T).logpdf(x[:, :2])
    log_q = stats.norm.logpdf(z).sum(1) - log_det
    marginal = np.array([components(point) for point in x]) - (log_q - log_q_globals)
    exact = np.array([exact_marginal(point) for point in x[:, :2]])
    # Where the conditional is exact, p(g, l) / q(l | g) is the marginal, whatever l is.
    assert np.std(marginal - exact) < 0.05
    assert np.mean(marginal - exact) == pytest.approx(0.0, abs=0.01)
    # The Gaussian of the globals has their moments.
    weights = np.exp(exact - log_q_globals - np.max(exact - log_q_globals))
    assert weights.sum() ** 2 / np.sum(weights**2) > 0.9 * len(weights)


@pytest.mark.parametrize(("moved", "is_kept"), [(40.0, False), (0.0, True)])
def test_a_flow_of_the_globals_that_misses_their_marginal_is_replaced_by_the_gaussian(moved, is_kept):
    structure = Structure(NUM + 2, (0, 1), (tuple(range(2, NUM + 2)),))
    target = target_of(components, NUM + 2)
    trained = []

    def flow_of(gaussian, at):
        if at is None:
            return gaussian_flow(gaussian)
        scale = 1.0 if moved else 0.97
        trained.append(gaussian_flow(gaussian._replace(loc=gaussian.loc + moved, tril=scale * gaussian.tril)))
        return trained[-1]

    design = averaged_design(
        target, structure, gaussian_at_the_mode(target, structure), flow_of, np.random.default_rng(0)
    )
    assert len(trained) == 2
    assert_same_draws(design.leaders, trained[-1] if is_kept else gaussian_flow(design.gaussian))
    farthest = np.max(np.abs(design.averaged.moments.x[:, :2] - design.gaussian.loc) / np.diag(design.gaussian.tril))
    assert farthest < 20.0


def test_functions_are_interpolated_between_points():
    random = np.random.default_rng(3)
    u, between = 1.5 * random.normal(size=(36, 2)), random.normal(size=(200, 2))

    def functions(u):
        return np.stack([np.ones(len(u)), np.tanh(0.5 * u[:, 0] - 0.3 * u[:, 1]), np.exp(0.3 * u[:, 1])], 1)

    found = fit_interpolant(u, functions(u))
    errors = found.features(between, np) @ found.weights - functions(between)
    assert np.sqrt(np.mean(errors**2)) < 0.01
    # Far out they stay finite: what they are at the edge.
    far = found.features(np.full((1, 2), 1e6), np) @ found.weights
    np.testing.assert_allclose(far, found.features(found.reach[1:], np) @ found.weights)


def test_averages_give_the_gaussian_of_highest_elbo():
    counts = np.array([0, 0, 1, 1, 2, 3, 5, 8, 13, 1])
    structure = Structure(11, (0,), (tuple(range(1, 11)),))

    def log_density(x):
        return -0.5 * jnp.sum(x**2) + jnp.sum(counts * x[1:] - jnp.exp(x[1:]))

    target = target_of(log_density, 11)
    laplace = conditional_moments(target, structure, np.zeros((1, 11)))
    averaged = averaged_moments(target, structure, laplace, np.random.default_rng(4))
    mean, sd = averaged.moments.mode[0, 0], np.diagonal(averaged.moments.locals.factor[0, 0])
    nodes, weights = hermegauss(40)
    weights = weights / weights.sum()
    for i, count in enumerate(counts):

        def conditions(m_s, count=count):
            x = m_s[0] + m_s[1] * nodes
            return weights @ (count - x - np.exp(x)), weights @ (1.0 + np.exp(x)) - m_s[1] ** -2.0

        best = optimize.root(conditions, [0.0, 0.5]).x
        assert mean[i] == pytest.approx(best[0], abs=0.02)
        assert sd[i] == pytest.approx(best[1], rel=0.02)
        # The mode of the same density is farther away.
        assert abs(mean[i] - best[0]) < 0.5 * abs(laplace.mode[0, 0, i] - best[0])
    # Rates have a longer lower tail on the log scale.
    assert np.all(averaged.skew < -0.02)
