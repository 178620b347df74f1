"""Where the globals of a hierarchical posterior lie: Newton's method on their Laplace marginal.

The joint mode of a hierarchy is where its scales are zero, far from the mass. With the locals integrated out by
Laplace's method,

    L(g) = log p(g, m(g)) + log |F(g)| + n/2 log 2 pi,   m(g) the conditional mode, F F^T the inverse curvature there,

the globals have a density whose mode and curvature are useful, and exact where the locals are Gaussian given them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bernflow.fit.arrow import Locals
from bernflow.fit.conditionals import Moments, conditional_moments, gradients
from bernflow.flows.base import LOG_2PI
from bernflow.flows.structure import Structure
from bernflow.target import Target

# Newton steps, the nats that a step must promise for another one, and the longest step in any global.
MAX_STEPS, ARRIVED, LONGEST = 30, 1e-3, 2.0
# Differences of gradients: in units of the global, and of conditional standard deviations of the locals.
GLOBAL_STEP, LOCAL_STEP = 1e-3, 0.5
# Random directions along which third derivatives are averaged where blocks are chained, or larger than this.
NUM_DIRECTIONS, MAX_EXACT = 32, 100
FLOOR = 1e-4
# Scales are often smaller than where a search begins; on an interval such as (0, 100) they begin at 50.
SCALE_SHIFTS = (0.0, -2.0, -4.0, -6.0)
# Rounds of importance sampling, draws of each, how much wider than the Gaussian they are, and how many for every global
# must be effective.
NUM_ROUNDS, NUM_MATCHED, WIDER, MIN_COUNT = 3, 128, 1.4, 4
DAMPINGS = np.array([1.0, 10.0, 100.0])


class Marginal(NamedTuple):
    """The Laplace marginal at several values of the globals."""

    at: Moments
    value: Float[np.ndarray, " k"]
    gradient: Float[np.ndarray, "k c"]


class GlobalGaussian(NamedTuple):
    """A Gaussian approximation of the globals.

    Attributes:
        loc: its mean.
        tril: a triangular factor of its covariance.
        x: the full vector at its mean, with the locals at their conditional mode.
        locals: the locals there.
    """

    loc: Float[np.ndarray, " c"]
    tril: Float[np.ndarray, "c c"]
    x: Float[np.ndarray, " p"]
    locals: Locals


def laplace_marginal(
    target: Target, structure: Structure, x: Float[np.ndarray, "k p"], near: Locals | None = None
) -> Marginal:
    """Evaluate the Laplace marginal and its gradient; the locals of x are where the search for their modes begins.

    With phi(x) = tr(F F^T H(x)) for a fixed factor F, the gradient is that of log p, plus half of what phi changes by
    as the globals move and the modes follow them. Second differences of gradients along the columns of F give the
    gradient of phi, so that no third derivative is needed.
    """
    at = conditional_moments(target, structure, x, near)
    num, dim, first = len(x), structure.dim, structure.num_leaders
    leaders, local = list(structure.leaders), structure.order[first:]
    noise, share = _columns(structure)
    columns = np.zeros((num, len(noise), dim))
    for i, z in enumerate(noise):
        columns[:, i, local] = structure.flat(at.locals.color(np.broadcast_to(z, (num, *z.shape))))
    weight = share / LOCAL_STEP**2
    moved = np.concatenate([at.x[:, None] + LOCAL_STEP * columns, at.x[:, None] - LOCAL_STEP * columns], 1)
    around = gradients(target, moved.reshape(-1, dim))[1].reshape(num, -1, dim)
    by_x = weight * np.sum(around - at.gradient[:, None], 1)
    by_x = np.where(np.isfinite(by_x), by_x, 0.0)
    follow = np.zeros((num, dim))
    follow[:, local] = structure.flat(at.locals.solve(structure.by_block(by_x[:, local])[..., None])[..., 0])
    size = 1e-2 / np.maximum(np.max(np.abs(follow), 1, keepdims=True), 1e-8)
    both = gradients(target, np.concatenate([at.x + size * follow, at.x - size * follow]))[1]
    crossed = (both[:num] - both[num:]) / (2.0 * size)
    crossed = np.where(np.isfinite(crossed), crossed, 0.0)
    gradient = (at.gradient + 0.5 * (by_x + crossed))[:, leaders]
    value = at.log_density + 0.5 * structure.num_locals * LOG_2PI
    return Marginal(at, value, gradient)


def _columns(structure: Structure) -> tuple[Float[np.ndarray, "m b s"], float]:
    """Return noise whose images under F have, times a share, the sum of outer products F F^T."""
    shape = structure.members.shape
    if not structure.chained and structure.size <= MAX_EXACT:
        # Blocks do not interact: one direction for each place in a block.
        return np.stack([np.broadcast_to(row, shape) for row in np.eye(structure.size)]) * structure.is_member, 1.0
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (NUM_DIRECTIONS, *shape))
    return signs * structure.is_member, 1.0 / NUM_DIRECTIONS


def find_globals(
    target: Target, structure: Structure, points: Float[np.ndarray, "k p"], scales: Sequence[int]
) -> GlobalGaussian:
    """Climb to the mode of the Laplace marginal from the best of several points, each with smaller scales as well."""
    leaders = list(structure.leaders)
    lower = np.repeat(points, len(SCALE_SHIFTS), 0)
    lower[:, list(scales)] += np.tile(SCALE_SHIFTS, len(points))[:, None]
    begin = conditional_moments(target, structure, lower)
    at = begin.at([int(np.argmax(np.nan_to_num(begin.log_density, nan=-np.inf)))])
    damping = 1e-3
    for _ in range(MAX_STEPS):
        here, hessian = with_hessian(target, structure, at)
        at, gradient = here.at.at([0]), here.gradient[0]
        values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.T))
        curvature = np.maximum(np.abs(values), FLOOR)
        projected = vectors.T @ gradient
        if 0.5 * np.sum(projected**2 / curvature) < ARRIVED:
            break
        step = vectors @ (projected / curvature)
        # The whole step first; if it leads downhill, several shorter ones at once.
        damped = [vectors @ (projected / (curvature + d)) for d in damping * DAMPINGS]
        shorter = [0.3 * step, step * min(0.1, LONGEST / np.max(np.abs(step)))]
        for steps in ([step], [*damped, *shorter]):
            trial = np.repeat(at.x, len(steps), 0)
            trial[:, leaders] += np.stack(steps)
            there = conditional_moments(target, structure, trial, at.locals)
            gain = np.nan_to_num(there.log_density - at.log_density, nan=-np.inf)
            if gain.max() > 0.0:
                break
        if gain.max() > 0.0:
            at, damping = there.at([int(np.argmax(gain))]), max(1e-3, 1e-3 * damping)
        elif damping > 1e8:
            break
        else:
            damping = max(1.0, 1e3 * damping)
    covariance = (vectors / curvature) @ vectors.T
    x = at.x[0]
    return GlobalGaussian(x[leaders], np.linalg.cholesky(0.5 * (covariance + covariance.T)), x, at.locals)


def with_hessian(target: Target, structure: Structure, at: Moments) -> tuple[Marginal, Float[np.ndarray, "c c"]]:
    """Evaluate the marginal at one point and beside it, and its Hessian by differences."""
    num = structure.num_leaders
    around = np.repeat(at.x, num + 1, 0)
    around[1 + np.arange(num), list(structure.leaders)] += GLOBAL_STEP
    here = laplace_marginal(target, structure, around, at.locals)
    return here, (here.gradient[1:] - here.gradient[0]) / GLOBAL_STEP


def match_moments(
    target: Target, structure: Structure, gaussian: GlobalGaussian, random: np.random.Generator
) -> GlobalGaussian:
    """Return the Gaussian with the moments of the Laplace marginal, by importance sampling in a few rounds.

    At the mode the curvature of a skewed marginal, such as that of a scale which may be zero, tells little of its
    width. Weights are flattened as far as it takes for enough of them to count.
    """
    leaders, num = list(structure.leaders), structure.num_leaders
    for _ in range(NUM_ROUNDS):
        u = WIDER * random.normal(size=(NUM_MATCHED, num))
        x = np.repeat(gaussian.x[None], NUM_MATCHED, 0)
        x[:, leaders] = gaussian.loc + u @ gaussian.tril.T
        value = conditional_moments(target, structure, x, gaussian.locals).log_density
        log_weights = np.where(np.isfinite(value), value, -np.inf) + 0.5 * np.sum((u / WIDER) ** 2, 1)
        weights = flattened(log_weights, MIN_COUNT * num)
        if weights is None:
            return gaussian
        mean = weights @ x[:, leaders]
        centered = np.sqrt(weights)[:, None] * (x[:, leaders] - mean)
        covariance = centered.T @ centered
        try:
            tril = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return gaussian
        start = np.array(gaussian.x)
        start[leaders] = mean
        at = conditional_moments(target, structure, start[None], gaussian.locals)
        if not np.isfinite(at.log_density[0]):
            return gaussian
        gaussian = GlobalGaussian(mean, tril, at.x[0], at.locals)
    return gaussian


def flattened(log_weights: Float[np.ndarray, " k"], least: float) -> Float[np.ndarray, " k"] | None:
    """Return normalized weights, to the largest power at which so many are effective; None if that is too small."""
    for power in (1.0, 0.7, 0.5, 0.3):
        weights = np.exp(power * (log_weights - log_weights.max()))
        weights /= weights.sum()
        if 1.0 / np.sum(weights**2) >= least:
            return weights
    return None
