"""Quadratic dependence of noise on earlier noise: what a Gaussian conditional with straight axes leaves out.

    w_i = z_i + sum_t c_t (z_j z_k - [j = k]),   j <= k < i,

over the terms t = (i, j, k). To first order in the third derivatives T of a log density around a standard normal one,
this is how w_i depends on earlier coordinates, with c = T_ijk, or half of that where j = k. The volume is preserved.
Of all terms only those that were found to matter are kept. They are found by regressions of the score and not trained.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int

from bernflow.flows.base import Fixed

# The terms are constant in a coordinate beyond this many standard deviations.
CLIP_AT = 4.0


class Bend(eqx.Module):
    """The map of noise.

    Attributes:
        terms: i, j and k of every term; terms with the coefficient 0 are spare.
        coefficients: c.
    """

    terms: Fixed[Int[Array, "3 t"]]
    coefficients: Fixed[Float[Array, " t"]]

    def __init__(self, num_terms: int):
        self.terms = Fixed(jnp.zeros((3, num_terms), jnp.int32))
        self.coefficients = Fixed(jnp.zeros(num_terms))

    @property
    def num_terms(self) -> int:
        """Number of terms, with the spare ones."""
        return self.coefficients.value.shape[-1]

    def __call__(self, z: Float[Array, " p"]) -> Float[Array, " p"]:
        """Map noise z to w."""
        row, j, k = self.terms.value
        inside = _inside(z)[0]
        products = self.coefficients.value * (inside[j] * inside[k] - (j == k))
        return z + jax.ops.segment_sum(products, row, z.shape[0])

    def invert(self, w: Float[Array, " p"]) -> Float[Array, " p"]:
        """Map w to noise z, one coordinate after the other."""

        def step(i, z):
            # Coordinates from i on are still those of w and do not enter the shift of coordinate i.
            return z.at[i].add(z[i] - self(z)[i])

        return jax.lax.fori_loop(0, w.shape[0], step, w)

    def pull_back(self, z: Float[Array, " p"], covector: Float[Array, " p"]) -> Float[Array, " p"]:
        """Return J^-T applied to a gradient with respect to z, J = dw/dz: the gradient with respect to w."""
        row, j, k = self.terms.value
        inside, moves = _inside(z)
        coefficients = self.coefficients.value
        jacobian = jnp.eye(z.shape[0]).at[row, j].add(coefficients * inside[k] * moves[j])
        jacobian = jacobian.at[row, k].add(coefficients * inside[j] * moves[k])
        # Spare terms add zero to an entry above or on the diagonal.
        return solve_triangular(jacobian, covector, lower=True, trans="T", unit_diagonal=True)

    def adding(self, found: tuple[np.ndarray, np.ndarray]) -> "Bend":
        """Return the map with more terms, (3, t) and their coefficients; the largest are kept where there are too many.

        The coefficients of terms that are there already are added up.
        """
        own = np.asarray(self.terms.value), np.asarray(self.coefficients.value)
        terms, coefficients = (np.concatenate(pair, -1) for pair in zip(own, found, strict=True))
        terms, index = np.unique(terms, axis=1, return_inverse=True)
        summed = np.bincount(np.ravel(index), coefficients, terms.shape[1])
        largest = np.argsort(-np.abs(summed), kind="stable")[: self.num_terms]
        spare = self.num_terms - len(largest)
        new: tuple[Any, Any] = (
            np.pad(terms[:, largest], ((0, 0), (0, spare))).astype(np.int32),
            np.pad(summed[largest], (0, spare)).astype(own[1].dtype),
        )
        return eqx.tree_at(lambda bend: (bend.terms.value, bend.coefficients.value), self, new)


def _inside(z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Bool[Array, " p"]]:
    """Return clipped coordinates, and whether they are inside; at the limit itself the slope is zero."""
    is_inside = jnp.abs(z) < CLIP_AT
    return jnp.where(is_inside, z, CLIP_AT * jnp.sign(z)), is_inside
