"""Quadratic dependence within blocks: the part of the skewness of a density that is not in its marginals.

In every block v is mapped to w by

    w_j = exp(sum_{i<j} D_ji v_i) v_j + sum_{i<j} C_ji (v_i^2 - 1).

To first order in the third derivatives T of a log density around a standard normal one, in two dimensions this is the
map from noise to the density with C_ji = T_iij / 2 and D_ji = T_ijj / 2.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# Larger blocks have no such terms.
MAX_SIZE = 8
# The terms are constant beyond this many standard deviations.
CLIP_AT = 4.0


class Curved(eqx.Module):
    """The map of all blocks.

    Attributes:
        shift: C, strictly lower triangular.
        log_scale: D, strictly lower triangular.
    """

    shift: Float[Array, "b s s"]
    log_scale: Float[Array, "b s s"]

    def __init__(self, num: int, size: int):
        self.shift, self.log_scale = jnp.zeros((num, size, size)), jnp.zeros((num, size, size))

    def __call__(
        self, v: Float[Array, "b s"], is_member: Bool[np.ndarray, "b s"]
    ) -> tuple[Float[Array, "b s"], Float[Array, ""]]:
        """Map values; return them and the log determinant. Entries that are not members pad the blocks."""
        shift, log_scale = self._terms(v)
        return jnp.exp(log_scale) * v + shift, jnp.sum(log_scale * is_member)

    def invert(self, w: Float[Array, "b s"]) -> Float[Array, "b s"]:
        """Invert the map, one position of the blocks after the other."""
        v = w
        for place in range(1, w.shape[1]):
            # The terms at this position depend on earlier positions only, which are already inverted.
            shift, log_scale = self._terms(v)
            v = v.at[:, place].set((w[:, place] - shift[:, place]) * jnp.exp(-log_scale[:, place]))
        return v

    def _terms(self, v: Float[Array, "b s"]) -> tuple[Float[Array, "b s"], Float[Array, "b s"]]:
        inside = jnp.clip(v, -CLIP_AT, CLIP_AT)
        below = np.tril(np.ones(self.shift.shape[-2:]), -1)
        shift = jnp.einsum("bji,bi->bj", self.shift * below, inside**2 - 1.0)
        return shift, jnp.einsum("bji,bi->bj", self.log_scale * below, inside)
