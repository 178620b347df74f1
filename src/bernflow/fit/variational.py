"""Locals given globals by expectations, not by curvature at a mode: the Gaussian nearest in KL, and its skewness.

Where the locals are not Gaussian given the globals, as under counts or binary outcomes, their mode is off their mean
and the curvature there off their precision. The Gaussian with mean m and factor F that minimizes KL(q || p) satisfies

    E[r] = 0,   E[r z^T] = 0,   r(z) = F^T grad log p(m + F z) + z,   z ~ N(0, I),

since E[r z^T] = I + F^T E[Hessian] F by Stein's identity. Blocks are independent given the globals, so that one point
of a quadrature serves all blocks at once, and gradients are all that it takes. r is zero where p is Gaussian.
"""

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bernflow.fit.arrow import Locals
from bernflow.fit.conditionals import Moments, gradients
from bernflow.flows.structure import Structure
from bernflow.target import Target

# Nodes for each dimension of a block, by the size of the blocks; larger blocks get so many random ones.
NODES, NUM_RANDOM = {1: 7, 2: 4, 3: 3}, 64
# Steps of the fixed point, and the share of a standard deviation below which nothing is left to do.
NUM_STEPS, SETTLED = 3, 1e-3
# Residuals in units of one standard deviation below which the locals are Gaussian given the globals.
GAUSSIAN = 1e-3
# A step changes no precision by more than this factor, and no mean by more than so many standard deviations.
MAX_FACTOR, MAX_SHIFT = 4.0, 1.0


class Nodes(NamedTuple):
    """A quadrature for standard normal noise in one block."""

    z: Float[np.ndarray, "q s"]
    weights: Float[np.ndarray, " q"]


@lru_cache
def nodes_for(size: int) -> Nodes:
    """Return a product of Gauss-Hermite rules in small blocks, pairs of opposite random points in larger ones."""
    if size in NODES:
        z, weights = np.polynomial.hermite_e.hermegauss(NODES[size])
        every = list(product(range(len(z)), repeat=size))
        total = np.array([np.prod(weights[list(one)]) for one in every])
        return Nodes(np.array([z[list(one)] for one in every]), total / total.sum())
    half = np.random.default_rng(0).standard_normal((NUM_RANDOM // 2, size))
    return Nodes(np.concatenate([half, -half]), np.full(NUM_RANDOM, 1.0 / NUM_RANDOM))


class Residuals(NamedTuple):
    """What is seen at the nodes of several points: r, and the log densities."""

    r: Float[np.ndarray, "k q b s"]
    value: Float[np.ndarray, "k q"]


def residuals(
    target: Target, structure: Structure, at: Moments, nodes: Nodes, factor: Float[np.ndarray, "k b s s"] | None = None
) -> Residuals:
    """Evaluate r and log p at the nodes around every point; F may be another factor of the same covariance."""
    factor = at.locals.factor if factor is None else factor
    num, local = len(at.x), structure.order[structure.num_leaders :]
    inside = structure.is_member
    z = nodes.z[:, None, :] * inside
    shift = np.einsum("kbij,qbj->kqbi", factor, z)
    x = np.repeat(at.x[:, None], len(z), 1)
    x[:, :, local] = structure.flat(at.mode[:, None] + shift)
    value, gradient = gradients(target, x.reshape(num * len(z), -1))
    by_block = structure.by_block(gradient.reshape(num, len(z), -1)[..., local])
    r = np.einsum("kbij,kqbi->kqbj", factor, by_block) + z
    return Residuals(r * inside, value.reshape(num, len(z)))


def are_gaussian(target: Target, structure: Structure, at: Moments) -> bool:
    """Tell whether locals are Gaussian given the globals at a few points, as two nodes on opposite sides see it."""
    pair = Nodes(np.stack([np.ones(structure.size), -np.ones(structure.size)]), np.full(2, 0.5))
    r = residuals(target, structure, at, pair).r
    return bool(np.isfinite(r).all() and np.max(np.abs(r)) < GAUSSIAN)


def nearest_gaussians(target: Target, structure: Structure, at: Moments) -> Moments:
    """Return the moments of the Gaussians nearest in KL; points where that fails keep what they have.

    `log_density` becomes E[log p] plus the entropy of the locals, up to the constant that makes it that of Laplace's
    method where the locals are Gaussian: a lower bound on the marginal of the globals.
    """
    nodes = nodes_for(structure.size)
    eye = np.eye(structure.size)
    for step in range(NUM_STEPS + 1):
        seen = residuals(target, structure, at, nodes)
        sound = np.isfinite(seen.r).all((1, 2, 3)) & np.isfinite(seen.value).all(1)
        r = np.where(sound[:, None, None, None], seen.r, 0.0)
        mean = np.einsum("q,kqbi->kbi", nodes.weights, r)
        spread = np.einsum("q,kqbi,qj->kbij", nodes.weights, r, nodes.z)
        spread = 0.5 * (spread + np.swapaxes(spread, -1, -2))
        if step == NUM_STEPS or max(np.abs(mean).max(), np.abs(spread).max()) < SETTLED:
            break
        values, vectors = np.linalg.eigh(eye - spread)
        values = np.clip(values, 1.0 / MAX_FACTOR, MAX_FACTOR)
        covariance = (vectors / values[..., None, :]) @ np.swapaxes(vectors, -1, -2)
        moved = np.clip((covariance @ mean[..., None])[..., 0], -MAX_SHIFT, MAX_SHIFT)
        factor = at.locals.factor
        mode = at.mode + (factor @ moved[..., None])[..., 0]
        at = at._replace(mode=mode, locals=Locals(factor @ np.linalg.cholesky(covariance), None))
    x = np.array(at.x)
    x[:, structure.order[structure.num_leaders :]] = structure.flat(at.mode)
    expected = np.einsum("q,kq->k", nodes.weights, seen.value)
    log_density = expected + at.locals.log_det() + 0.5 * structure.num_locals
    return at._replace(x=x, log_density=np.where(sound, log_density, np.nan))


class Skewness(NamedTuple):
    """Third and fourth derivatives of a log density, in units of the noise of the flow.

    Attributes:
        third: T_iii of every local.
        fourth: likewise.
        by_squares: T_iij at [j, i].
        by_products: T_ijj at [j, i].
    """

    third: Float[np.ndarray, "b s"]
    fourth: Float[np.ndarray, "b s"]
    by_squares: Float[np.ndarray, "b s s"]
    by_products: Float[np.ndarray, "b s s"]


def skewness(target: Target, structure: Structure, at: Moments) -> Skewness:
    """Return derivatives of the log density at the first point, averaged over the nearest Gaussian.

    They are averages of r times Hermite polynomials, by Stein's identity again.
    """
    first = at.at(slice(1))
    inverse = np.linalg.inv(first.locals.factor)
    # As the flow colors noise: by the inverse of a factor of the precision, transposed.
    factor = np.swapaxes(np.linalg.inv(np.linalg.cholesky(np.swapaxes(inverse, -1, -2) @ inverse)), -1, -2)
    nodes = nodes_for(structure.size)
    r, z = np.nan_to_num(residuals(target, structure, first, nodes, factor).r[0]), nodes.z
    weighted = nodes.weights[:, None, None] * r
    return Skewness(
        np.einsum("qbi,qi->bi", weighted, z**2 - 1.0),
        np.einsum("qbi,qi->bi", weighted, z**3 - 3.0 * z),
        np.einsum("qbj,qi->bji", weighted, z**2 - 1.0),
        np.einsum("qbj,qj,qi->bji", weighted, z, z),
    )
