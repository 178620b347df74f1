"""Where training starts for a hierarchical posterior: a Gaussian of the globals, and conditional moments of the locals.

The structure comes from the second derivatives at a few points, the Gaussian from the Laplace marginal of the globals.
Around it, conditional modes and curvatures of the locals at a few hundred values of the globals give the conditional
part of the flow by regression. No step of training is needed for that, and no gradient of the flow.
"""

from collections.abc import Sequence
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
from bernflow.fit.ahead import prepare_steps
from bernflow.fit.conditionals import conditional_moments
from bernflow.fit.intervals import choose_coordinates, locals_on_intervals
from bernflow.fit.marginal import GlobalGaussian, find_globals, match_moments
from bernflow.fit.regression import regress
from bernflow.fit.settings import Settings
from bernflow.fit.sparsity import sparse_hessians
from bernflow.fit.structure import find_structure, pattern_of, scale_dimensions
from bernflow.fit.views import views_of
from bernflow.fit.work import has_large_matrices
from bernflow.flows.families import MAX_DIM_FULL, Spec
from bernflow.flows.structure import Structure
from bernflow.flows.structured import StructuredBernsteinFlow
from bernflow.flows.views import View
from bernflow.keys import generator, spawn
from bernflow.posterior import sampling
from bernflow.target import Target

# With fewer dimensions all of them are globals.
MIN_DIM = 31
NUM_POINTS, NUM_SEARCHED = 4, 2
# Values of the globals at which conditional moments are computed: so many, and so many for each of them.
NUM_DESIGN, NUM_DESIGN_LARGE, NUM_DESIGN_PER_GLOBAL = 192, 64, 6
# The former are fewer for larger blocks than this, whose curvature takes many products with the Hessian.
LARGE_BLOCK = 32
# Importance sampling of more globals than this needs too many draws.
MAX_MATCHED = 12
# They are spread wider than the Gaussian, so that tails are seen.
SPREAD = 1.4
# Of every so many one global is farther out: scales near zero have a long tail, in which they govern all locals.
FAR_EVERY, FAR, FARTHEST = 4, 3.0, 6.0


@threadpool_limits.wrap(limits=1, user_api="blas")
def structured_start(target: Target, settings: Settings, key: Key[Array, ""]) -> StructuredBernsteinFlow | None:
    """Return the flow of a hierarchical posterior at its start, stacked; None where no structure is seen."""
    points_key, flow_key, design_key, match_key = spawn(key, 4)
    preflight.check_output(target)
    if has_large_matrices(target):
        return None
    points = preflight.usable_starts(target, preflight.starting_points(target, points_key, NUM_POINTS), points_key)
    scales = scale_dimensions(target.layout)
    try:
        structure = see_structure(target, points[:2], scales)
    except BernflowError:
        raise
    except Exception:  # of JAX, where a density has no second derivatives: all dimensions are globals then
        return None
    # With few dimensions a dense block is as well left to the flow of the globals.
    is_split = structure is not None and len(structure.blocks) > 1
    if structure is None or not (is_split or target.dim > MAX_DIM_FULL):
        return None
    bounded = locals_on_intervals(target, structure)
    shape = Shape(structure, views_of(target.layout, structure.leaders), (), settings.spec(target.dim))
    if not bounded:
        _prepare(target, settings, shape, flow_key)
    gaussian = find_globals(target, structure, points[:NUM_SEARCHED], scales)
    seen = target
    if bounded:
        seen, gaussian = choose_coordinates(target, structure, gaussian, bounded)
        if seen is not target:
            local = structure.order[structure.num_leaders :]
            shape = shape._replace(bounded=tuple(np.flatnonzero(np.isin(local, bounded)).tolist()))
        _prepare(target, settings, shape, flow_key)
    if structure.size <= LARGE_BLOCK and structure.num_leaders <= MAX_MATCHED:
        gaussian = match_moments(seen, structure, gaussian, generator(match_key))
    flow = _build(flow_key, shape, gaussian.loc, gaussian.tril)
    flow = with_moments(flow, seen, structure, gaussian, design_key)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None] if eqx.is_array(leaf) else leaf, flow)


def see_structure(target: Target, points: Float[np.ndarray, "k p"], scales: Sequence[int]) -> Structure | None:
    """Find the structure from the second derivatives at a few points; None where they are not finite, or all differ."""
    hessians = sparse_hessians(target, points)
    return None if hessians is None else find_structure(pattern_of(hessians), scales)


def with_moments(
    flow: StructuredBernsteinFlow,
    target: Target,
    structure: Structure,
    gaussian: GlobalGaussian,
    key: Key[Array, ""],
) -> StructuredBernsteinFlow:
    """Return a flow whose locals have conditional moments of the target, seen at values of the globals."""
    few = NUM_DESIGN if structure.size <= LARGE_BLOCK else NUM_DESIGN_LARGE
    num = few + NUM_DESIGN_PER_GLOBAL * structure.num_leaders
    random = generator(key)
    u = SPREAD * random.normal(size=(num, structure.num_leaders))
    far = np.arange(0, num, FAR_EVERY)
    u[far, random.integers(structure.num_leaders, size=len(far))] *= FAR
    u = np.clip(u, -FARTHEST, FARTHEST)
    x = np.repeat(gaussian.x[None], num, 0)
    x[:, list(structure.leaders)] = gaussian.loc + u @ gaussian.tril.T
    moments = conditional_moments(target, structure, x, gaussian.locals)
    sound = np.isfinite(moments.log_density)
    return eqx.tree_at(lambda f: f.locals, flow, regress(flow.locals, gaussian, moments.at(sound)))


class Shape(NamedTuple):
    """What fixes the shapes of all arrays of a flow, and what is computed by it."""

    structure: Structure
    views: tuple[View, ...]
    bounded: tuple[int, ...]
    spec: Spec


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
    )


_build = BackgroundJit(_flow_at, Effort.LEAST)


def _prepare(target: Target, settings: Settings, shape: Shape, key: Key[Array, ""]) -> None:
    """Begin to compile what a fit needs after its start."""
    num = shape.structure.num_leaders
    nowhere = np.zeros(num), np.eye(num)
    _build.prepare(key, shape, *nowhere)
    empty = zeros_of(lambda key: _flow_at(key, shape, *nowhere), key)
    flows = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype) if eqx.is_array(leaf) else leaf, empty)
    prepare_steps(flows, target, settings)
    sampling.prepare(empty, target.layout, target.model)
