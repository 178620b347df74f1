"""Tails with learned weight: u -> sinh(d asinh(u)) / d * exp(h u^2 / 2), with one d and one h for each side.

The map is the identity for d = 1 and h = 0, and nearly so around zero. The first factor grows like |u|^d: normal noise
gets tails that decay like exp(-|x|^(2 / d)) up to constants, exponential for d = 2. The second factor (Tukey's h) gives
power-law tails, those of a Student-t with 1 / h degrees of freedom. All draws on one side inform its two weights,
whereas only the few draws that reach them inform the outermost coefficients of a polynomial.
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
# h is this multiple of its raw value, so that it is learned slowly, after the bulk. Far from the posterior, heavy tails
# easily increase the entropy, and a fit by plain gradients does not recover from that.
POWER_UNIT = 0.2
# Beyond this value, which normal noise practically never reaches, u^2 / 2 continues as a logarithm, so that Tukey's
# factor is a power of u and does not overflow.
SQUARE_UNTIL = 8.0


def raw_powers(powers: Float[Any, "... 2"]) -> Float[Array, "... 4"]:
    """Return raw weights with d = 1 and the given h (1 / degrees of freedom) of the left and the right side."""
    return jnp.concatenate([jnp.zeros_like(powers), jnp.clip(powers, 0.0, MAX_POWER) / POWER_UNIT], -1)


class TailOutput(NamedTuple):
    """The transformed value and its derivatives.

    Attributes:
        value: the transformed value.
        log_slope: log of its derivative with respect to u.
        log_slope_by_u: derivative of that log.
        by_tails: derivative of the value with respect to the raw weights; None without tails.
    """

    value: Float[Array, "..."]
    log_slope: Float[Array, "..."]
    log_slope_by_u: Float[Array, "..."]
    by_tails: Float[Array, "... 4"] | None


def apply_tails(tails: Float[Array, "... 4"], u: Float[Array, "..."]) -> TailOutput:
    """Transform values; `tails` holds the raw weights of their dimensions."""
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
    return TailOutput(
        value,
        exponent + log_slope + jnp.log(lift),
        force + by_u + (force_by_u * ratio + force * (1.0 - ratio * by_u)) / lift,
        jnp.stack([left * by_weight, right * by_weight, left * by_power, right * by_power], -1),
    )


def invert_tails(tails: Float[Array, "... 4"], v: Float[Array, "..."]) -> Float[Array, "..."]:
    """Invert `apply_tails`, by Newton steps for asinh(v) as a function of asinh(u), which is nearly linear far out.

    For h = 0 there is a closed form.
    """
    weight, power = _weights(tails, v)
    # Tukey's factor is at least 1, so the solution without it is an upper bound.
    bound = jnp.arcsinh(weight * v) / weight
    goal = jnp.abs(jnp.arcsinh(v))
    found = invert_increasing(_forward_angle, (tails, jnp.sign(v)), goal, jnp.abs(bound), jnp.abs(bound))
    return jnp.sinh(jnp.where(power > 0.0, jnp.copysign(found, v), bound))


def _forward_angle(of: tuple[Array, Array], angle: Float[Array, "..."]) -> tuple[Array, Array]:
    """Return |asinh(v)| at |asinh(u)| = angle, and its slope, for the tail on one side."""
    tails, side = of
    tailed = apply_tails(tails, jnp.copysign(jnp.sinh(angle), side))
    slope = jnp.exp(tailed.log_slope) * jnp.cosh(angle) * jax.lax.rsqrt(1.0 + tailed.value**2)
    return jnp.abs(jnp.arcsinh(tailed.value)), slope


def _weights(tails: Array, side: Array) -> tuple[Array, Array]:
    """Return d and h of the side on which a value lies."""
    raw_power = POWER_UNIT * jnp.where(side < 0.0, tails[..., 2], tails[..., 3])
    # The gradient passes through the clipping; otherwise a dimension with h = 0 could never leave it.
    power = raw_power + stop_gradient(jnp.clip(raw_power, 0.0, MAX_POWER) - raw_power)
    return jnp.exp(MAX_LOG_WEIGHT * jnp.tanh(_raw_weight(tails, side) / MAX_LOG_WEIGHT)), power


def _weight_by_raw(tails: Array, side: Array) -> Array:
    """Return the derivative of log d."""
    return 1.0 - jnp.tanh(_raw_weight(tails, side) / MAX_LOG_WEIGHT) ** 2


def _raw_weight(tails: Array, side: Array) -> Array:
    return jnp.where(side < 0.0, tails[..., 0], tails[..., 1])
