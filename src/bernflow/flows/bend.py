"""Noise that depends on earlier noise: what a Gaussian conditional with straight axes and fixed scales leaves out.

    w_i = exp(s_i) z_i + sum_{k <= j} Q_ijk (n_j n_k - [j = k]),   s_i = sum_j a_ij n_j,

where n are a few earlier coordinates of z, the neighbors of i. To first order in the third derivatives T of a log
density around a standard normal one, this is how w_i depends on earlier coordinates, with Q = T_ijk, or half of that
where j = k, and a = T_iij / 2. The coefficients are found by regressions of the score and not trained.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bernflow.flows.base import Fixed

# Neighbors are constant beyond this many standard deviations, and log scales do not go beyond this size.
CLIP_AT, MAX_LOG_SCALE = 4.0, 1.0


class Coefficients(NamedTuple):
    """Coefficients of every coordinate, and the neighbors to which they belong."""

    neighbors: Int[np.ndarray, "p e"]
    quadratic: Float[np.ndarray, "p e e"]
    scale: Float[np.ndarray, "p e"]

    def times(self, share: float) -> "Coefficients":
        """Return a share of them."""
        return Coefficients(self.neighbors, share * self.quadratic, share * self.scale)


class Bend(eqx.Module):
    """The map of noise.

    Attributes:
        neighbors: earlier coordinates; entries with zero coefficients are spare.
        quadratic: Q, zero above the diagonal.
        scale: a.
    """

    neighbors: Fixed[Int[Array, "p e"]]
    quadratic: Fixed[Float[Array, "p e e"]]
    scale: Fixed[Float[Array, "p e"]]

    def __init__(self, dim: int, num_neighbors: int):
        self.neighbors = Fixed(jnp.zeros((dim, num_neighbors), jnp.int32))
        self.quadratic = Fixed(jnp.zeros((dim, num_neighbors, num_neighbors)))
        self.scale = Fixed(jnp.zeros((dim, num_neighbors)))

    @property
    def num_neighbors(self) -> int:
        """Number of neighbors, with the spare ones."""
        return self.scale.value.shape[-1]

    def __call__(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise z to w; return w and log |dw/dz|."""
        near = _inside(z)[self.neighbors.value]
        log_scale = jax.vmap(_log_scale)(self.scale.value, near)
        return jnp.exp(log_scale) * z + jax.vmap(_shift)(self.quadratic.value, near), jnp.sum(log_scale)

    def invert(self, w: Float[Array, " p"]) -> Float[Array, " p"]:
        """Map w to noise z, one coordinate after the other."""

        def step(z, row):
            i, neighbors, quadratic, scale = row
            near = _inside(z[neighbors])
            return z.at[i].set(jnp.exp(-_log_scale(scale, near)) * (w[i] - _shift(quadratic, near))), None

        rows = jnp.arange(w.shape[0]), self.neighbors.value, self.quadratic.value, self.scale.value
        return jax.lax.scan(step, jnp.zeros_like(w), rows)[0]

    def pull_back(self, z: Float[Array, " p"], score: Float[Array, " p"]) -> Float[Array, " p"]:
        """Return the gradient of a log density with respect to w from that of the noise with respect to z."""

        def row(quadratic, scale, near, own):
            """One coordinate of w as a function of its neighbors and of its own noise."""
            return jnp.exp(_log_scale(scale, near)) * own + _shift(quadratic, near)

        near = _inside(z)[self.neighbors.value]
        by_near, by_own = jax.vmap(jax.grad(row, (2, 3)))(self.quadratic.value, self.scale.value, near, z)
        is_inside = jnp.abs(z) < CLIP_AT
        by_near = jnp.where(is_inside[self.neighbors.value], by_near, 0.0)
        score = score - jax.grad(lambda z: self(z)[1])(z)

        def step(left, row):
            """Solve J^T x = left from the last coordinate to the first."""
            i, neighbors, by_near, by_own = row
            own = left[i] / by_own
            # A spare neighbor may be the coordinate itself, with a slope of zero.
            return left.at[neighbors].add(-by_near * own).at[i].set(own), None

        rows = jnp.arange(z.shape[0]), self.neighbors.value, by_near, by_own
        return jax.lax.scan(step, score, rows, reverse=True)[0]

    def adding(self, found: Coefficients) -> "Bend":
        """Return the map with more coefficients; every coordinate keeps the neighbors with the largest ones."""
        parts = self.neighbors.value, self.quadratic.value, self.scale.value
        both = zip(zip(*map(np.asarray, parts), strict=True), zip(*found, strict=True), strict=True)
        rows = [_added(Coefficients(*own), Coefficients(*more), self.num_neighbors) for own, more in both]
        new = [np.stack(part).astype(old.dtype) for part, old in zip(zip(*rows, strict=True), parts, strict=True)]
        return eqx.tree_at(lambda bend: (bend.neighbors.value, bend.quadratic.value, bend.scale.value), self, new)


def _inside(z: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return clipped coordinates; at the limit itself the slope is zero."""
    return jnp.where(jnp.abs(z) < CLIP_AT, z, CLIP_AT * jnp.sign(z))


def _shift(quadratic: Float[Array, "e e"], near: Float[Array, " e"]) -> Float[Array, ""]:
    return near @ quadratic @ near - jnp.trace(quadratic)


def _log_scale(scale: Float[Array, " e"], near: Float[Array, " e"]) -> Float[Array, ""]:
    return MAX_LOG_SCALE * jnp.tanh(scale @ near / MAX_LOG_SCALE)


def _added(own: Coefficients, more: Coefficients, num: int) -> Coefficients:
    """Add up the coefficients of one coordinate; the neighbors with the largest ones are kept."""
    together = np.unique(np.concatenate([own.neighbors, more.neighbors]))
    quadratic, scale = np.zeros((len(together), len(together))), np.zeros(len(together))
    for part in (own, more):
        places = np.searchsorted(together, part.neighbors)
        np.add.at(quadratic, (places[:, None], places), part.quadratic)
        np.add.at(scale, places, part.scale)
    quadratic = np.tril(quadratic) + np.triu(quadratic, 1).T
    size = np.sum(quadratic**2, 0) + np.sum(quadratic**2, 1) + scale**2
    kept = np.sort(np.argsort(-size, kind="stable")[:num])
    spare = (0, num - len(kept))
    return Coefficients(
        np.pad(together[kept], spare), np.pad(quadratic[np.ix_(kept, kept)], (spare, spare)), np.pad(scale[kept], spare)
    )
