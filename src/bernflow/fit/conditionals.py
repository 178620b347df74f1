"""Locals given globals: their conditional modes and curvatures at a few hundred points."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bernflow.background import Effort, background_jit
from bernflow.fit.arrow import Locals, eliminate, read_curvature, tangents
from bernflow.fit.tally import count
from bernflow.fit.work import has_large_matrices
from bernflow.flows.structure import Structure
from bernflow.posterior import sampling
from bernflow.target import Target

# Points at which a call evaluates derivatives; others are filled up.
BLOCK, SMALL_BLOCK, NUM_PAIRS = 32, 4, 16
# Newton steps toward a conditional mode, and the nats that a step must promise for another one.
MAX_STEPS, ARRIVED = 30, 1e-5
# With more to gain than this, a point is dropped; with more damping than this, it is given up.
NEARLY_ARRIVED, MAX_DAMPING = 0.05, 1e6
# Steps by the curvature at a point near by.
MAX_CHORDS = 8
# Tangents that are pushed through the model at once.
TANGENTS_AT_ONCE = 16
# With more tangents than this, fewer points are evaluated at once.
FEW_TANGENTS = 32


class Derivatives(NamedTuple):
    """Log densities, their gradients, and products of their Hessians with tangents."""

    value: Float[np.ndarray, " k"]
    gradient: Float[np.ndarray, "k p"]
    products: Float[np.ndarray, "k t p"]


def _gradient_and_value(target: Target, x: Float[Array, " p"]) -> tuple[Array, Array]:
    value, gradient = jax.value_and_grad(target.log_density)(x)
    return gradient, value


@background_jit(Effort.LIGHT)
def _of_pairs(target: Target, pairs: Float[Array, "n 2p"]) -> tuple[Array, Array, Array]:
    """Evaluate value, gradient and product with the Hessian of pairs of a point and a tangent."""

    def one(pair):
        x, tangent = jnp.split(pair, 2)
        gradient, product, value = jax.jvp(lambda x: _gradient_and_value(target, x), (x,), (tangent,), has_aux=True)
        return value, gradient, product

    return jax.lax.map(one, pairs, batch_size=_at_once(target, len(pairs)))


@background_jit(Effort.LIGHT)
def _derivatives_by_sites(
    target: Target, x: Float[Array, "k p"], tangents: Float[Array, "t p"], fixed: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Differentiate by all sites but the fixed ones, for which gradients and products are zero.

    What the density computes from fixed sites alone, such as the factor of a kernel matrix, is not differentiated.
    """
    layout = target.layout

    def one(x):
        pieces = layout.split(x)

        def joined(free):
            return layout.join([jnp.zeros_like(piece) if i in fixed else free[i] for i, piece in enumerate(pieces)])

        def gradient_and_value(free):
            value, gradient = jax.value_and_grad(
                lambda free: target.log_density_of_sites([free.get(i, piece) for i, piece in enumerate(pieces)])
            )(free)
            return gradient, value

        free = {i: piece for i, piece in enumerate(pieces) if i not in fixed}
        gradient, times_hessian, value = jax.linearize(gradient_and_value, free, has_aux=True)

        def product(tangent):
            parts = layout.split(tangent)
            return joined(times_hessian({i: parts[i] for i in free}))

        return value, joined(gradient), jax.lax.map(product, tangents, batch_size=min(TANGENTS_AT_ONCE, len(tangents)))

    return jax.lax.map(one, x, batch_size=_at_once(target, len(x)))


def _at_once(target: Target, num: int) -> int | None:
    """Choose at how many points derivatives are evaluated at once; None: one after the other.

    On a CPU with few cores, XLA can wait for itself forever where second derivatives of factorizations of large
    matrices are batched (jaxlib 0.10.2).
    """
    return None if has_large_matrices(target) else sampling.draws_at_once(sampling.num_rows(target), num)


def prepare(target: Target) -> None:
    """Begin to compile what is evaluated first: products with the Hessian, and gradients."""
    _of_pairs.prepare(target, np.zeros((NUM_PAIRS, 2 * target.dim)))
    _gradients.prepare(target, np.zeros((BLOCK, target.dim)))


def derivatives(target: Target, structure: Structure, x: Float[np.ndarray, "k p"]) -> Derivatives:
    """Evaluate derivatives with respect to the locals, block by block; with respect to globals they may be zero.

    Many tangents share what they can at a point. Few do not, so that one compiled function serves any number of them.
    """
    directions = tangents(structure)
    if len(directions) > FEW_TANGENTS:
        count(len(x) * (1 + 2 * len(directions)))
        fixed = global_sites(target, structure)
        return Derivatives(
            *_by_block(lambda part: _derivatives_by_sites(target, part, directions, fixed), x, SMALL_BLOCK)
        )
    value, gradient, products = derivatives_of_pairs(target, x, directions)
    num = len(directions)
    return Derivatives(value[::num], gradient[::num], products.reshape(len(x), num, -1))


def global_sites(target: Target, structure: Structure) -> tuple[int, ...]:
    """Return the sites all of whose dimensions are globals."""
    layout = target.layout
    ends = np.cumsum([layout.sizes[i] for i in layout.order])
    is_global = np.isin(np.arange(target.dim), structure.leaders)
    parts = zip(layout.order, np.split(is_global, ends[:-1]), strict=True)
    return tuple(sorted(i for i, part in parts if part.all()))


def derivatives_of_pairs(
    target: Target, x: Float[np.ndarray, "k p"], directions: Float[np.ndarray, "t p"]
) -> list[np.ndarray]:
    """Evaluate derivatives at all pairs of a point and a tangent, the tangents of the first point first."""
    count(2 * len(x) * len(directions))
    pairs = np.concatenate([np.repeat(x, len(directions), 0), np.tile(directions, (len(x), 1))], 1)
    return _by_block(lambda part: _of_pairs(target, part), pairs, NUM_PAIRS)


def _by_block(function: Callable[[np.ndarray], Any], x: Float[np.ndarray, "k p"], block: int) -> list[np.ndarray]:
    """Evaluate a compiled function at blocks of as many points, the last filled up."""
    parts = []
    for start in range(0, len(x), block):
        own = x[start : start + block]
        filled = np.concatenate([own, np.repeat(own[-1:], block - len(own), 0)])
        parts.append([np.asarray(part)[: len(own)] for part in function(filled)])
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


class Moments(NamedTuple):
    """Conditional modes and factors of the locals at several values of the globals."""

    x: Float[np.ndarray, "k p"]
    gradient: Float[np.ndarray, "k p"]
    mode: Float[np.ndarray, "k b s"]
    locals: Locals
    log_density: Float[np.ndarray, " k"]

    def at(self, which: Any) -> "Moments":
        """Return some of the points."""
        return Moments(
            self.x[which], self.gradient[which], self.mode[which], self.locals.at(which), self.log_density[which]
        )


def join(parts: Sequence[Moments]) -> Moments:
    """Return the moments at all points of several sets."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def conditional_moments(
    target: Target, structure: Structure, x: Float[np.ndarray, "k p"], near: Locals | None = None
) -> Moments:
    """Climb from points x to the modes of the locals given the globals of x; where that fails the density is NaN.

    Args:
        target: the posterior.
        structure: its structure.
        x: where to begin.
        near: the locals given globals near by. Steps by their curvature need gradients only, which is far cheaper
            where blocks are large.
    """
    local = structure.order[structure.num_leaders :]
    x = np.array(x)
    if near is not None:
        x = _follow_gradients(target, structure, x, near)
    damping = np.zeros(len(x))
    here = derivatives(target, structure, x)
    for _ in range(MAX_STEPS):
        gradient = structure.by_block(here.gradient[:, local])
        step = _given(structure, here, damping).solve(gradient[..., None])[..., 0]
        promised = 0.5 * np.einsum("kbs,kbs->k", gradient, step)
        active = np.flatnonzero((promised > ARRIVED) & np.isfinite(promised) & (damping < MAX_DAMPING))
        if not active.size:
            break
        trial = np.array(x[active])
        trial[:, local] += structure.flat(step[active])
        there = derivatives(target, structure, trial)
        usable = np.isfinite(there.value) & np.isfinite(there.gradient).all(1) & np.isfinite(there.products).all((1, 2))
        uphill = usable & (there.value > here.value[active] - 1e-9 * np.abs(here.value[active]))
        damping[active] = np.where(uphill, 0.1 * damping[active], np.maximum(0.1, 10.0 * damping[active]))
        damping[damping < 1e-3] = 0.0
        x[active[uphill]] = trial[uphill]
        here = Derivatives(*(_replaced(old, active[uphill], new[uphill]) for old, new in zip(here, there, strict=True)))
    given = _given(structure, here)
    total = here.value + given.log_det()
    log_density = np.where((promised < NEARLY_ARRIVED) & np.isfinite(total), total, np.nan)
    gradient = here.gradient if len(tangents(structure)) <= FEW_TANGENTS else gradients(target, x)[1]
    return Moments(x, gradient, structure.by_block(x[:, local]), given, log_density)


def _follow_gradients(target: Target, structure: Structure, x: np.ndarray, near: Locals) -> Float[np.ndarray, "k p"]:
    """Take steps toward the modes by curvature from elsewhere, as long as they shrink quickly."""
    local = structure.order[structure.num_leaders :]
    best, promised_before = np.array(x), np.full(len(x), np.inf)
    for _ in range(MAX_CHORDS):
        _, gradient = gradients(target, x)
        gradient = structure.by_block(gradient[:, local])
        step = near.solve(gradient[..., None])[..., 0]
        promised = 0.5 * np.einsum("kbs,kbs->k", gradient, step)
        better = promised < 0.25 * promised_before
        if not better.any():
            break
        best[better], promised_before = x[better], np.where(better, promised, 0.0)
        x = np.array(best)
        x[:, local] += structure.flat(step) * better[:, None]
        if promised_before.max() < 0.01 * ARRIVED:
            break
    return best


@background_jit(Effort.LIGHT)
def _gradients(target: Target, x: Float[Array, "k p"]) -> tuple[Array, Array]:
    one = jax.value_and_grad(target.log_density)
    return jax.lax.map(one, x, batch_size=_at_once(target, len(x)))


def gradients(target: Target, x: Float[np.ndarray, "k p"], block: int = BLOCK) -> list[np.ndarray]:
    """Evaluate log densities and gradients, block by block."""
    count(len(x))
    return _by_block(lambda part: _gradients(target, part), x, block)


def _given(structure: Structure, here: Derivatives, damping: Float[np.ndarray, " k"] | None = None) -> Locals:
    """Return the locals as the curvature describes them, its diagonal raised by a share of itself."""
    curvature = read_curvature(structure, here.products)
    blocks = np.nan_to_num(curvature.blocks, posinf=0.0, neginf=0.0)
    if damping is not None and damping.any():
        diagonal = np.abs(np.diagonal(blocks, axis1=-2, axis2=-1)) * damping[:, None, None]
        blocks = blocks + diagonal[..., None] * np.eye(structure.size)
    return eliminate(blocks, curvature.chain)


def _replaced(old: np.ndarray, where: np.ndarray, new: np.ndarray) -> np.ndarray:
    old = np.array(old)
    old[where] = new
    return old
