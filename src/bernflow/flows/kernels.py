"""Smooth functions of the globals, interpolated from values at given points."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Interpolant(eqx.Module):
    """Sums of Gaussian kernels and a linear trend.

    Attributes:
        points: centers of the kernels.
        width: width of the kernels in every coordinate.
        reach: smallest and largest value of every coordinate, beyond which the functions are constant.
        weights: coefficients of the kernels, the constant and the coordinates, for every function.
    """

    points: Float[Array | np.ndarray, "k c"]
    width: Float[Array | np.ndarray, " c"]
    reach: Float[Array | np.ndarray, "2 c"]
    weights: Float[Array | np.ndarray, "f r"]

    def features(self, u: Any, xp: Any = jnp) -> Any:
        """Evaluate the kernels, the constant and the clipped coordinates.

        Args:
            u: coordinates, (..., c).
            xp: `jax.numpy`, or `numpy` for arrays of NumPy.
        """
        v = xp.clip(u, self.reach[0], self.reach[1])
        squares = xp.sum(((v[..., None, :] - self.points) / self.width) ** 2, -1)
        return xp.concatenate([xp.exp(-0.5 * squares), xp.ones_like(v[..., :1]), v], -1)

    def __call__(self, u: Float[Array, " c"]) -> Float[Array, " r"]:
        """Evaluate all functions."""
        return self.features(u) @ self.weights
