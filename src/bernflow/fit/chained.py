"""A chain of locals given globals by expectations, not by curvature at a mode: the Gaussian nearest in KL.

As in `fit/variational.py`, that Gaussian has E[grad log p] = 0 and E[-Hessian] = Q. Blocks of a chain are not
independent, so that expectations are averages over paths: pairs of opposite draws, in which every local has exactly the
second and fourth moments of a normal distribution. Where a log likelihood is a sum of terms of single locals, as in a
state-space model, these averages have hardly any noise.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import ndtri

from bernflow.fit.arrow import Curvature, Locals, eliminate, read_curvature
from bernflow.fit.conditionals import Moments, derivatives, gradients, join
from bernflow.flows.structure import Structure
from bernflow.target import Target

# Pairs of opposite paths, and steps of the fixed point.
NUM_PAIRS, NUM_STEPS = 6, 2
# Products with the Hessian that are held at once, in numbers.
MAX_NUMBERS = 2**23
# Second differences, in standard deviations, below which the locals are Gaussian given the globals.
GAUSSIAN = 1e-3
# A step changes no mean by more than so many standard deviations.
MAX_SHIFT = 1.0


class Covariance(NamedTuple):
    """The part of the covariance of a chain that a precision of the same structure can see.

    Attributes:
        blocks: of every block.
        chain: of a block with the one before it; zero for the first.
    """

    blocks: Float[np.ndarray, "k b s s"]
    chain: Float[np.ndarray, "k b s s"]

    def trace_with(self, curvature: Curvature) -> Float[np.ndarray, " k"]:
        """Return tr(Q C) for a precision Q."""
        assert curvature.chain is not None
        along = np.einsum("kbij,kbij->k", curvature.blocks, self.blocks)
        return along + 2.0 * np.einsum("kbij,kbij->k", curvature.chain, self.chain)


def covariance_of(locals_: Locals) -> Covariance:
    """Return the covariance of neighbors in a chain, by its recursion."""
    factor, chain = locals_.factor, locals_.chain
    assert chain is not None
    own = factor @ np.swapaxes(factor, -1, -2)
    carry = -own @ chain
    blocks, between = np.array(own), np.zeros_like(own)
    for b in range(1, own.shape[1]):
        between[:, b] = carry[:, b] @ blocks[:, b - 1]
        blocks[:, b] += between[:, b] @ np.swapaxes(carry[:, b], -1, -2)
    return Covariance(blocks, between)


def chain_is_gaussian(target: Target, structure: Structure, at: Moments) -> bool:
    """Tell whether a chain is Gaussian given the globals at a few points, as pairs of opposite paths see it."""
    spread = _spread(covariance_of(at.locals))
    step = _paths(at.locals, spread, structure, 1)[:, 0]
    local = structure.order[structure.num_leaders :]
    x = np.stack([at.x, at.x, at.x])
    x[1:, :, local] += np.stack([structure.flat(step), -structure.flat(step)])
    gradient = gradients(target, x.reshape(-1, structure.dim))[1].reshape(x.shape)[..., local]
    bend = structure.by_block(0.5 * (gradient[1] + gradient[2]) - gradient[0])
    moved = at.locals.solve(bend[..., None])[..., 0] / spread
    return bool(np.isfinite(moved).all() and np.max(np.abs(moved)) < GAUSSIAN)


def nearest_chains(target: Target, structure: Structure, at: Moments) -> Moments:
    """Return the moments of the Gaussians nearest in KL; points where that fails have a density of NaN.

    `log_density` becomes E[log p] plus the entropy of the locals, up to the constant that makes it that of Laplace's
    method where the locals are Gaussian.
    """
    numbers = 2 * NUM_PAIRS * 3 * structure.size * structure.dim
    at_once = max(1, MAX_NUMBERS // numbers)
    parts = [at.at(slice(i, i + at_once)) for i in range(0, len(at.x), at_once)]
    return join([_nearest(target, structure, part) for part in parts])


def _nearest(target: Target, structure: Structure, at: Moments) -> Moments:
    local = structure.order[structure.num_leaders :]
    sound = np.ones(len(at.x), bool)
    for _ in range(NUM_STEPS):
        x = _along(structure, at, _paths_of(structure, at))
        seen = derivatives(target, structure, x.reshape(-1, structure.dim))
        products = seen.products.reshape(*x.shape[:2], *seen.products.shape[1:])
        sound &= np.isfinite(products).all((1, 2, 3))
        curvature = read_curvature(structure, np.nan_to_num(products.mean(1)))
        locals_ = eliminate(curvature.blocks, curvature.chain)
        spread = _spread(covariance_of(locals_))
        gradient = structure.by_block(seen.gradient.reshape(x.shape)[..., local].mean(1))
        shift = locals_.solve(np.nan_to_num(gradient)[..., None])[..., 0]
        mode = at.mode + np.clip(np.nan_to_num(shift), -MAX_SHIFT * spread, MAX_SHIFT * spread)
        x = np.array(at.x)
        x[:, local] = structure.flat(mode)
        at = at._replace(x=x, mode=mode, locals=locals_)
    return at._replace(log_density=np.where(sound, _expected_log_density(target, structure, at), np.nan))


def _expected_log_density(target: Target, structure: Structure, at: Moments) -> Float[np.ndarray, " k"]:
    """Return E[log p] plus the entropy of the locals; NaN where a path leads to where there is no density."""
    here = read_curvature(structure, derivatives(target, structure, at.x).products)
    paths = _paths_of(structure, at)
    x = _along(structure, at, paths)
    value = gradients(target, x.reshape(-1, structure.dim))[0].reshape(x.shape[:2])
    value = np.where(np.isfinite(value), value, np.nan)
    # What a quadratic function would add is known exactly; what is left is averaged.
    left = value.mean(1) + 0.5 * np.mean(_quadratic(here, paths), 1)
    total = left - 0.5 * covariance_of(at.locals).trace_with(here)
    total += at.locals.log_det() + 0.5 * structure.num_locals
    return np.where(np.isfinite(total), total, np.nan)


def _paths_of(structure: Structure, at: Moments) -> Float[np.ndarray, "k n b s"]:
    """Draw half of the paths around the means; the other half is opposite."""
    return _paths(at.locals, _spread(covariance_of(at.locals)), structure, NUM_PAIRS)


def _along(structure: Structure, at: Moments, paths: Float[np.ndarray, "k n b s"]) -> Float[np.ndarray, "k m p"]:
    """Return parameter vectors at paths and at their opposites."""
    x = np.repeat(at.x[:, None], 2 * paths.shape[1], 1)
    x[:, :, structure.order[structure.num_leaders :]] += structure.flat(np.concatenate([paths, -paths], 1))
    return x


def _quadratic(curvature: Curvature, paths: Float[np.ndarray, "k n b s"]) -> Float[np.ndarray, "k n"]:
    """Return d^T Q d for every path d."""
    assert curvature.chain is not None
    own = np.einsum("knbi,kbij,knbj->kn", paths, curvature.blocks, paths, optimize=True)
    pairs = np.einsum("knbi,kbij,knbj->kn", paths[:, :, 1:], curvature.chain[:, 1:], paths[:, :, :-1], optimize=True)
    return own + 2.0 * pairs


def _paths(
    locals_: Locals, spread: Float[np.ndarray, "k b s"], structure: Structure, num: int
) -> Float[np.ndarray, "k n b s"]:
    """Draw paths around the mean, the same noise for all points; `_sizes` replace theirs, in the same order."""
    noise = np.random.default_rng(0).standard_normal((num, *structure.members.shape)) * structure.is_member
    points = len(locals_.factor)
    every = locals_.at(np.repeat(np.arange(points), num))
    paths = every.color(np.tile(noise, (points, 1, 1))).reshape(points, num, *structure.members.shape)
    rank = np.argsort(np.argsort(np.abs(paths), 1), 1)
    return np.sign(paths) * _sizes(num)[rank] * spread[:, None] * structure.is_member


@lru_cache
def _sizes(num: int) -> Float[np.ndarray, " n"]:
    """Return increasing values whose mean square is 1 and, of more than three, whose mean fourth power is 3."""
    quantiles = ndtri(0.5 + (np.arange(num) + 0.5) / (2.0 * num))

    def kurtosis(power: float) -> float:
        return float(np.mean(quantiles ** (4.0 * power)) / np.mean(quantiles ** (2.0 * power)) ** 2)

    values = quantiles ** (brentq(lambda power: kurtosis(power) - 3.0, 0.5, 4.0) if num > 3 else 1.0)
    return values / np.sqrt(np.mean(values**2))


def _spread(covariance: Covariance) -> Float[np.ndarray, "k b s"]:
    return np.sqrt(np.diagonal(covariance.blocks, axis1=-2, axis2=-1))
