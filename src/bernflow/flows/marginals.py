"""An increasing polynomial per parameter: it changes the marginals of a correlated distribution, not its copula."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from bernflow.flows.base import constant
from bernflow.flows.bernstein import increments, inverse_increments, invert_centered
from bernflow.flows.shape import PolynomialInput, shape_of, slopes_of, value_with_derivatives

# The polynomial covers this many standard deviations of the start on either side.
HALF_WIDTH = 4.0
ORDER = 10


class Marginals(eqx.Module):
    """x_i = m_i + s_i f_i((w_i - m_i) / s_i) with m, s fixed by the start and f_i trained from the identity.

    An affine map of skewed variates reduces their skewness. Where each parameter has its own likelihood, as in a
    Gaussian process with counts, the parameters are skewed and not the coordinates of the whitened noise.
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
        shape = shape_of(self.raw, None, self._polynomial_input(w))
        return self._value(shape.tailed.value), shape.log_slope()

    def transform_with_derivatives(self, w: Float[Array, " p"]) -> tuple[Array, Array, Array]:
        """Map w to x; return log dx_i/dw_i and its derivative. Only x can be differentiated."""
        fixed = constant(self)
        shape = shape_of(fixed.raw, None, self._polynomial_input(stop_gradient(w)))
        slopes = slopes_of(shape, fixed.raw)
        value = value_with_derivatives(shape, slopes, self.raw, self._polynomial_input(w).t, None)
        return self._value(value), shape.log_slope(), slopes.log_slope_by_z / fixed.start_scale

    def _value(self, value: Float[Array, " p"]) -> Float[Array, " p"]:
        return stop_gradient(self.start_loc) + stop_gradient(self.start_scale) * value

    def _polynomial_input(self, w: Float[Array, " p"]) -> PolynomialInput:
        # In units of the start, so that the slope of x by w is that of the shape by its noise.
        z = (w - stop_gradient(self.start_loc)) / stop_gradient(self.start_scale)
        width = 2.0 * HALF_WIDTH
        return PolynomialInput(0.5 + z / width, jnp.full_like(z, -np.log(width)), 0.0)

    def inverse(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        """Map x to w."""
        t = invert_centered(increments(self.raw), (x - self.start_loc) / self.start_scale)
        return self.start_loc + 2.0 * HALF_WIDTH * self.start_scale * (t - 0.5)
