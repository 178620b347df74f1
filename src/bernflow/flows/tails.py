"""Tails of their own weight: u -> sinh(d asinh(u)) / d * exp(h u^2 / 2), with one d and one h for each side.

It is the identity for d = 1 and h = 0, and nearly so around zero. The first factor grows like |u|^d: normal noise gets
tails that fall like exp(-|x|^(2 / d)) up to constants, exponential ones for d = 2. The second (Tukey's) makes them fall
like a power, those of a Student-t with 1 / h degrees of freedom. Few numbers per side are learned from all draws of
their side, where the outermost coefficients of a polynomial are learned from the few draws that reach them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from bernflow.flows.bernstein import invert_increasing

# Raw weights of a dimension: d of the left and of the right side, h of the left and of the right side.
NUM_WEIGHTS = 4
# |log d| stays below this: d is between 1/4.5 and 4.5.
MAX_LOG_WEIGHT = 1.5
# h stays below this: tails like those of 1.4 degrees of freedom.
MAX_POWER = 0.7
# h is so many times its raw value: it is learned slowly, after the bulk. Far from the posterior heavy tails are an easy
# way to more entropy, out of which a fit by plain gradients does not find back.
POWER_UNIT = 0.2
# Beyond, where no draw of normal noise lies, u^2 / 2 goes on as a logarithm: Tukey's factor is a power of u there
# instead of overflowing.
SQUARE_UNTIL = 8.0


def raw_powers(powers: Float[Any, "... 2"]) -> Float[Array, "... 4"]:
    """Return the raw weights of which h is 1 / (degrees of freedom) on the left and on the right, and d is 1."""
    return jnp.concatenate([jnp.zeros_like(powers), jnp.clip(powers, 0.0, MAX_POWER) / POWER_UNIT], -1)


class Bent(NamedTuple):
    """A bent value and its derivatives.

    Attributes:
        value: the bent value.
        log_slope: log of its derivative with respect to u.
        log_slope_by_u: derivative of that log.
        by_tails: derivative of the value with respect to the raw weights; None without any.
    """

    value: Float[Array, "..."]
    log_slope: Float[Array, "..."]
    log_slope_by_u: Float[Array, "..."]
    by_tails: Float[Array, "... 4"] | None


def bend(tails: Float[Array, "... 4"], u: Float[Array, "..."]) -> Bent:
    """Bend values; `tails` holds the raw weights of their dimensions."""
    weight, power = _weights(tails, u)
    straight = jnp.arcsinh(u)
    angle = weight * straight
    size = jnp.abs(angle)
    root = jnp.sqrt(1.0 + u**2)
    tanh = jnp.tanh(angle)
    # Of sinh(d asinh(u)) / d: the log of its derivative, the derivative of that, and value per derivative.
    log_slope = size + jnp.log1p(jnp.exp(-2.0 * size)) - jnp.log(2.0 * root)
    by_u = (weight * tanh - u / root) / root
    ratio = tanh * root / weight
    # Of Tukey's factor: its log, and two derivatives of that.
    inside = jnp.clip(u, -SQUARE_UNTIL, SQUARE_UNTIL)
    excess = jnp.maximum(jnp.abs(u), SQUARE_UNTIL) / SQUARE_UNTIL
    half_square = 0.5 * inside**2 + SQUARE_UNTIL**2 * jnp.log(excess)
    exponent = power * half_square
    force = power * inside / excess
    force_by_u = power * jnp.where(inside == u, 1.0, -1.0 / excess**2)
    lift = 1.0 + force * ratio
    slope = jnp.exp(exponent + log_slope)
    value = slope * ratio
    by_weight = (slope * root * straight - value) * _weight_by_raw(tails, u)
    by_power = POWER_UNIT * half_square * value
    left, right = u < 0.0, u >= 0.0
    return Bent(
        value,
        exponent + log_slope + jnp.log(lift),
        force + by_u + (force_by_u * ratio + force * (1.0 - ratio * by_u)) / lift,
        jnp.stack([left * by_weight, right * by_weight, left * by_power, right * by_power], -1),
    )


def unbend(tails: Float[Array, "... 4"], v: Float[Array, "..."]) -> Float[Array, "..."]:
    """Invert `bend`, by Newton steps for asinh(v) as a function of asinh(u), which is nearly straight far out.

    Without a power there is a closed form.
    """
    weight, power = _weights(tails, v)
    # Tukey's factor is at least 1: without it the way would be the longest.
    longest = jnp.arcsinh(weight * v) / weight
    goal = jnp.abs(jnp.arcsinh(v))
    found = invert_increasing(_reached, (tails, jnp.sign(v)), goal, jnp.abs(longest), jnp.abs(longest))
    return jnp.sinh(jnp.where(power > 0.0, jnp.copysign(found, v), longest))


def _reached(of: tuple[Array, Array], angle: Float[Array, "..."]) -> tuple[Array, Array]:
    """Return |asinh(v)| where |asinh(u)| is the angle, and its slope, on one side of given tails."""
    tails, side = of
    bent = bend(tails, jnp.copysign(jnp.sinh(angle), side))
    slope = jnp.exp(bent.log_slope) * jnp.cosh(angle) * jax.lax.rsqrt(1.0 + bent.value**2)
    return jnp.abs(jnp.arcsinh(bent.value)), slope


def _weights(tails: Array, side: Array) -> tuple[Array, Array]:
    """Return d and h of the side that a value is on."""
    raw_power = POWER_UNIT * jnp.where(side < 0.0, tails[..., 2], tails[..., 3])
    # The gradient passes where h is cut off: else a dimension whose h was pushed to zero could never leave it.
    power = raw_power + stop_gradient(jnp.clip(raw_power, 0.0, MAX_POWER) - raw_power)
    return jnp.exp(MAX_LOG_WEIGHT * jnp.tanh(_raw_weight(tails, side) / MAX_LOG_WEIGHT)), power


def _weight_by_raw(tails: Array, side: Array) -> Array:
    """Return the derivative of log d."""
    return 1.0 - jnp.tanh(_raw_weight(tails, side) / MAX_LOG_WEIGHT) ** 2


def _raw_weight(tails: Array, side: Array) -> Array:
    return jnp.where(side < 0.0, tails[..., 0], tails[..., 1])
