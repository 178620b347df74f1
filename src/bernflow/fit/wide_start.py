"""Where training starts in very many dimensions: as `fit.start` does it, but with memory linear in their number.

Nothing here is a matrix of p columns and p rows. The Hessian is seen through its products with vectors: those with the
leading dimensions one by one, so that their correlations with all others are exact; with random signs, which tell the
diagonal of the rest; and those of a Lanczos process, which finds the directions that the diagonal does not explain.
The `LowRankFactor` made of them is a start, and the preconditioner of the conjugate gradients that lead to a mode.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from bernflow.background import BackgroundJit, Effort, background_jit
from bernflow.fit.start import (
    CURVATURE_FLOOR,
    FLATTEST,
    NUM_DRAWS,
    NUM_DRAWS_MANY_ROWS,
    SMALLEST_CURVATURE,
    Gaussian,
    Path,
    find_start,
    triangular,
    walk,
)
from bernflow.flows.base import LOG_2PI
from bernflow.flows.factors import BORDER, RANK, LowRankFactor, is_dense, unit_factor
from bernflow.placement import replicated
from bernflow.posterior import sampling
from bernflow.target import Target

# Vectors of random signs behind the diagonal of the curvature, and steps of Lanczos.
NUM_SIGNS = 8
NUM_LANCZOS = 64
# A row of the curvature is longer than its diagonal; where random signs tell less than this share of it, that counts.
LEAST_SHARE = 0.1
# Steps uphill the ELBO itself, the draws over which they average, how many of them may gain less than so many nats,
# and how much worse a step may seem.
MAX_SETTLING, NUM_AVERAGED = 40, 8
MAX_IN_VAIN, SETTLED, SLACK = 5, 0.01, 0.02
# Lengths of such a step that are tried.
LENGTHS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
NUM_CONJUGATE = 50
# Conjugate gradients end when so little of the gradient is left, in the norm of the preconditioner.
LEFT = 1e-3
# A path has arrived when a Newton step promises less than this many nats, or than the rounding error of the density.
ARRIVED = 1e-6

Times = Callable[[Float[Array, " n"]], Float[Array, " n"]]


class Tools(NamedTuple):
    """Random numbers that all points of all paths share, so that they can be compared.

    Attributes:
        z: noise of the draws behind an ELBO.
        signs: random signs for the dimensions that do not lead.
        lanczos: where Lanczos processes begin, and go on after they have come to an end.
    """

    z: Float[Array, "s p"]
    signs: Float[Array, "k n"]
    lanczos: Float[Array, "m n"]


def finder(dim: int) -> BackgroundJit:
    """Return what finds starts in so many dimensions."""
    return find_start if is_dense(dim) else find_wide_start


@background_jit(Effort.LIGHT)
def find_wide_start(target: Target, points: Float[Array, "k p"], key: Key[Array, ""]) -> Gaussian:
    """Return the Gaussian of highest ELBO seen on the paths from each point; leading axis: points, best first.

    The ELBO is NaN, which comes last, where density or gradient are not finite at the point.
    """
    rows, dim, dtype = sampling.num_rows(target), points.shape[1], points.dtype
    num_draws = NUM_DRAWS if rows <= sampling.MANY_ROWS else NUM_DRAWS_MANY_ROWS
    draw_key, sign_key, lanczos_key, settle_key = jax.random.split(key, 4)
    z = jax.random.normal(draw_key, (num_draws // 2, dim), dtype)
    tools = Tools(
        # Of unit variance in every dimension: otherwise the scales that suit these few draws best would seem better.
        jnp.concatenate([z, -z]) * jax.lax.rsqrt(jnp.mean(z**2, 0)),
        _signs(sign_key, dim - BORDER, dtype),
        jax.random.normal(lanczos_key, (NUM_LANCZOS, dim - BORDER), dtype),
    )
    at_once = sampling.draws_at_once(rows, num_draws)

    def follow(x: Float[Array, " p"]) -> Gaussian:
        begun = _begin(target, x, tools, at_once)
        path = walk(begun, lambda path: _advance(target, path, tools, at_once))
        # From where the path began, too: it may have led astray.
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), path.best, begun.best)
        settled = jax.lax.map(lambda start: _settle(target, start, tools, settle_key, at_once), both)
        best = settled.at(jnp.argmax(settled.elbo))
        return best._replace(elbo=jnp.where(path.sound, best.elbo, jnp.nan))

    found = jax.lax.map(follow, points)
    return replicated(found.at(jnp.argsort(-found.elbo)))


def _begin(target: Target, x: Float[Array, " p"], tools: Tools, at_once: int) -> Path:
    unit = jax.tree.map(lambda leaf: leaf.astype(x.dtype), unit_factor(x.shape[0], jnp))
    elbo = _elbo(target, x, unit, tools.z, at_once)
    no = jnp.asarray(False)
    return Path(x, target.log_density(x), jnp.asarray(1e-3, x.dtype), no, no, Gaussian(x, unit, elbo))


def _advance(target: Target, path: Path, tools: Tools, at_once: int) -> Path:
    """Take one damped Newton step uphill and offer the local Gaussians as a start."""
    gradient, times_hessian = jax.linearize(jax.grad(target.log_density), path.x)

    def times(v):
        return -times_hessian(v)

    factor = _local_factor(times, tools)
    sound = jnp.isfinite(path.log_density) & jnp.all(jnp.isfinite(gradient))
    usable = jnp.all(jnp.isfinite(gradient)) & _is_finite(factor)
    direction, is_convex = _newton(times, factor, gradient)
    promised = 0.5 * gradient @ direction
    trial = path.x + direction / (1.0 + path.damping)
    log_density = target.log_density(trial)

    best = path.best
    for offered in (factor, _alone(factor)):
        elbo = _elbo(target, path.x, offered, tools.z, at_once)
        best = _better(best, Gaussian(path.x, offered, jnp.where(usable, elbo, -jnp.inf)))
    rounding = 4.0 * jnp.finfo(path.x.dtype).eps * jnp.abs(path.log_density)
    at_mode = (promised < jnp.maximum(ARRIVED, rounding)) & is_convex
    return path.after_trial(trial, log_density, usable, at_mode, sound, best)


def _settle(target: Target, best: Gaussian, tools: Tools, key: Key[Array, ""], at_once: int) -> Gaussian:
    """Take Newton steps uphill the ELBO itself, whose derivatives are those of the density, averaged over draws.

    A hierarchy has its mode where its scale is zero, which says nothing of where its mass is; the more groups, the
    farther are they apart. Fresh draws at every step: a few would be known by heart.
    """
    num = best.loc.shape[0] - BORDER

    def unfinished(state):
        step, in_vain, _, _ = state
        return (step < MAX_SETTLING) & (in_vain < MAX_IN_VAIN)

    def step(state):
        step, in_vain, best, damping = state
        draw_key, sign_key, lanczos_key = jax.random.split(jax.random.fold_in(key, step), 3)
        z = jax.random.normal(draw_key, (NUM_AVERAGED // 2, best.loc.shape[0]), best.loc.dtype)
        offsets = best.factor.color(jnp.concatenate([z, -z]))
        fresh = Tools(
            tools.z, _signs(sign_key, num, z.dtype), jax.random.normal(lanczos_key, tools.lanczos.shape, z.dtype)
        )

        def average(x):
            slopes = jax.lax.map(lambda e: jax.grad(target.log_density)(x + e), offsets, batch_size=at_once)
            return jnp.mean(slopes, 0)

        gradient, times_hessian = jax.linearize(average, best.loc)
        factor = _local_factor(lambda v: -times_hessian(v), fresh, best.factor)
        direction = factor.color(factor.transposed(gradient))

        def offer(new, length):
            # The noise of what a scale governs moves with it, in many small steps; long ones take it along at once.
            scale = best.factor.scale * (factor.scale / best.factor.scale) ** jnp.maximum(length, 1.0)
            longer = Gaussian(best.loc + length * direction, factor._replace(scale=scale), best.elbo)
            elbo = _elbo(target, longer.loc, longer.factor, tools.z, at_once)
            return _better(new, longer._replace(elbo=elbo)), None

        # Within the error of so few draws the newer factor is the better one: it has told diagonal and directions apart
        # once more.
        reached = best.elbo - SLACK
        lengths = jnp.asarray(LENGTHS, z.dtype) / (1.0 + damping)
        new, _ = jax.lax.scan(offer, best._replace(elbo=reached), lengths)
        damping = jnp.where(jnp.any(new.loc != best.loc), damping / 4.0, 4.0 * damping + 0.5)
        in_vain = jnp.where(new.elbo > best.elbo + SETTLED, 0, in_vain + 1)
        return step + 1, in_vain, new._replace(elbo=jnp.where(new.elbo > reached, new.elbo, best.elbo)), damping

    start = jnp.asarray(0), jnp.asarray(0), best, jnp.zeros((), best.loc.dtype)
    return jax.lax.while_loop(unfinished, step, start)[2]


def _local_factor(times: Times, tools: Tools, known: LowRankFactor | None = None) -> LowRankFactor:
    """Return the factor of the inverse of a curvature, of which products with vectors are known.

    What the directions of a factor that is `known` from before explain is taken out before the diagonal is estimated:
    so diagonal and directions are told apart, again and again.
    """
    num, dtype = tools.signs.shape[1], tools.signs.dtype
    lead = jnp.eye(BORDER, num + BORDER, dtype=dtype)
    rows = jax.lax.map(times, lead)

    def times_following(v):
        return times(jnp.concatenate([jnp.zeros(BORDER, dtype), v]))[BORDER:]

    if known is None:
        along = jax.lax.map(times_following, tools.signs)
        scale = jax.lax.rsqrt(_diagonal(tools.signs, along))
    else:
        explained = (1.0 + known.stretch) ** -2 - 1.0

        def unexplained(sign):
            return known.scale * times_following(known.scale * sign) - known.basis @ (explained * (sign @ known.basis))

        scale = known.scale * jax.lax.rsqrt(_diagonal(tools.signs, jax.lax.map(unexplained, tools.signs)))
    basis, curvature = _directions(times_following, scale, tools.lanczos)

    # What the leading dimensions tell of the others, and what is left of their own curvature after that.
    scaled = rows[:, BORDER:] * scale
    coupling = -(scale * (scaled + (scaled @ basis * (1.0 / curvature - 1.0)) @ basis.T)).T
    joined = jnp.concatenate([lead[:, :BORDER], coupling.T], 1)
    schur = jax.lax.map(times, joined) @ joined.T
    leading = _inverse_factor(0.5 * (schur + schur.T))
    return LowRankFactor(leading, coupling, scale, basis, jax.lax.rsqrt(curvature) - 1.0)


def _signs(key: Key[Array, ""], num: int, dtype: Any) -> Float[Array, "k n"]:
    return jnp.where(jax.random.bernoulli(key, 0.5, (NUM_SIGNS, num)), 1.0, -1.0).astype(dtype)


def _diagonal(signs: Float[Array, "k n"], products: Float[Array, "k n"]) -> Float[Array, " n"]:
    """Estimate the diagonal of a curvature from its products with random signs; positive."""
    value = jnp.abs(jnp.mean(signs * products, 0))
    value = jnp.maximum(value, LEAST_SHARE * jnp.sqrt(jnp.mean(products**2, 0)))
    return jnp.maximum(value, FLATTEST * jnp.maximum(jnp.max(value), SMALLEST_CURVATURE))


def _directions(
    times: Times, scale: Float[Array, " n"], fresh: Float[Array, "m n"]
) -> tuple[Float[Array, "n r"], Float[Array, " r"]]:
    """Return the directions, by a Lanczos process, in which a scaled curvature is farthest from 1, and their curvature.

    Whatever the directions, a Gaussian that takes their curvature into account is nearer, by (c - 1 - log c) / 2 nats
    each: those that gain most are taken. They need not have converged.
    """
    num = fresh.shape[0]

    def orthogonal(w, basis):
        w = w - (basis @ w) @ basis
        return w - (basis @ w) @ basis  # twice is enough

    def step(k, state):
        basis, diagonal, beside, v = state
        basis = basis.at[k].set(v)
        w = scale * times(scale * v)
        value = w @ v
        w = orthogonal(w, basis)
        length = jnp.linalg.norm(w)
        # Nothing new: the space is complete, and goes on with a direction of its own.
        ended = ~(length > jnp.sqrt(jnp.finfo(w.dtype).eps) * (jnp.abs(value) + 1.0))
        other = orthogonal(fresh[k], basis)
        v = jnp.where(ended, other / jnp.linalg.norm(other), w / jnp.where(ended, 1.0, length))
        return basis, diagonal.at[k].set(value), beside.at[k].set(jnp.where(ended, 0.0, length)), v

    first = fresh[-1] / jnp.linalg.norm(fresh[-1])
    zeros = jnp.zeros(num, scale.dtype)
    basis, diagonal, beside, _ = jax.lax.fori_loop(0, num, step, (jnp.zeros_like(fresh), zeros, zeros, first))
    projected = jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
    usable = jnp.all(jnp.isfinite(projected))
    values, vectors = jnp.linalg.eigh(jnp.where(usable, projected, jnp.eye(num, dtype=scale.dtype)))
    # Absolute curvature turns saddle points into places to leave (saddle-free Newton).
    values = jnp.maximum(jnp.abs(values), CURVATURE_FLOOR[values.dtype.name])
    _, kept = jax.lax.top_k(values - 1.0 - jnp.log(values), RANK)
    return jnp.where(usable, basis.T @ vectors[:, kept], jnp.nan), values[kept]


def _inverse_factor(precision: Float[Array, "c c"]) -> Float[Array, "c c"]:
    """Return the triangular factor of the inverse of a small curvature, made positive."""
    diagonal = jnp.abs(jnp.diagonal(precision))
    unit = jax.lax.rsqrt(jnp.maximum(diagonal, FLATTEST * jnp.maximum(jnp.max(diagonal), SMALLEST_CURVATURE)))
    scaled = unit[:, None] * precision * unit[None, :]
    usable = jnp.all(jnp.isfinite(scaled))
    values, vectors = jnp.linalg.eigh(jnp.where(usable, scaled, jnp.eye(len(unit), dtype=unit.dtype)))
    curvature = jnp.maximum(jnp.abs(values), CURVATURE_FLOOR[values.dtype.name])
    return jnp.where(usable, triangular(unit[:, None] * vectors * jax.lax.rsqrt(curvature)), jnp.nan)


def _newton(
    times: Times, factor: LowRankFactor, gradient: Float[Array, " p"]
) -> tuple[Float[Array, " p"], Bool[Array, ""]]:
    """Solve for a Newton step by conjugate gradients, as long as the curvature that they meet is positive."""

    def precondition(v):
        return factor.color(factor.transposed(v))

    first = precondition(gradient)
    size = gradient @ first

    def unfinished(state):
        k, _, _, _, left, is_convex = state
        return (k < NUM_CONJUGATE) & is_convex & (left > LEFT**2 * size)

    def step(state):
        k, x, residual, direction, left, _ = state
        product = times(direction)
        bend = direction @ product
        is_convex = bend > 0.0
        length = left / jnp.where(is_convex, bend, 1.0)
        # Where the first direction already bends upwards, the step is that of the absolute curvature.
        x = jnp.where(is_convex, x + length * direction, jnp.where(k == 0, direction, x))
        residual = residual - length * product
        turned = precondition(residual)
        new = residual @ turned
        return k + 1, x, residual, turned + (new / left) * direction, new, is_convex

    start = 0, jnp.zeros_like(gradient), gradient, first, size, jnp.asarray(True)
    _, x, _, _, _, is_convex = jax.lax.while_loop(unfinished, step, start)
    return x, is_convex


def _alone(factor: LowRankFactor) -> LowRankFactor:
    """Return the factor of independent dimensions, each with the scale that it has given all others."""
    scales = factor.conditional_scales()
    zeros = jax.tree.map(jnp.zeros_like, factor)
    return factor._replace(
        leading=jnp.diag(scales[:BORDER]), coupling=zeros.coupling, scale=scales[BORDER:], stretch=zeros.stretch
    )


def _elbo(target: Target, loc: Float[Array, " p"], factor: LowRankFactor, z: Float[Array, "s p"], at_once: int):
    log_p = jax.lax.map(lambda z: target.log_density(loc + factor.color(z)), z, batch_size=at_once)
    elbo = jnp.mean(log_p) + factor.log_det(jnp) + 0.5 * loc.shape[0] * (1.0 + LOG_2PI)
    return jnp.where(jnp.isfinite(elbo), elbo, -jnp.inf)


def _better(one: Gaussian, other: Gaussian) -> Gaussian:
    return jax.tree.map(lambda a, b: jnp.where(other.elbo > one.elbo, b, a), one, other)


def _is_finite(factor: LowRankFactor) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in factor]))
