"""One contract for every flow, and the laws of the Bernstein polynomial."""

import functools
import gc
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import trapezoid

from bernflow.flows import FAMILIES
from bernflow.flows.affine import DiagonalAffine, LowRankAffine, TriangularAffine
from bernflow.flows.autoregressive import FIRST_INCREMENT, BernsteinFlow
from bernflow.flows.base import AbstractFlow, AbstractScoredFlow, Fixed
from bernflow.flows.bend import Coefficients
from bernflow.flows.bernstein import (
    basis,
    centered_polynomial,
    centered_terms,
    centering,
    increments,
    increments_by_raw,
    inverse_increments,
    invert_centered,
    log_slope_by_t,
)
from bernflow.flows.dense import DenseConditional
from bernflow.flows.external import named_flow
from bernflow.flows.factors import LowRankFactor
from bernflow.flows.families import Spec, build
from bernflow.flows.mixture import Mixture
from bernflow.flows.noise import NOISES
from bernflow.flows.paper import BOUND, PaperFlow
from bernflow.flows.structure import Structure
from bernflow.flows.structured import StructuredBernsteinFlow
from bernflow.flows.tails import POWER_UNIT, apply_tails, invert_tails
from bernflow.flows.views import View
from bernflow.flows.wide import WideBernsteinFlow

ORDER, WIDTH = 7, 6
NUM_DRAWS = 40


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _free_compiled_functions_of_other_tests(request, _test_that_compiled):
    """Forget what another test compiled for all flows: all together hold more mappings of memory than Linux grants."""
    if _test_that_compiled[-1:] != [request.function]:
        _test_that_compiled[:] = [request.function]
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="module")
def _test_that_compiled():
    return []


def start(dim):
    """A correlated Gaussian to start from."""
    rng = np.random.default_rng(dim)
    tril = np.tril(0.3 * rng.normal(size=(dim, dim)), -1) + np.diag(0.5 + rng.uniform(size=dim))
    return jnp.asarray(rng.normal(size=dim)), jnp.asarray(tril)


def perturbed(flow, seed, amount=0.2):
    """Move everything that is trained; what the start has fixed stays."""
    rng = np.random.default_rng(seed)

    def move(path, leaf):
        if not eqx.is_inexact_array(leaf) or "start_" in jax.tree_util.keystr(path):
            return leaf
        return leaf + jnp.asarray(amount * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(move, flow, is_leaf=lambda part: isinstance(part, Fixed))


def family(name, dim, *, noise="normal", **options):
    spec = Spec(dim=dim, order=ORDER, noise=noise, width=WIDTH, num_scales=options.pop("num_scales", 0))

    def make(seed):
        return perturbed(FAMILIES[name].build(jax.random.key(seed), spec, *start(dim), **options), seed)

    return make


def rival(name, dim):
    """A flow of flowjax; its ten or eight layers multiply what is moved."""

    def make(seed):
        pytest.importorskip("flowjax")
        return perturbed(named_flow(jax.random.key(seed), name, dim), seed, amount=0.05)

    return make


def structured(dim, order=ORDER, **structure):
    """The Bernstein flow with a part of its structure changed."""

    def make(seed):
        outer = TriangularAffine(*start(dim))
        return perturbed(BernsteinFlow(jax.random.key(seed), outer, order=order, width=WIDTH, **structure), seed)

    return make


def wide(dim, context, noise="normal"):
    """The Bernstein flow for many dimensions, with few of them."""

    def make(seed):
        outer = TriangularAffine(*start(dim))
        sizes = {"order": ORDER, "width": WIDTH, "context": context, "noise": noise}
        return perturbed(WideBernsteinFlow(jax.random.key(seed), outer, **sizes), seed)

    return make


def rotated(dim, context):
    """The same with followers along other axes."""

    def make(seed):
        axes, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim - context, dim - context)))
        return wide(dim, context)(seed).with_rotation(axes)

    return make


def low_rank_factor(dim, border, rank):
    """A factor whose leading dimensions are correlated with all others."""
    rng = np.random.default_rng(dim)
    basis, _ = np.linalg.qr(rng.normal(size=(dim - border, rank)))
    coupling, scale = 0.3 * rng.normal(size=(dim - border, border)), 0.5 + rng.uniform(size=dim - border)
    parts = start(border)[1], coupling, scale, basis, rng.uniform(-0.5, 2.0, size=rank)
    return LowRankFactor(*map(jnp.asarray, parts))


def very_wide(dim, context, border, rank):
    """The Bernstein flow for very many dimensions, with few of them."""

    def make(seed):
        outer = LowRankAffine(start(dim)[0], low_rank_factor(dim, border, rank))
        return perturbed(
            WideBernsteinFlow(jax.random.key(seed), outer, order=ORDER, width=WIDTH, context=context), seed
        )

    return make


def with_natural_parameters(flow, rng):
    """Positive precisions, links and potentials that depend on the globals by three atoms."""
    part, inside = flow.locals, flow.structure.is_member
    num, size = inside.shape
    both = inside[:, :, None] & inside[:, None, :]
    factor = np.where(both, 0.3 * rng.normal(size=(3, num, size, size)), 0.0)
    precision = np.array(part.precision.value)
    precision[:3] += factor @ np.swapaxes(factor, -1, -2)
    link = None if part.link is None else np.array(part.link.value)
    if link is not None:
        # Precision and links are those of F F^T, with a second diagonal of blocks in F.
        below = 0.3 * rng.normal(size=(3, num - 1, size, size)) * inside[1:, :, None] * inside[:-1, None, :]
        precision[:3, 1:] += below @ np.swapaxes(below, -1, -2)
        link[:3, 1:] += below @ np.swapaxes(factor[:, :-1], -1, -2)
    potential = np.array(part.potential.value)
    potential[:3] += np.where(inside, rng.normal(size=(3, num, size)), 0.0)
    factors = np.array(part.atoms.value.factors)
    factors[1:3] = [(1, 0, 0), (2, 0, 0)] if flow.structure.num_leaders < 2 else [(1, 0, 0), (2, 14, 0)]
    atoms = eqx.tree_at(lambda atoms: atoms.factors, part.atoms.value, jnp.asarray(factors))
    new = {"atoms": atoms, "precision": jnp.asarray(precision), "potential": jnp.asarray(potential)}
    if link is not None:
        new["link"] = jnp.asarray(link)
    places = lambda flow: [getattr(flow.locals, name) for name in new]  # noqa: E731
    return eqx.tree_at(places, flow, [Fixed(value) for value in new.values()])


def with_interpolated_moments(flow, rng):
    """Mean and factor of a dense block that depend on the globals by interpolated functions."""
    part = flow.locals
    sizes = {"mean": 0.3, "log_diagonal": 0.1, "columns": 0.05}
    new = {name: scale * rng.normal(size=getattr(part, name).value.shape) for name, scale in sizes.items()}
    # Row i of column j is below the diagonal.
    new["columns"] *= np.triu(np.ones(new["columns"].shape[1:]), 1)
    new["center"], new["factor"] = map(np.asarray, start(flow.structure.num_locals))
    new["inverse"] = np.linalg.inv(new["factor"])
    old = part.functions.value
    functions = eqx.tree_at(
        lambda old: [old.points, old.weights],
        old,
        [rng.normal(size=old.points.shape), 0.1 * rng.normal(size=old.weights.shape)],
    )
    new = {"functions": jax.tree.map(jnp.asarray, functions)} | {name: jnp.asarray(new[name]) for name in new}
    places = lambda flow: [getattr(flow.locals, name) for name in new]  # noqa: E731
    return eqx.tree_at(places, flow, [Fixed(value) for value in new.values()])


def with_products(flow, rng):
    """Let noise depend on products of earlier noise, if the flow has them."""
    if flow.bend is None:
        return flow
    num = flow.bend.num_neighbors
    # As many different earlier coordinates as there are; coefficients of the others are zero.
    near = np.array([np.resize(np.append(rng.permutation(i)[:num], np.zeros(num)), num) for i in range(flow.dim)], int)
    is_used = np.arange(num) < np.arange(flow.dim)[:, None]
    quadratic = np.tril(0.1 * rng.normal(size=(flow.dim, num, num))) * is_used[:, :, None] * is_used[:, None]
    found = Coefficients(near, quadratic, 0.1 * rng.normal(size=(flow.dim, num)) * is_used)
    return eqx.tree_at(lambda f: f.bend, flow, flow.bend.adding(found))


def hierarchical(structure, noise="normal", **coordinates):
    """The Bernstein flow of a hierarchical posterior, with few dimensions."""

    def make(seed):
        sizes = {"order": ORDER, "width": WIDTH, "noise": noise, **coordinates}
        flow = StructuredBernsteinFlow(jax.random.key(seed), structure, *start(structure.num_leaders), **sizes)
        is_dense = isinstance(flow.locals, DenseConditional)
        with_moments = with_interpolated_moments if is_dense else with_natural_parameters
        flow = with_products(with_moments(flow, np.random.default_rng(seed)), np.random.default_rng(seed))
        return perturbed(flow, seed, amount=0.1)

    return make


def mixture(dim):
    def make(seed):
        parts = (family("bernstein", dim)(seed), family("gaussian-fullrank", dim)(seed + 1))
        return Mixture(parts, jnp.log(jnp.array([0.3, 0.7])))

    return make


@dataclass(frozen=True)
class Case:
    """A constructor, the family whose contract it is under, how far its noise may go, and what it cannot do."""

    family: str
    dim: int
    make: Callable
    reach: float = 12.0
    triangular: bool = True
    invertible: bool = True


CASES = {
    "bernstein-1": Case("bernstein", 1, family("bernstein", 1)),
    "bernstein-logistic-1": Case("bernstein", 1, family("bernstein", 1, noise="logistic"), 24.0),
    # Farther out random dimensions of heavy tails span more digits than there are.
    **{f"bernstein-{p}": Case("bernstein", p, family("bernstein", p), 8.0) for p in (2, 5)},
    **{f"bernstein-logistic-{p}": Case("bernstein", p, family("bernstein", p, noise="logistic"), 12.0) for p in (2, 5)},
    "bernstein-no-skip-2": Case("bernstein", 2, structured(2, skip=False)),
    "bernstein-bounded-2": Case("bernstein", 2, structured(2, bounded=True), 6.0),
    "bernstein-order-1-2": Case("bernstein", 2, structured(2, order=1)),
    # Farther out the scales of five random followers span more digits than there are.
    "bernstein-wide-2": Case("bernstein", 2, wide(2, 1)),
    "bernstein-wide-5": Case("bernstein", 5, wide(5, 2), 5.0),
    "bernstein-rotated-4": Case("bernstein", 4, rotated(4, 2), 5.0, triangular=False),
    "bernstein-wide-logistic-5": Case("bernstein", 5, wide(5, 3, noise="logistic"), 8.0),
    "bernstein-very-wide-2": Case("bernstein", 2, very_wide(2, 1, 1, 1)),
    "bernstein-very-wide-6": Case("bernstein", 6, very_wide(6, 2, 2, 2), 5.0, triangular=False),
    "bernstein-bent-2": Case(
        "bernstein", 2, hierarchical(Structure(2, (1,), ((0,),)), num_neighbors=1), 6.0, triangular=False
    ),
    "bernstein-bent-6": Case(
        "bernstein", 6, hierarchical(Structure(6, (2, 3), ((0, 4), (1,), (5,))), num_neighbors=3), 4.0, triangular=False
    ),
    "bernstein-locals-2": Case("bernstein", 2, hierarchical(Structure(2, (1,), ((0,),))), 5.0, triangular=False),
    "bernstein-blocks-6": Case(
        "bernstein", 6, hierarchical(Structure(6, (2, 3), ((0, 4), (1,), (5,)))), 4.0, triangular=False
    ),
    "bernstein-dense-9": Case(
        "bernstein", 9, hierarchical(Structure(9, (8,), (tuple(range(8)),))), 3.0, triangular=False
    ),
    "bernstein-interpolated-11": Case(
        "bernstein", 11, hierarchical(Structure(11, (3, 7), ((0, 1, 2, 4, 5, 6, 8, 9, 10),))), 3.0, triangular=False
    ),
    "bernstein-chain-5": Case(
        "bernstein", 5, hierarchical(Structure(5, (0,), ((1, 2), (3, 4)), chained=True)), 4.0, triangular=False
    ),
    "bernstein-chain-logistic-4": Case(
        "bernstein",
        4,
        hierarchical(Structure(4, (3,), ((2,), (0,), (1,)), chained=True), noise="logistic"),
        5.0,
        triangular=False,
    ),
    # Views of the globals, and locals on intervals, of which one stands where its coordinate becomes linear.
    "bernstein-views-5": Case(
        "bernstein",
        5,
        hierarchical(
            Structure(5, (0, 1), ((2, 3), (4,))),
            views=(View("log-interval", (0,), 0.0, 10.0), View("ordered", (0, 1))),
            bounded=(0, 2),
        ),
        4.0,
        triangular=False,
    ),
    "bernstein-meanfield-2": Case("bernstein-meanfield", 2, family("bernstein-meanfield", 2)),
    "paper-1": Case("bernstein-paper", 1, family("bernstein-paper", 1), 6.0),
    "paper-2": Case("bernstein-paper", 2, family("bernstein-paper", 2), 6.0),
    "paper-scale-2": Case("bernstein-paper", 2, family("bernstein-paper", 2, num_scales=1), 6.0),
    "paper-f1-1": Case("bernstein-paper", 1, family("bernstein-paper", 1, variant="f1"), 6.0),
    "paper-f1-2": Case("bernstein-paper", 2, family("bernstein-paper", 2, variant="f1"), 6.0),
    "paper-f2-2": Case("bernstein-paper", 2, family("bernstein-paper", 2, variant="f2"), 6.0),
    "paper-f3-2": Case("bernstein-paper", 2, family("bernstein-paper", 2, variant="f3"), 0.0),
    "gaussian-2": Case("gaussian", 2, family("gaussian", 2)),
    "gaussian-fullrank-1": Case("gaussian-fullrank", 1, family("gaussian-fullrank", 1)),
    "gaussian-fullrank-5": Case("gaussian-fullrank", 5, family("gaussian-fullrank", 5)),
    "student-t-2": Case("student-t", 2, family("student-t", 2), 1e3),
    "planar-1": Case("planar", 1, rival("planar", 1), 4.0, triangular=False, invertible=False),
    "planar-3": Case("planar", 3, rival("planar", 3), 4.0, triangular=False, invertible=False),
    "realnvp-2": Case("realnvp", 2, rival("realnvp", 2), 4.0, triangular=False),
    "realnvp-5": Case("realnvp", 5, rival("realnvp", 5), 4.0, triangular=False),
    "mixture-1": Case("mixture", 1, mixture(1)),
    "mixture-2": Case("mixture", 2, mixture(2)),
}
FLOWS = [name for name, case in CASES.items() if case.family != "mixture"]
INVERTIBLE = [name for name, case in CASES.items() if case.invertible]


@functools.cache
def quickly_compiled(function):
    """Compile with little effort: what is evaluated once takes far longer to compile than to run."""
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return eqx.filter_jit(function, compiler_options=options)


def flow_of(name):
    return CASES[name].make(zlib.crc32(name.encode()) % 1000)


def noise_of(name, flow, num=NUM_DRAWS):
    """Base noise, and noise as far out as the flow must go."""
    z = np.asarray(flow.sample_base(jax.random.key(1), num))
    reach = CASES[name].reach
    if not reach:
        return np.clip(np.concatenate([z, z]), 2 * BOUND, 1 - 2 * BOUND)
    far = np.random.default_rng(2).uniform(-reach, reach, (num, flow.dim))
    return np.concatenate([z, far])


def noise_grid(name, num):
    """A grid over all of the noise, dense in the middle."""
    reach = CASES[name].reach
    if not reach:
        return np.linspace(BOUND, 1 - BOUND, num)
    u = np.linspace(-1, 1, num)
    return reach * np.sinh(5 * u) / np.sinh(5)


@pytest.mark.parametrize("name", [name for name in FLOWS if CASES[name].family != "bernstein-paper"])
def test_mirrored_noise_is_as_likely(name):
    flow = flow_of(name)
    z = flow.sample_base(jax.random.key(3), 5)
    np.testing.assert_allclose(flow.mirror(flow.mirror(z)), z, rtol=1e-12)
    density = jax.vmap(flow.base_log_prob)
    np.testing.assert_allclose(density(flow.mirror(z)), density(z), rtol=1e-9)


def test_every_family_is_under_the_contract():
    assert set(FAMILIES) <= {case.family for case in CASES.values()}


@dataclass(frozen=True)
class Forward:
    """A flow at all points of noise that the tests look at; one compilation for all of them."""

    flow: AbstractFlow
    z: np.ndarray
    x: np.ndarray
    log_det: np.ndarray
    jacobian: np.ndarray
    score: np.ndarray | None
    exact_score: np.ndarray | None


@functools.cache
def forward(name):
    flow = flow_of(name)
    z = np.concatenate([noise_of(name, flow), *grids_of(name, flow)])

    @quickly_compiled
    def evaluate(flow, z):
        def one(z):
            x, log_det = flow.transform_and_log_det(z)
            jacobian = jax.jacobian(lambda u: flow.transform_and_log_det(u)[0])(z)
            if not isinstance(flow, AbstractScoredFlow):
                return x, log_det, jacobian
            gradient = jax.grad(lambda u: flow.base_log_prob(u) - flow.transform_and_log_det(u)[1])(z)
            return x, log_det, jacobian, flow.score(z), jnp.linalg.solve(jacobian.T, gradient)

        return jax.vmap(one)(z)

    values = [np.asarray(leaf) for leaf in evaluate(flow, z)]
    return Forward(flow, z, *values, *[None] * (5 - len(values)))


def grids_of(name, flow):
    """For every dimension, a grid of its own noise with the others fixed."""
    grid = noise_grid(name, 401)
    fixed = np.asarray(flow.sample_base(jax.random.key(3), 1))[0]
    grids = []
    for j in range(flow.dim):
        z = np.tile(fixed, (len(grid), 1))
        z[:, j] = grid
        grids.append(z)
    return grids


@dataclass(frozen=True)
class Backward:
    """Inverse and log density at all points that the tests look at; one compilation for all of them."""

    noise: tuple[np.ndarray, np.ndarray] | None
    log_q: np.ndarray
    log_q_nearby: np.ndarray
    log_q_grid: np.ndarray
    axes: list[np.ndarray]


STEP = 1e-5
NUM_NEARBY = 10


@functools.cache
def backward(name):
    q = flow_of(name)
    x = forward(name).x[: 2 * NUM_DRAWS] if name in FLOWS else np.zeros((2 * NUM_DRAWS, q.dim))
    shifts = STEP * np.concatenate([np.eye(q.dim), -np.eye(q.dim)])
    nearby = (x[:NUM_NEARBY, None, :] + shifts).reshape(-1, q.dim)
    axes = axes_of(q) if q.dim <= 2 else []
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, q.dim) if axes else np.zeros((0, q.dim))

    @quickly_compiled
    def evaluate(q, x):
        inverse = jax.vmap(q.inverse_and_log_det)(x) if isinstance(q, AbstractFlow) else None
        return inverse, q.log_prob(x)

    inverse, log_q = jax.tree.map(np.asarray, evaluate(q, np.concatenate([x, nearby, grid])))
    if inverse is not None:
        inverse = tuple(leaf[: len(x)] for leaf in inverse)
    parts = np.split(log_q, [len(x), len(x) + len(nearby)])
    return Backward(inverse, *parts, axes)


def axes_of(q):
    """Axes of a grid that holds 20,000 draws and half as much again, dense where the mass is, however far it goes."""
    x = np.asarray(eqx.filter_jit(lambda q, key: q.sample_and_log_prob(key, 20_000))(q, jax.random.key(5))[0])
    u = np.linspace(-1, 1, {1: 4001, 2: 241}[q.dim])
    axes = []
    for column in x.T:
        middle = np.median(column)
        distance = np.abs(column - middle)
        near = np.median(distance)
        axes.append(middle + near * np.sinh(u * np.arcsinh(1.5 * np.max(distance) / near)))
    return axes


@pytest.mark.parametrize("name", [name for name in FLOWS if name.startswith("bernstein") and "paper" not in name])
def test_the_gradient_that_is_told_is_that_of_automatic_differentiation(name):
    flow, rng = flow_of(name), np.random.default_rng(4)
    z = flow.sample_base(jax.random.key(6), 20)
    covector = rng.normal(size=z.shape)

    @quickly_compiled
    def gradient(method):
        found = eqx.filter_grad(lambda flow: jnp.sum(covector * jax.vmap(getattr(flow, method))(z)[0]))(flow)
        return jax.tree_util.tree_leaves_with_path(eqx.filter(found, eqx.is_array))

    exact, value_with_derivatives = gradient("transform_and_log_det"), gradient("transform_and_score")
    for (path, values), (_, others) in zip(exact, value_with_derivatives, strict=True):
        if ".bend." in jax.tree_util.keystr(path):  # not trained: it moves noise, which counts as data
            continue
        size = 1e-12 + np.max(np.abs(values))
        np.testing.assert_allclose(others / size, values / size, atol=1e-9, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", FLOWS)
def test_log_determinant(name):
    at = forward(name)
    sign, exact = np.linalg.slogdet(at.jacobian)
    # Permutations may change the orientation, but everywhere in the same way.
    np.testing.assert_array_equal(sign, 1.0 if CASES[name].triangular else sign[0])
    np.testing.assert_allclose(at.log_det, exact, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in FLOWS if name in INVERTIBLE])
def test_round_trip(name):
    at = forward(name)
    z, inverse_log_det = backward(name).noise
    np.testing.assert_allclose(z, at.z[: len(z)], atol=1e-5, rtol=1e-8)
    np.testing.assert_allclose(inverse_log_det, -at.log_det[: len(z)], atol=1e-5)
    log_q = jax.vmap(at.flow.base_log_prob)(at.z[: len(z)]) - at.log_det[: len(z)]
    np.testing.assert_allclose(backward(name).log_q, log_q, atol=1e-5, rtol=1e-8)


@pytest.mark.parametrize("name", [name for name in FLOWS if CASES[name].triangular])
def test_every_dimension_is_strictly_increasing_in_its_own_noise(name):
    at = forward(name)
    for j, x in enumerate(at.x[2 * NUM_DRAWS :].reshape(at.flow.dim, -1, at.flow.dim)):
        assert np.all(np.diff(x[:, j]) > 0)
        # The map is autoregressive: earlier dimensions do not know of this one.
        # Up to rounding, which may differ between the lanes of a vectorized loop.
        np.testing.assert_allclose(x[:, :j], np.broadcast_to(x[:1, :j], x[:, :j].shape), rtol=1e-13)


@pytest.mark.parametrize("name", [n for n in FLOWS if CASES[n].family not in ("bernstein-paper", "planar", "realnvp")])
def test_score(name):
    at = forward(name)
    np.testing.assert_allclose(at.score, at.exact_score, rtol=1e-8, atol=1e-8)
    log_q = backward(name).log_q_nearby.reshape(NUM_NEARBY, 2, at.flow.dim)
    numeric = (log_q[:, 0] - log_q[:, 1]) / (2 * STEP)
    np.testing.assert_allclose(numeric, at.score[:NUM_NEARBY], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in INVERTIBLE if CASES[name].dim <= 2])
def test_density_integrates_to_one(name):
    at = backward(name)
    density = np.exp(at.log_q_grid).reshape([len(axis) for axis in at.axes])
    for axis in reversed(at.axes):
        density = trapezoid(density, axis)
    assert density == pytest.approx(1.0, abs=1e-4 if len(at.axes) == 1 else 2e-3)


# In double precision the round trip tells the same of the flows.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in CASES), ("bernstein-2", "float64"), ("mixture-2", "float64")],
)
def test_log_prob_at_own_draws_in_both_precisions(name, dtype):
    q = jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, flow_of(name))

    @eqx.filter_jit
    def evaluate(q, key):
        x, log_q = q.sample_and_log_prob(key, 500)
        return x, log_q, q.log_prob(x) if CASES[name].invertible else log_q

    with jax.enable_x64(dtype == "float64"):
        x, log_q, again = evaluate(q, jax.random.key(4))
    assert x.shape == (500, q.dim)
    for values in (x, log_q, again):
        assert values.dtype == dtype
        assert np.isfinite(values).all()
    # In single precision the inverse is good to a few digits where the flow is steep.
    np.testing.assert_allclose(again, log_q, atol={"float32": 5e-2, "float64": 1e-5}[dtype])


@pytest.mark.parametrize("name", CASES)
def test_recipe_rebuilds_the_structure(name):
    q = flow_of(name)
    other = build(json.loads(json.dumps(q.recipe())))
    assert jax.tree.structure(other) == jax.tree.structure(q)
    arrays, expected = (jax.tree.leaves(eqx.filter(flow, eqx.is_array)) for flow in (other, q))
    assert [(leaf.shape, leaf.dtype) for leaf in arrays] == [(leaf.shape, leaf.dtype) for leaf in expected]


@pytest.mark.parametrize("name", ["bernstein", "gaussian-fullrank"])
def test_a_new_flow_is_the_gaussian_that_it_starts_from(name):
    loc, tril = start(3)
    spec = Spec(dim=3, order=20, noise="normal", width=WIDTH)
    flow = FAMILIES[name].build(jax.random.key(0), spec, loc, tril)
    z = np.random.default_rng(0).uniform(-10, 10, (200, 3))
    x, log_det = jax.vmap(flow.transform_and_log_det)(z)
    np.testing.assert_allclose(x, loc + z @ tril.T, atol=1e-6)
    np.testing.assert_allclose(log_det, np.sum(np.log(np.diagonal(tril))), atol=1e-6)


@pytest.mark.parametrize("name", ["bernstein-meanfield", "gaussian"])
def test_a_new_mean_field_flow_has_the_conditional_scales_of_its_start(name):
    loc, tril = start(3)
    spec = Spec(dim=3, order=20, noise="normal", width=WIDTH)
    flow = FAMILIES[name].build(jax.random.key(0), spec, loc, tril)
    conditional = 1 / np.sqrt(np.diagonal(np.linalg.inv(tril @ tril.T)))
    z = np.random.default_rng(0).uniform(-10, 10, (50, 3))
    np.testing.assert_allclose(jax.vmap(flow.transform_and_log_det)(z)[0], loc + z * conditional, atol=1e-6)


def test_a_new_flow_of_logistic_noise_is_nearly_normal():
    flow = BernsteinFlow(
        jax.random.key(0), DiagonalAffine(jnp.zeros(1), jnp.ones(1)), order=20, width=0, noise="logistic"
    )
    x = np.linspace(-2.5, 2.5, 101)[:, None]
    exact = -0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(flow.log_prob(x), exact, atol=0.25)


def test_a_new_flow_of_many_dimensions_is_its_start():
    loc, tril = start(70)
    spec = Spec(dim=70, order=20, noise="normal", width=WIDTH)
    flow = FAMILIES["bernstein"].build(jax.random.key(0), spec, loc, tril)
    assert isinstance(flow, WideBernsteinFlow)
    # Beyond four standard deviations the polynomials go on as straight lines.
    z = np.random.default_rng(0).uniform(-10, 10, (50, 70))
    x, log_det = jax.jit(jax.vmap(flow.transform_and_log_det))(z)
    np.testing.assert_allclose(x, loc + z @ tril.T, atol=1e-5)
    np.testing.assert_allclose(log_det, np.sum(np.log(np.diagonal(tril))), atol=1e-5)


@jax.jit
def tails_and_inverse(tails, u):
    """Return what `apply_tails` says, the same by automatic differentiation, and u again."""
    tailed = apply_tails(tails, u)
    slope, by_u = (
        jax.grad(lambda u: apply_tails(tails, u).value)(u),
        jax.grad(lambda u: apply_tails(tails, u).log_slope)(u),
    )
    return tailed, (jnp.log(slope), by_u), invert_tails(tails, tailed.value)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(-0.5, 5.0), st.floats(-0.5, 5.0), st.floats(-50, 50))
def test_tails_invert(left, right, left_power, right_power, u):
    assume(min(abs(abs(u) - 8.0), abs(u)) > 1e-6)  # where a second derivative jumps, there are two of them
    tailed, (log_slope, by_u), back = tails_and_inverse(jnp.array([left, right, left_power, right_power]), u)
    assert back == pytest.approx(u, rel=1e-9, abs=1e-9)
    assert tailed.log_slope == pytest.approx(float(log_slope), abs=1e-9)
    assert tailed.log_slope_by_u == pytest.approx(float(by_u), abs=1e-7)


def test_zero_weights_are_the_identity_and_others_make_exponential_tails():
    u = jnp.linspace(-30.0, 30.0, 61)
    np.testing.assert_allclose(apply_tails(jnp.zeros(4), u).value, u, atol=1e-10)
    # The raw weight whose d is 2: far out the map is a parabola, which makes normal tails exponential.
    raw = 1.5 * np.arctanh(np.log(2.0) / 1.5)
    far = jnp.array([100.0, 200.0])
    assert np.log2(np.divide(*apply_tails(jnp.array([0.0, raw, 0.0, 0.0]), far).value[::-1])) == pytest.approx(
        2.0, abs=1e-3
    )


@pytest.mark.parametrize("freedom", [3.0, 10.0])
def test_tails_of_a_power_are_those_of_a_student_t(freedom):
    # From 3 to 6 standard deviations of the noise a quantile of the Student-t grows by the same factor, up to the
    # power 1 / nu of z that the ratio of both tails leaves.
    z = np.array([3.0, 6.0])
    exact = np.diff(np.log(-stats.t(freedom).ppf(stats.norm.sf(z))))
    ours = np.diff(np.log(apply_tails(jnp.array([0.0, 0.0, 0.0, 1.0 / freedom / POWER_UNIT]), jnp.asarray(z)).value))
    assert exact - ours == pytest.approx(-np.log(2.0) * (1.0 - 1.0 / freedom), abs=0.25)


@pytest.mark.parametrize("order", [1, 2, 20])
def test_order_is_the_order_of_the_polynomial(order):
    outer = DiagonalAffine(jnp.zeros(2), jnp.ones(2))
    flow = BernsteinFlow(jax.random.key(0), outer, order=order, width=WIDTH)
    assert flow.order == order
    assert flow.bias[:, FIRST_INCREMENT:].shape == (2, order)
    assert centering(order).shape == (order, order + 1)
    paper = PaperFlow(jax.random.key(0), 2, order=order)
    assert paper.order == order
    assert paper.bias.shape == (2, order + 1)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_differences_vanish_from_the_order_on(order):
    raw = jnp.asarray(np.random.default_rng(order).normal(size=order))
    t = np.linspace(0.05, 0.95, 12)
    value = np.asarray(centered_polynomial(jnp.broadcast_to(increments(raw), (12, order)), jnp.asarray(t))[0])
    assert np.max(np.abs(np.diff(value, order))) > 1e-6
    np.testing.assert_allclose(np.diff(value, order + 1), 0.0, atol=1e-12)


def test_equally_spaced_coefficients_are_the_identity():
    t = jnp.linspace(-2.0, 3.0, 101)
    value, slope = centered_polynomial(jnp.full((101, 20), 1 / 20), t)
    np.testing.assert_allclose(value, t - 0.5, atol=1e-10)
    np.testing.assert_allclose(slope, 1.0, atol=1e-10)


def test_increments_grow_with_their_raw_values():
    raw = jnp.array([-40.0, -2.0, 0.0, 0.3, 50.0])
    np.testing.assert_allclose(increments_by_raw(raw), jax.nn.sigmoid(raw), rtol=1e-12)


def test_inverse_increments():
    step = np.array([1e-3, 0.1, 1.0, 30.0])
    np.testing.assert_allclose(increments(jnp.asarray(inverse_increments(step))), step, rtol=1e-10)


@pytest.mark.parametrize("noise", NOISES)
def test_start_of_the_noise_has_one_coefficient_more_than_its_order(noise):
    assert NOISES[noise].start(9).shape == (10,)
    assert np.all(np.diff(NOISES[noise].start(9)) > 0)


# Hypothesis: laws of the polynomial for any coefficients. A handful of orders, since each is compiled.
raw_increments = st.sampled_from([1, 2, 6, 20]).flatmap(
    lambda order: st.lists(st.floats(-5, 5), min_size=order, max_size=order).map(np.array)
)
value_and_slope = jax.jit(
    lambda raw, t: centered_polynomial(jnp.broadcast_to(increments(raw), (*t.shape, *raw.shape)), t)
)
autodiff = jax.jit(lambda raw, t: jax.vmap(jax.grad(lambda u: centered_polynomial(increments(raw), u)[0]))(t))
slope_bends = jax.jit(
    jax.vmap(lambda raw, u: log_slope_by_t(increments(raw), centered_terms(len(raw), u), u), (None, 0))
)
log_slope_bends = jax.jit(
    jax.vmap(jax.grad(lambda u, raw: jnp.log(centered_polynomial(increments(raw), u)[1])), (0, None))
)
inverse = jax.jit(lambda raw, y: invert_centered(jnp.broadcast_to(increments(raw), (*y.shape, *raw.shape)), y))
LAWS = settings(deadline=None, max_examples=60, derandomize=True)
GRID = np.concatenate([np.linspace(-2, 0, 20), np.linspace(0, 1, 201)[1:-1], np.linspace(1, 3, 20)])


def law(test):
    """Run a law in double precision: hypothesis runs its examples inside the test's own fixtures."""
    return LAWS(given(raw=raw_increments)(test))


@law
def test_law_increasing(raw):
    value, slope = value_and_slope(raw, GRID)
    assert np.all(np.diff(value) > 0)
    assert np.all(np.asarray(slope) > 0)


@law
def test_law_the_slope_bends_as_autodiff_says(raw):
    inside = GRID[20:-20:10]
    np.testing.assert_allclose(slope_bends(raw, inside), log_slope_bends(inside, raw), rtol=1e-6, atol=1e-7)
    assert not np.any(slope_bends(raw, GRID[:19]))


@law
def test_law_zero_at_the_middle(raw):
    value, _ = value_and_slope(raw, np.array([0.5]))
    assert abs(value[0]) < 1e-11 * (1 + np.sum(np.abs(raw)))


@law
def test_law_slope_is_the_derivative(raw):
    # At the edges themselves, too, where a power of zero would make it no number.
    np.testing.assert_allclose(value_and_slope(raw, GRID)[1], autodiff(raw, GRID), rtol=1e-7, atol=1e-9)


@law
def test_law_continuous_at_the_edges(raw):
    around = np.array([-1e-11, 0.0, 1e-11, 1 - 1e-11, 1.0, 1 + 1e-11])
    value, slope = map(np.asarray, value_and_slope(raw, around))
    for part in (value, slope):
        for side in (part[:3], part[3:]):
            np.testing.assert_allclose(side, side[1], atol=1e-5, rtol=1e-6)


@law
def test_law_inverse(raw):
    value, _ = value_and_slope(raw, GRID)
    np.testing.assert_allclose(inverse(raw, value), GRID, atol=1e-7)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(t=st.floats(1e-9, 1 - 1e-9), degree=st.sampled_from([0, 1, 7, 50, 150]))
def test_law_basis_is_a_partition_of_unity(t, degree):
    b = np.asarray(basis(jnp.asarray(t, jnp.float64), degree))
    assert b.shape == (degree + 1,)
    assert np.all(b >= 0)
    assert b.sum() == pytest.approx(1.0, abs=1e-11)
    assert b @ np.arange(degree + 1) == pytest.approx(degree * t, abs=1e-10 * max(degree, 1))


def test_the_contract_covers_flows_and_mixtures():
    assert all(isinstance(flow_of(name), AbstractFlow) for name in FLOWS)
