"""Where training starts for a hierarchical posterior: a Gaussian of the globals, and conditional moments of the locals.

The structure comes from the second derivatives at a few points, the Gaussian from the Laplace marginal of the globals.
Around it, conditional modes and curvatures of the locals at a few hundred values of the globals give the conditional
part of the flow by regression. No step of training is needed for that, and no gradient of the flow. Where there are
many globals, a chain or one dense block of locals, regressions of the score follow.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from threadpoolctl import threadpool_limits

from bernflow import preflight
from bernflow.background import BackgroundJit, Effort, zeros_of
from bernflow.errors import BernflowError
from bernflow.fit import conditionals, score_regression
from bernflow.fit.ahead import prepare_steps
from bernflow.fit.chained import chain_is_gaussian, nearest_chains
from bernflow.fit.conditionals import Moments, conditional_moments
from bernflow.fit.deadline import Deadline
from bernflow.fit.dense_start import averaged_design
from bernflow.fit.differences import DifferencedTarget
from bernflow.fit.global_flow import fit_globals, prepare_globals, train_globals
from bernflow.fit.interpolation import interpolate
from bernflow.fit.intervals import choose_coordinates, locals_on_intervals
from bernflow.fit.marginal import GlobalGaussian, find_globals, match_moments
from bernflow.fit.nested import find_nested
from bernflow.fit.products import earlier_noise
from bernflow.fit.regression import regress
from bernflow.fit.score_regression import LEFT_FOR_ROUND
from bernflow.fit.settings import Settings
from bernflow.fit.skewed import with_skewness
from bernflow.fit.sparsity import sparse_hessians
from bernflow.fit.structure import find_structure, pattern_of, scale_dimensions
from bernflow.fit.surrogate import MAX_GLOBALS
from bernflow.fit.train.divergence import distance
from bernflow.fit.train.stopping import OUT_OF_REACH
from bernflow.fit.variational import are_gaussian, nearest_gaussians, skewness
from bernflow.fit.views import views_of
from bernflow.fit.work import has_large_matrices
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.dense import is_one_dense_block
from bernflow.flows.families import MAX_DIM_FULL, Spec
from bernflow.flows.structure import Structure
from bernflow.flows.structured import StructuredBernsteinFlow
from bernflow.flows.views import View
from bernflow.keys import generator, nth, spawn
from bernflow.placement import placed
from bernflow.posterior import sampling
from bernflow.target import Target

# With fewer dimensions all of them are globals.
MIN_DIM = 31
NUM_POINTS, NUM_SEARCHED = 4, 2
# Values of the globals at which conditional moments are computed: so many, and so many for each of them.
NUM_DESIGN, NUM_DESIGN_PER_GLOBAL = 192, 6
# With more dimensions than this, the Hessian of a density that factors large matrices is too expensive.
MAX_DIM_FACTORED = 512
# Importance sampling of more globals than this needs too many draws.
MAX_MATCHED = 12
# Under a time limit, the least share of it that must be left for a stage of the start which improves it.
LEFT_TO_MATCH, LEFT_FOR_SHAPES, LEFT_TO_TRAIN, LEFT_FOR_SKEWNESS = 0.6, 0.6, 0.5, 0.4
# Noise depends on earlier noise by so many coefficients, which every draw pays for, if no more products are tried.
MAX_COEFFICIENTS, MAX_PRODUCTS = 2.5e5, 8e6
# Globals have moved if their mean did by so many standard deviations, or a standard deviation changed by such a factor.
FAR_MOVE, FAR_RATIO = 1.0, 1.5
# They are searched for again at this distance from the target, in nats, at least.
MIN_DISTANCE = 0.1
# They are spread wider than the Gaussian, so that tails are seen.
SPREAD = 1.4
# Of every so many one global is farther out: scales near zero have a long tail, in which they govern all locals.
FAR_EVERY, FAR, FARTHEST = 4, 3.0, 6.0


@threadpool_limits.wrap(limits=1, user_api="blas")
def structured_start(
    target: Target, settings: Settings, key: Key[Array, ""], deadline: Deadline | None = None
) -> StructuredBernsteinFlow | None:
    """Return the flow of a hierarchical posterior at its start, stacked; None where no structure is seen.

    What improves the start, but is not needed for one, is left out where the `deadline` is near.
    """
    deadline = deadline or Deadline.start()
    points_key, flow_key, design_key, match_key = spawn(key, 4)
    preflight.check_output(target)
    if target.dim > MAX_DIM_FACTORED and has_large_matrices(target):
        return None
    conditionals.prepare(target)
    points = preflight.usable_starts(target, preflight.uniform_points(target, points_key, NUM_POINTS), points_key)
    scales = scale_dimensions(target.layout)
    try:
        structure = see_structure(target, points[:2], scales)
    except BernflowError:
        raise
    except Exception as error:
        if not isinstance(target, DifferencedTarget):
            raise  # the fit is tried again, with differences in place of second derivatives
        warnings.warn(
            f"bernflow: the structure of this posterior cannot be seen, so all {target.dim} parameters are fitted "
            f"together: its second derivatives failed ({type(error).__name__}: {str(error).splitlines()[0]}).",
            UserWarning,
            stacklevel=2,
        )
        return None
    # With few dimensions a dense block is as well left to the flow of the globals.
    is_split = structure is not None and len(structure.blocks) > 1
    if structure is None or not (is_split or target.dim > MAX_DIM_FULL):
        return None
    # Locals on intervals are taken as what is more nearly Gaussian, which is known after the globals are found.
    bounded = () if is_one_dense_block(structure) else locals_on_intervals(target, structure)
    shape = Shape(structure, views_of(target.layout, structure.leaders), (), settings.spec(target.dim))
    empty = None if bounded else _prepare(target, settings, shape, flow_key)
    # Effects among the globals have scales there, too.
    is_nested = structure.num_leaders > MAX_MATCHED and set(scales) & set(structure.leaders)
    gaussian = (find_nested if is_nested else find_globals)(target, structure, points[:NUM_SEARCHED], scales)
    seen = target
    if bounded:
        seen, gaussian = choose_coordinates(target, structure, gaussian, bounded)
        if seen is not target:
            local = structure.order[structure.num_leaders :]
            shape = shape._replace(bounded=tuple(np.flatnonzero(np.isin(local, bounded)).tolist()))
    if empty is None:
        empty = _prepare(target, settings, shape, flow_key)
    search = Search(seen, structure, settings, deadline, lambda at: _build(flow_key, shape, at.loc, at.tril))
    prepare_all = functools.partial(prepare_steps, _zeros_like_stacked(empty), target, settings)
    if is_one_dense_block(structure):
        prepare_all()
        flow = _with_dense_block(search, gaussian, design_key)
    else:
        if structure.num_leaders <= MAX_MATCHED and deadline.has_left(LEFT_TO_MATCH):
            gaussian = match_moments(seen, structure, gaussian, generator(match_key))
        flow = _with_small_blocks(search, gaussian, design_key, prepare_all)
    if flow is None:
        return None
    if shape.regresses_score and deadline.has_left(LEFT_FOR_ROUND):
        flow = _regressed(search, flow, gaussian, nth(key, 2), prepare_all)
    return placed(jax.tree.map(lambda leaf: np.asarray(leaf)[None] if eqx.is_array(leaf) else leaf, flow))


class Search(NamedTuple):
    """What a start is looked for, and the flow at a Gaussian of the globals."""

    target: Target
    structure: Structure
    settings: Settings
    deadline: Deadline
    build: Callable[[GlobalGaussian], StructuredBernsteinFlow]


def _with_dense_block(search: Search, gaussian: GlobalGaussian, key: Key[Array, ""]) -> StructuredBernsteinFlow | None:
    """Return a flow whose one block of locals is interpolated; None where its modes are not found."""
    target, structure, settings, deadline, build = search

    def leaders_at(gaussian: GlobalGaussian, at: Moments | None) -> BernsteinFlow:
        flow = build(gaussian).leaders
        if at is None or not deadline.has_left(LEFT_TO_TRAIN):
            return flow
        return train_globals(flow, gaussian, at, list(structure.leaders), settings, nth(key, 1)) or flow

    design = averaged_design(target, structure, gaussian, leaders_at, generator(key))
    if design is None:
        return None
    flow = build(design.gaussian)
    interpolated = interpolate(flow.locals, design.gaussian, design.averaged)
    return eqx.tree_at(lambda f: (f.leaders, f.locals), flow, (design.leaders, interpolated))


def _with_small_blocks(
    search: Search, gaussian: GlobalGaussian, key: Key[Array, ""], prepare_all: Callable[[], None]
) -> StructuredBernsteinFlow:
    """Return a flow whose locals are Gaussians, or close to them, given the globals, which have their marginal.

    Args:
        search: what is looked for.
        gaussian: of the globals.
        key: of the values of the globals.
        prepare_all: begins to compile the training of the whole flow.
    """
    target, structure, settings, deadline, build = search
    at = _laplace_moments(target, structure, gaussian, _design(structure, gaussian, generator(key)))
    is_gaussian, nearest = (
        (chain_is_gaussian, nearest_chains) if structure.chained else (are_gaussian, nearest_gaussians)
    )
    has_shapes = deadline.has_left(LEFT_FOR_SHAPES) and not is_gaussian(target, structure, at.at(slice(3)))
    if has_shapes or structure.chained or structure.num_leaders > MAX_GLOBALS:
        # Of other posteriors all is known that a fit needs; steps would be compiled in vain.
        prepare_all()

    def moments_of(globals_: Float[np.ndarray, "k c"]) -> Moments:
        found = _laplace_moments(target, structure, gaussian, globals_)
        return nearest(target, structure, found) if has_shapes else found

    if has_shapes:
        at = nearest(target, structure, at)
    flow = build(gaussian)
    at = at.at(np.isfinite(at.log_density))
    leaders = flow.leaders
    if deadline.has_left(LEFT_TO_TRAIN):
        leaders, at = fit_globals(leaders, gaussian, at, list(structure.leaders), moments_of, settings, nth(key, 1))
    flow = eqx.tree_at(lambda f: (f.leaders, f.locals), flow, (leaders, regress(flow.locals, gaussian, at)))
    is_skewed = has_shapes and not structure.chained and settings.base == "normal"
    if is_skewed and deadline.has_left(LEFT_FOR_SKEWNESS):
        flow = eqx.tree_at(lambda f: f.locals, flow, with_skewness(flow.locals, skewness(target, structure, at)))
    return flow


def _regressed(
    search: Search,
    flow: StructuredBernsteinFlow,
    gaussian: GlobalGaussian,
    key: Key[Array, ""],
    prepare_all: Callable[[], None],
) -> StructuredBernsteinFlow:
    """Return a flow after regressions of the score.

    With many globals a second search follows where they have moved and the flow is far from the target: the locals
    given the globals were found around the Gaussian from which they moved.
    """
    target, structure, settings, deadline, _ = search
    tolerance = settings.tolerance or 0.0
    regress_score = functools.partial(
        score_regression.regress_score, target=target, deadline=deadline, tolerance=tolerance
    )
    is_split = structure.num_leaders > MAX_GLOBALS and not is_one_dense_block(structure) and not structure.chained
    if not is_split:
        return regress_score(placed(flow), key=key)
    flow = regress_score(placed(flow), key=key, num_draws=(score_regression.NUM_DRAWS,))
    first = score_regression.look(flow, target, nth(key, 1))
    if first.is_near(score_regression.NEAR * tolerance):
        return flow
    # Draws that are not finite have no moments.
    is_sound = np.isfinite(first.elbo()[0]) and np.isfinite(first.x).all()
    is_far = is_sound and distance(first.log_weights) > max(MIN_DISTANCE, OUT_OF_REACH * tolerance)
    moved = _moved(target, structure, gaussian, first.x) if is_far and deadline.has_left(LEFT_FOR_ROUND) else None
    if moved is not None:
        again = _with_small_blocks(search, moved, nth(key, 2), prepare_all)
        again = regress_score(placed(again), key=nth(key, 3), num_draws=(score_regression.NUM_DRAWS,))
        if score_regression.look(again, target, nth(key, 1)).elbo()[0] > first.elbo()[0]:
            flow = again
    # Without quadratic terms more draws would find nothing more.
    return flow if flow.bend is None else regress_score(flow, key=nth(key, 4), num_draws=(score_regression.MANY_DRAWS,))


def _moved(
    target: Target, structure: Structure, gaussian: GlobalGaussian, draws: Float[np.ndarray, "s p"]
) -> GlobalGaussian | None:
    """Return the Gaussian with the moments of draws of the globals; None where it is much the same as before."""
    globals_ = draws[:, list(structure.leaders)]
    loc, tril = globals_.mean(0), np.linalg.cholesky(np.cov(globals_.T))
    shift = np.max(np.abs(np.linalg.solve(gaussian.tril, loc - gaussian.loc)))
    ratio = np.linalg.norm(tril, axis=1) / np.linalg.norm(gaussian.tril, axis=1)
    if shift < FAR_MOVE and max(ratio.max(), 1.0 / ratio.min()) < FAR_RATIO:
        return None
    x = np.array(gaussian.x)
    x[list(structure.leaders)] = loc
    at = conditional_moments(target, structure, x[None], gaussian.locals)
    return GlobalGaussian(loc, tril, at.x[0], at.locals) if np.isfinite(at.log_density[0]) else None


def see_structure(target: Target, points: Float[np.ndarray, "k p"], scales: Sequence[int]) -> Structure | None:
    """Find the structure from the second derivatives at a few points; None where they are not finite, or all differ."""
    hessians = sparse_hessians(target, points)
    return None if hessians is None else find_structure(pattern_of(hessians), scales)


def _design(structure: Structure, gaussian: GlobalGaussian, random: np.random.Generator) -> Float[np.ndarray, "k c"]:
    """Choose values of the globals around their mean, which is the first of them."""
    num = NUM_DESIGN + NUM_DESIGN_PER_GLOBAL * structure.num_leaders
    u = SPREAD * random.normal(size=(num, structure.num_leaders))
    far = np.arange(0, num, FAR_EVERY)
    u[far, random.integers(structure.num_leaders, size=len(far))] *= FAR
    u = np.clip(u, -FARTHEST, FARTHEST)
    u[0] = 0.0
    return gaussian.loc + u @ gaussian.tril.T


def _laplace_moments(
    target: Target, structure: Structure, gaussian: GlobalGaussian, globals_: Float[np.ndarray, "k c"]
) -> Moments:
    x = np.repeat(gaussian.x[None], len(globals_), 0)
    x[:, list(structure.leaders)] = globals_
    return conditional_moments(target, structure, x, gaussian.locals)


def _zeros_like_stacked(empty: StructuredBernsteinFlow) -> StructuredBernsteinFlow:
    return jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype) if hasattr(leaf, "shape") else leaf, empty)


class Shape(NamedTuple):
    """What fixes the shapes of all arrays of a flow, and what is computed by it."""

    structure: Structure
    views: tuple[View, ...]
    bounded: tuple[int, ...]
    spec: Spec

    @property
    def regresses_score(self) -> bool:
        """Whether the start is improved by regressions of the score: where the conditional part is approximate.

        Elsewhere flow and target differ by less than the noise of such a regression.
        """
        structure = self.structure
        is_rough = structure.num_leaders > MAX_GLOBALS or structure.chained or is_one_dense_block(structure)
        return is_rough and self.spec.noise == "normal"

    @property
    def num_neighbors(self) -> int:
        """Number of coordinates of the noise on whose products another one may depend.

        These regressions find them. Of few globals the network of their flow finds more.
        """
        nums = np.array([len(near) for near in earlier_noise(self.structure)], float)
        is_worth_it = self.regresses_score and nums.max() > MAX_GLOBALS
        most = np.sqrt(MAX_COEFFICIENTS / self.structure.dim)
        return int(min(most, nums.max())) if is_worth_it and np.sum(nums**2) <= MAX_PRODUCTS else 0


def _flow_at(
    key: Key[Array, ""], shape: Shape, loc: Float[np.ndarray, " c"], tril: Float[np.ndarray, "c c"]
) -> StructuredBernsteinFlow:
    spec = shape.spec
    return StructuredBernsteinFlow(
        key,
        shape.structure,
        jnp.asarray(loc),
        jnp.asarray(tril),
        order=spec.order,
        width=spec.width,
        noise=spec.noise,
        views=shape.views,
        bounded=shape.bounded,
        num_neighbors=shape.num_neighbors,
    )


_build = BackgroundJit(_flow_at, Effort.LEAST)


def _prepare(target: Target, settings: Settings, shape: Shape, key: Key[Array, ""]) -> StructuredBernsteinFlow:
    """Begin to compile what every fit needs after its start; return a flow of these shapes."""
    num = shape.structure.num_leaders
    nowhere = np.zeros(num), np.eye(num)
    _build.prepare(key, shape, *nowhere)
    empty = zeros_of(lambda key: _flow_at(key, shape, *nowhere), key)
    prepare_globals(empty.leaders, settings)
    sampling.prepare(empty, target.layout, target.model)
    if shape.regresses_score:
        score_regression.prepare(empty, target)
    return empty
