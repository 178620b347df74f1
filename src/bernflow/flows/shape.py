"""The shape of one dimension, H(f(t)): polynomial and tails, with the derivatives that a score needs.

The derivatives are written out because the score of a flow needs them. `value_with_derivatives` also passes them to
automatic differentiation, which would otherwise derive them again for the training gradient, at a cost in run time and
compile time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bernflow.flows.bernstein import Terms, centered_terms, increments, increments_by_raw, log_slope_by_t
from bernflow.flows.noise import NOISES
from bernflow.flows.tails import TailOutput, apply_tails


class PolynomialInput(NamedTuple):
    """The argument t of a polynomial, log dt/dz, and the derivative of that log."""

    t: Float[Array, " p"]
    log_rate: Float[Array, " p"]
    log_rate_by_z: Float[Array, " p"] | float


class Shape(NamedTuple):
    """H(f(t)) of several dimensions, with intermediate values.

    Attributes:
        input: the argument of the polynomial.
        terms: the terms of the polynomial.
        increment: increments of its coefficients, (p, M).
        slope: f'(t).
        tailed: H(f(t)).
    """

    input: PolynomialInput
    terms: Terms
    increment: Float[Array, "p m"]
    slope: Float[Array, " p"]
    tailed: TailOutput

    def log_slope(self) -> Float[Array, " p"]:
        """Return log dH(f(t))/dz."""
        return jnp.log(self.slope) + self.input.log_rate + self.tailed.log_slope


class Slopes(NamedTuple):
    """Derivatives of the value of a `Shape` by the raw increments and t, and of its log slope by the raw ones and z."""

    by_raw: Float[Array, "p m"]
    by_t: Float[Array, " p"]
    log_slope_by_raw: Float[Array, "p m"]
    log_slope_by_z: Float[Array, " p"]


def polynomial_input(
    z: Float[Array, " p"], log_scale: Float[Array, " p"], shift: Float[Array, " p"], noise: str
) -> PolynomialInput:
    """Scale and shift noise, and map it to the interval of the polynomial."""
    width = 2.0 * NOISES[noise].half_width
    return PolynomialInput(0.5 + (jnp.exp(log_scale) * z + shift) / width, log_scale - np.log(width), 0.0)


def shape_of(raw: Float[Array, "p m"], tails: Float[Array, "p 4"] | None, argument: PolynomialInput) -> Shape:
    """Evaluate polynomials and, if `tails` is not None, tails."""
    terms = centered_terms(raw.shape[-1], argument.t)
    increment = increments(raw)
    u, slope = terms.value_and_slope(increment)
    zeros = jnp.zeros_like(u)
    tailed = TailOutput(u, zeros, zeros, None) if tails is None else apply_tails(tails, u)
    return Shape(argument, terms, increment, slope, tailed)


def slopes_of(shape: Shape, raw: Float[Array, "p m"]) -> Slopes:
    """Differentiate polynomials and tails."""
    growth = increments_by_raw(raw)
    by_effects = growth * shape.terms.effects
    tail_slope, by_u = jnp.exp(shape.tailed.log_slope), shape.tailed.log_slope_by_u
    by_t = log_slope_by_t(shape.increment, shape.terms, shape.input.t) + by_u * shape.slope
    order = raw.shape[-1]
    return Slopes(
        tail_slope[:, None] * by_effects,
        tail_slope * shape.slope,
        (order / shape.slope)[:, None] * growth * shape.terms.basis + by_u[:, None] * by_effects,
        jnp.exp(shape.input.log_rate) * by_t + shape.input.log_rate_by_z,
    )


def value_with_derivatives(
    shape: Shape,
    slopes: Slopes,
    raw: Float[Array, "p m"],
    t: Float[Array, " p"],
    tails: Float[Array, "p 4"] | None,
) -> Float[Array, " p"]:
    """Return the value of a shape with known derivatives by the raw increments, t and the tails."""
    value = with_slope(shape.tailed.value, raw, slopes.by_raw)
    value = with_slope(value, t[:, None], slopes.by_t[:, None])
    return value if tails is None else with_slope(value, tails, shape.tailed.by_tails)


@jax.custom_jvp
def with_slope(value: Float[Array, " p"], moved: Float[Array, "p n"], slope: Float[Array, "p n"]) -> Float[Array, " p"]:
    """Return the value, and add `slope` to its derivative by `moved`.

    Example:
        >>> jax.grad(lambda x: with_slope(x[0] ** 2, x, jnp.array([0.0, 3.0])))(jnp.array([2.0, 5.0])).tolist()
        [4.0, 3.0]
    """
    return value


@with_slope.defjvp
def _with_slope_jvp(primals, tangents):
    (value, _, slope), (by_value, by_moved, _) = primals, tangents
    return value, by_value + jnp.sum(slope * by_moved, -1)
