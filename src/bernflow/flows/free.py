"""Shapes whose coefficients are free parameters, independent of other dimensions."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bernflow.flows.base import constant
from bernflow.flows.bernstein import increments, inverse_increments, invert_centered
from bernflow.flows.noise import NOISES
from bernflow.flows.shape import (
    PolynomialInput,
    Shape,
    Slopes,
    polynomial_input,
    shape_of,
    slopes_of,
    value_with_derivatives,
)
from bernflow.flows.tails import NUM_WEIGHTS, invert_tails


class AbstractFreeShapes(eqx.Module):
    """Polynomials with tails, H(f(t)), whose coefficients are free parameters."""

    inner_log_scale: eqx.AbstractVar[Float[Array, " n"]]
    inner_shift: eqx.AbstractVar[Float[Array, " n"]]
    raw: eqx.AbstractVar[Float[Array, "n m"]]
    tails: eqx.AbstractVar[Float[Array, "n 4"]]
    noise: eqx.AbstractVar[str]

    def shape(self, z: Float[Array, " n"]) -> Shape:
        """Evaluate H(f(t))."""
        return shape_of(self.raw, self.tails, self._polynomial_input(z))

    def shape_and_slopes(self, z: Float[Array, " n"]) -> tuple[Shape, Slopes, Float[Array, " n"]]:
        """Evaluate shapes and their derivatives; only the value, returned last, can be differentiated."""
        fixed = constant(self)
        shape = fixed.shape(z)
        slopes = slopes_of(shape, fixed.raw)
        return shape, slopes, value_with_derivatives(shape, slopes, self.raw, self._polynomial_input(z).t, self.tails)

    def invert_shapes(self, value: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the noise at which the shapes take given values."""
        t = invert_centered(increments(self.raw), invert_tails(self.tails, value))
        v = NOISES[self.noise].half_width * (2.0 * t - 1.0)
        return (v - self.inner_shift) * jnp.exp(-self.inner_log_scale)

    def _polynomial_input(self, z: Float[Array, " n"]) -> PolynomialInput:
        return polynomial_input(z, self.inner_log_scale, self.inner_shift, self.noise)


def identity_shapes(num: int, order: int, noise: str) -> dict[str, Any]:
    """Return the fields of `AbstractFreeShapes` at which H(f(t)) = z."""
    raw = jnp.asarray(inverse_increments(np.diff(NOISES[noise].start(order))))
    return {
        "inner_log_scale": jnp.zeros(num),
        "inner_shift": jnp.zeros(num),
        "raw": jnp.tile(raw, (num, 1)),
        "tails": jnp.zeros((num, NUM_WEIGHTS)),
        "noise": noise,
    }
