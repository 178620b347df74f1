"""A polynomial per parameter around a correlated distribution: it bends marginals without touching their ranks."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from bernflow.flows.bernstein import centered_polynomial, increments, inverse_increments, invert_centered

# The polynomial covers so many standard deviations of the start to both sides.
HALF_WIDTH = 4.0
ORDER = 10


class Marginals(eqx.Module):
    """x_i = m_i + s_i f_i((w_i - m_i) / s_i) with m, s fixed by the start and f_i trained from the identity.

    An affine map of skewed variates is less skewed than they are: where each parameter has its own likelihood, as in
    a Gaussian process with counts, the skewness lies along the axes of the parameters and not of the whitened noise.
    """

    start_loc: Float[Array, " p"]
    start_scale: Float[Array, " p"]
    raw: Float[Array, "p m"]

    def __init__(self, loc: Float[Array, " p"], scale: Float[Array, " p"]):
        self.start_loc = loc
        self.start_scale = scale
        start = inverse_increments(np.full(ORDER, 2.0 * HALF_WIDTH / ORDER))
        self.raw = jnp.tile(jnp.asarray(start), (loc.shape[0], 1))

    def transform_and_log_slope(self, w: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        """Map w to x; return log dx_i/dw_i."""
        loc, scale = stop_gradient(self.start_loc), stop_gradient(self.start_scale)
        value, slope = centered_polynomial(increments(self.raw), 0.5 + (w - loc) / (2.0 * HALF_WIDTH * scale))
        return loc + scale * value, jnp.log(slope) - np.log(2.0 * HALF_WIDTH)

    def inverse(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        """Map x to w."""
        t = invert_centered(increments(self.raw), (x - self.start_loc) / self.start_scale)
        return self.start_loc + 2.0 * HALF_WIDTH * self.start_scale * (t - 0.5)
