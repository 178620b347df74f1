"""Take out of the network's output what the columns of the table can say."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Directions of the table below this share of its largest one count as none.
RANK_TOLERANCE = 1e-6


class Basis(NamedTuple):
    """Centered, orthogonal combinations of the columns, of unit variance in the training."""

    mean: Float[np.ndarray, " p"]
    weights: Float[np.ndarray, "p r"]

    def __call__(self, matrix: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n r"]:
        """Return the combinations for rows of a table."""
        return (matrix - self.mean) @ self.weights


class Projection(NamedTuple):
    """What the combinations of the columns say of the network's output in the training, and the mean of that output."""

    coefficients: Float[np.ndarray, "r ..."]
    level: Float[np.ndarray, "..."]

    def residual(self, h: np.ndarray, z: np.ndarray, keep_level: bool) -> np.ndarray:
        """Take the projection of the training out of the output for other rows."""
        h = h - np.tensordot(z, self.coefficients, 1)
        return h if keep_level else h - self.level


def find_basis(matrix: Float[np.ndarray, "n p"]) -> Basis:
    """Span the columns and a constant; columns that others determine add nothing."""
    mean = matrix.mean(0)
    if not matrix.shape[1]:  # an intercept alone
        return Basis(mean, np.zeros((0, 0)))
    scale = np.maximum(matrix.std(0), 1e-300)
    _, sizes, directions = np.linalg.svd((matrix - mean) / scale, full_matrices=False)
    rank = int(np.sum(sizes > RANK_TOLERANCE * max(sizes.max(initial=0.0), 1.0)))
    return Basis(mean, (directions[:rank].T * np.sqrt(len(matrix)) / sizes[:rank]) / scale[:, None])


def residual(h: Float[Array, "b ..."], z: Float[Array, "b r"], keep_level: bool) -> Float[Array, "b ..."]:
    """Project within the rows given: h - Z (Z^+ h), with Z centered and h, too.

    Args:
        h: output of the network.
        z: combinations of the columns for the same rows.
        keep_level: leave the mean of h, which is the intercept where nothing else is.
    """
    z = z - jnp.mean(z, 0)
    level = jnp.mean(h, 0)
    if not z.shape[1]:
        return h if keep_level else h - level
    # A category that no row of the batch has leaves the matrix singular: its direction is left alone.
    gram = jnp.linalg.pinv(z.T @ z / z.shape[0], rtol=1e-5, hermitian=True)
    rest = h - level - jnp.tensordot(z, gram @ jnp.tensordot(z.T, h - level, 1) / z.shape[0], 1)
    return rest + level if keep_level else rest


def find_projection(h: np.ndarray, z: Float[np.ndarray, "n r"]) -> Projection:
    """Fit the projection to all rows of the training, for which `find_basis` made z."""
    level = h.mean(0)
    return Projection(np.tensordot(z.T, h - level, 1) / len(z), level)
