"""The shape of one dimension, H(f(t)): polynomial and tails, with the derivatives that a score needs.

They are written out: the score of a flow needs them, and automatic differentiation would find them again for the
gradient that trains it, which takes longer to run as well as to compile. `told` gives it those that are known.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bernflow.flows.bernstein import Terms, centered_terms, increments, increments_by_raw, log_slope_by_t
from bernflow.flows.noise import NOISES
from bernflow.flows.tails import Bent, bend


class Place(NamedTuple):
    """Where a polynomial is evaluated: t, log dt/dz, and the derivative of that log."""

    t: Float[Array, " p"]
    log_rate: Float[Array, " p"]
    log_rate_by_z: Float[Array, " p"] | float


class Shape(NamedTuple):
    """H(f(t)) of several dimensions, and what it is made of.

    Attributes:
        place: where the polynomial is evaluated.
        terms: what it is made of there.
        increment: increments of its coefficients, (p, M).
        slope: f'(t).
        bent: H(f(t)).
    """

    place: Place
    terms: Terms
    increment: Float[Array, "p m"]
    slope: Float[Array, " p"]
    bent: Bent

    def log_slope(self) -> Float[Array, " p"]:
        """Return log dH(f(t))/dz."""
        return jnp.log(self.slope) + self.place.log_rate + self.bent.log_slope


class Slopes(NamedTuple):
    """Derivatives of a `Shape`: of its value with respect to the raw increments and t, of its log slope also to z."""

    by_raw: Float[Array, "p m"]
    by_t: Float[Array, " p"]
    log_slope_by_raw: Float[Array, "p m"]
    log_slope_by_z: Float[Array, " p"]


def place_of(z: Float[Array, " p"], log_scale: Float[Array, " p"], shift: Float[Array, " p"], noise: str) -> Place:
    """Scale and shift noise, and map it to the interval of the polynomial."""
    width = 2.0 * NOISES[noise].half_width
    return Place(0.5 + (jnp.exp(log_scale) * z + shift) / width, log_scale - np.log(width), 0.0)


def shape_of(raw: Float[Array, "p m"], tails: Float[Array, "p 4"] | None, place: Place) -> Shape:
    """Evaluate polynomials and, where there are any, tails."""
    terms = centered_terms(raw.shape[-1], place.t)
    increment = increments(raw)
    u, slope = terms.value_and_slope(increment)
    zeros = jnp.zeros_like(u)
    bent = Bent(u, zeros, zeros, None) if tails is None else bend(tails, u)
    return Shape(place, terms, increment, slope, bent)


def slopes_of(shape: Shape, raw: Float[Array, "p m"]) -> Slopes:
    """Differentiate polynomials and tails."""
    growth = increments_by_raw(raw)
    by_effects = growth * shape.terms.effects
    bend_slope, by_u = jnp.exp(shape.bent.log_slope), shape.bent.log_slope_by_u
    by_t = log_slope_by_t(shape.increment, shape.terms, shape.place.t) + by_u * shape.slope
    order = raw.shape[-1]
    return Slopes(
        bend_slope[:, None] * by_effects,
        bend_slope * shape.slope,
        (order / shape.slope)[:, None] * growth * shape.terms.basis + by_u[:, None] * by_effects,
        jnp.exp(shape.place.log_rate) * by_t + shape.place.log_rate_by_z,
    )


def told(
    shape: Shape,
    slopes: Slopes,
    raw: Float[Array, "p m"],
    t: Float[Array, " p"],
    tails: Float[Array, "p 4"] | None,
) -> Float[Array, " p"]:
    """Return the value of a shape, and tell automatic differentiation how it moves with what it depends on."""
    value = moving(shape.bent.value, raw, slopes.by_raw)
    value = moving(value, t[:, None], slopes.by_t[:, None])
    return value if tails is None else moving(value, tails, shape.bent.by_tails)


@jax.custom_jvp
def moving(value: Float[Array, " p"], moved: Float[Array, "p n"], slope: Float[Array, "p n"]) -> Float[Array, " p"]:
    """Return the value, which moves with `moved` by a known slope.

    Example:
        >>> jax.grad(lambda x: moving(x[0] ** 2, x, jnp.array([0.0, 3.0])))(jnp.array([2.0, 5.0])).tolist()
        [4.0, 3.0]
    """
    return value


@moving.defjvp
def _moving_jvp(primals, tangents):
    (value, _, slope), (by_value, by_moved, _) = primals, tangents
    return value, by_value + jnp.sum(slope * by_moved, -1)
