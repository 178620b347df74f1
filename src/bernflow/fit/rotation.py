"""Axes along which the covariance of many dimensions changes with the few that lead them.

In many dimensions the followers of a flow depend on its leaders by a shift and a scale each. Where a leader, such as
the persistence of a time series, changes the covariance of the followers, these scales can go along with it if each
follower is the coordinate along an axis that the change does not turn: an eigenvector of dH/dv, H the Hessian of the
log density in units of the start and v the leader. A nat or more may be gained. Where the axes of the start are the
right ones, as for many groups of their own, a rotation would lose as much, so that both are estimated.
"""

import jax
import numpy as np
from jaxtyping import Array, Float

from bernflow.background import Effort, background_jit
from bernflow.fit.start import Gaussian
from bernflow.posterior import sampling
from bernflow.target import Target

# Differences are taken over so many standard deviations of the start to either side.
STEP = 0.5
# So many leaders, those that change the covariance most, are looked at.
MAX_LEADERS = 4
# Directions that tell how much a leader changes.
NUM_PROBES = 2
# Nats that a rotation must promise.
MIN_GAIN = 0.1


@np.errstate(all="ignore")  # a step may lead to where there is no density
def find_rotation(target: Target, start: Gaussian, context: int, seed: int = 0) -> Float[np.ndarray, "n n"] | None:
    """Return axes for all dimensions after the first `context`, as columns; None where those of the start will do.

    To leading order a flow whose scales follow only the diagonal of W = dH/dv misses a quarter of the squares of its
    other entries, in nats, as v is of variance one.
    """
    changes = _changes(target, start, context, seed)
    if not np.isfinite(changes).all() or 0.25 * np.sum(changes**2) < MIN_GAIN:
        return None
    _, axes = np.linalg.eigh(np.sum(changes @ changes, 0))
    return axes if _missed(changes) - _missed(axes.T @ changes @ axes) > MIN_GAIN else None


def _missed(changes: Float[np.ndarray, "k n n"]) -> float:
    """Return the nats that scales along the axes cannot follow."""
    diagonal = np.diagonal(changes, axis1=1, axis2=2)
    return 0.25 * float(np.sum(changes**2) - np.sum(diagonal**2))


def _changes(target: Target, start: Gaussian, context: int, seed: int) -> Float[np.ndarray, "k n n"]:
    """Return dH/dv, H among the followers, for the leaders v with the largest ones."""
    dim = target.dim
    num = dim - context
    leaders = STEP * np.eye(context, dim)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (NUM_PROBES, num))
    # As long as a single step, so that both look equally far.
    probes = np.concatenate([np.zeros((NUM_PROBES, context)), signs * STEP / np.sqrt(num)], axis=1)
    sizes = num * np.mean(np.sum(_mixed(target, start, leaders, probes)[..., context:] ** 2, -1), -1)
    chosen = np.argsort(-sizes, kind="stable")[:MAX_LEADERS]
    chosen = chosen[0.25 * sizes[chosen] > MIN_GAIN / MAX_LEADERS]
    if not len(chosen):
        return np.zeros((0, num, num))
    steps = np.concatenate([np.zeros((num, context)), STEP * np.eye(num)], axis=1)
    changes = _mixed(target, start, leaders[chosen], steps)[..., context:]
    return 0.5 * (changes + np.swapaxes(changes, 1, 2))


def _mixed(
    target: Target, start: Gaussian, first: Float[np.ndarray, "a p"], second: Float[np.ndarray, "b p"]
) -> Float[np.ndarray, "a b p"]:
    """Return mixed second differences of the gradient, in units of the start, per squared `STEP`."""
    corners = [one * first[:, None] + other * second for one in (1.0, -1.0) for other in (1.0, -1.0)]
    points = np.concatenate([corner.reshape(-1, target.dim) for corner in corners])
    size = sampling.density_block(target.model, target.dim)
    gradients = sampling.in_blocks(lambda part, _: _gradients(target, start.loc, start.factor, part), points, size)
    (both, left), (right, none) = gradients.reshape(2, 2, len(first), len(second), target.dim)
    return (both - left - right + none) / (2.0 * STEP) ** 2


@background_jit(Effort.LIGHT)
def _gradients(
    target: Target, loc: Float[Array, " p"], factor: Float[Array, "p p"], z: Float[Array, "s p"]
) -> Float[Array, "s p"]:
    return jax.vmap(lambda z: factor.T @ jax.grad(target.log_density)(loc + factor @ z))(z)
