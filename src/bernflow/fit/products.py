"""Regressions of residuals on products of earlier noise: the coefficients of a `Bend`.

Scales of locals may depend on noise of other locals, too; for globals and on globals, other parts of the flow do that.
A product explains little, and all of them a lot: those that are not significant are shrunk together.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bernflow.flows.bend import Coefficients
from bernflow.flows.dense import is_one_dense_block
from bernflow.flows.structure import Structure

# Coefficients with fewer standard errors than this are not significant: there are many thousands; and the largest one.
MIN_ERRORS, MAX_PRODUCT = 4.0, 0.3
# In a chain, the number of earlier locals in products.
WINDOW = 10


def earlier_noise(structure: Structure) -> list[Int[np.ndarray, " k"]]:
    """Return the coordinates of the noise on whose products every coordinate may depend."""
    num, places = structure.num_leaders, np.arange(structure.dim)
    if is_one_dense_block(structure):
        return [places[:i] for i in places]
    if not structure.chained:
        return [places[: min(i, num)] for i in places]
    return [places[:i] if i <= num else np.r_[places[:num], places[max(num, i - WINDOW) : i]] for i in places]


def find_products(
    z: Float[np.ndarray, "s p"], r: Float[np.ndarray, "s p"], structure: Structure, num_neighbors: int
) -> Coefficients:
    """Return how every residual depends on products of earlier noise, for the neighbors with the largest coefficients.

    Args:
        z: noise.
        r: residuals.
        structure: of the flow.
        num_neighbors: the most neighbors.
    """
    # Their noise is far above the rounding of single precision.
    z, r = z.astype(np.float32), r.astype(np.float32)
    found = Coefficients(
        np.zeros((structure.dim, num_neighbors), int),
        np.zeros((structure.dim, num_neighbors, num_neighbors)),
        np.zeros((structure.dim, num_neighbors)),
    )
    for i, near in enumerate(earlier_noise(structure)):
        if not len(near):
            continue
        estimate = Products.of(z[:, near], r[:, i], z[:, i] if i >= structure.num_leaders else None)
        estimate = estimate.without_scale(near < structure.num_leaders)
        kept = np.sort(np.argsort(-estimate.sizes(), kind="stable")[:num_neighbors])
        quadratic, scale = estimate.at(kept).shrunk()
        found.neighbors[i, : len(kept)] = near[kept]
        found.quadratic[i, : len(kept), : len(kept)] = quadratic
        found.scale[i, : len(kept)] = scale
    return found


class Products(NamedTuple):
    """Coefficients of one residual: of products and squares of earlier noise, and of its products with the own noise.

    The norms of the functions are one for products, two for squares and for products with the own noise.
    """

    quadratic: Float[np.ndarray, "e e"]
    quadratic_variance: Float[np.ndarray, "e e"]
    scale: Float[np.ndarray, " e"]
    scale_variance: Float[np.ndarray, " e"]

    @classmethod
    def of(
        cls, near: Float[np.ndarray, "s e"], r: Float[np.ndarray, " s"], own: Float[np.ndarray, " s"] | None
    ) -> "Products":
        """Return estimates from draws of the noise, and of the own noise where it counts."""
        num, squares, places = len(r), near**2, np.arange(near.shape[1])
        mean = (near.T * r) @ near / num
        variance = (squares.T * r**2) @ squares / num**2
        parabola = r[:, None] * (squares - 1.0)
        mean[places, places], variance[places, places] = np.mean(parabola, 0) / 2.0, np.var(parabola, 0) / (4.0 * num)
        scale = np.zeros((2, len(places)))
        if own is not None:
            scale = np.stack([near.T @ (r * own) / (2.0 * num), squares.T @ (r * own) ** 2 / (4.0 * num**2)])
        return cls(*(part.astype(float) for part in (np.tril(mean), np.tril(variance), *scale)))

    def without_scale(self, where: Bool[np.ndarray, " e"]) -> "Products":
        """Leave out some of the products with the own noise."""
        return self._replace(
            scale=np.where(where, 0.0, self.scale), scale_variance=np.where(where, 0.0, self.scale_variance)
        )

    def at(self, kept: Int[np.ndarray, " k"]) -> "Products":
        """Return the coefficients of some of the earlier coordinates."""
        square = np.ix_(kept, kept)
        return Products(
            self.quadratic[square], self.quadratic_variance[square], self.scale[kept], self.scale_variance[kept]
        )

    def sizes(self) -> Float[np.ndarray, " e"]:
        """Return what every earlier coordinate contributes to the residual, without the noise of the estimates."""
        quadratic = self.quadratic**2 - self.quadratic_variance
        return quadratic.sum(0) + quadratic.sum(1) + 2.0 * (self.scale**2 - self.scale_variance)

    def shrunk(self) -> tuple[Float[np.ndarray, "e e"], Float[np.ndarray, " e"]]:
        """Return the coefficients, each or all together times the share of their squares that is not noise."""
        norms = np.ones_like(self.quadratic) + np.eye(len(self.scale))
        quadratic = _shrunk_together(self.quadratic, self.quadratic_variance, norms)
        return quadratic, _shrunk_together(self.scale, self.scale_variance, 2.0 * np.ones_like(self.scale))


def _shrunk_together(estimate: np.ndarray, variance: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Shrink significant estimates one by one, and the others by a common factor."""
    is_clear = estimate**2 > MIN_ERRORS**2 * variance
    signal, noise = (np.sum(np.where(is_clear, 0.0, part * norms)) for part in (estimate**2, variance))
    common = 1.0 - noise / signal if signal > noise else 0.0
    return np.clip(np.where(is_clear, shrunk(estimate, variance), common * estimate), -MAX_PRODUCT, MAX_PRODUCT)


def shrunk(estimate: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return estimates, each times the share of its square that is not noise."""
    return estimate * np.maximum(0.0, 1.0 - variance / np.maximum(estimate**2, 1e-300))
