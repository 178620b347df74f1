"""Tails of their own weight: u -> sinh(d asinh(u)) / d * exp(h u^2 / 2), with one d and one h for each side.

It is the identity for d = 1, h = 0. The first factor grows like |u|^d: normal noise gets tails that fall like
exp(-|x|^(2 / d)) up to constants, exponential ones for d = 2. The second is Tukey's: normal noise gets tails that fall
like the power -1/h of |x|, those of a Student-t with 1/h degrees of freedom. One number per side is learned from all
draws of its side, where the outermost coefficients of a polynomial are learned from the few draws that reach them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bernflow.flows.bernstein import invert_increasing

# Raw numbers per dimension: weight of the left and of the right side, power of the left and of the right side.
NUM_RAW = 4
# |log d| stays below this: d is between 1/4.5 and 4.5.
MAX_LOG_WEIGHT = 1.5
# Draws of a posterior with one degree of freedom have no mean: heavier than that is not looked for.
MAX_POWER = 0.9


def bend(tails: Float[Array, "... 4"], u: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return the bent value and the log of its derivative; `tails` holds the raw weights and powers."""
    weight, power = _sides(tails, u)
    angle = weight * jnp.arcsinh(u)
    size = jnp.abs(angle)
    # The derivative of the first factor is cosh(angle) / sqrt(1 + u^2), that of the second h u times itself.
    log_cosh = size + jnp.log1p(jnp.exp(-2.0 * size)) - jnp.log(2.0)
    root = jnp.sqrt(1.0 + u**2)
    stretch = 0.5 * power * u**2
    more = jnp.log1p(power * u * root * jnp.tanh(angle) / weight)
    return jnp.sinh(angle) / weight * jnp.exp(stretch), log_cosh - jnp.log(root) + stretch + more


def unbend(tails: Float[Array, "... 4"], v: Float[Array, "..."]) -> Float[Array, "..."]:
    """Invert `bend`."""
    weight, power = _sides(tails, v)
    side = jnp.where(v < 0.0, -1.0, 1.0)
    # Without the second factor; with it the result is nearer to zero.
    largest = jnp.sinh(jnp.arcsinh(weight * jnp.abs(v)) / weight)

    def along(t):
        # asinh: linear near zero, a logarithm far out, where the values are large powers.
        value, log_slope = bend(tails, side * t * largest)
        value = jnp.abs(value)
        log_root = jnp.logaddexp(0.0, 2.0 * jnp.log(jnp.maximum(value, 1e-30))) / 2.0
        return jnp.arcsinh(value), largest * jnp.exp(log_slope - log_root)

    t = invert_increasing(along, jnp.arcsinh(jnp.abs(v)), 1.0 / (1.0 + power * largest**2))
    return side * jnp.where(power > 0.0, t * largest, largest)


def _sides(tails: Array, side: Array) -> tuple[Array, Array]:
    """Return d and h of the side on which a point lies."""
    left = side < 0.0
    raw = jnp.where(left, tails[..., 0], tails[..., 1])
    power = jnp.where(left, tails[..., 2], tails[..., 3])
    # Clipped, but with the gradient of what is not: a power that starts at zero, its lower bound, can leave it.
    power = power + jax.lax.stop_gradient(jnp.clip(power, 0.0, MAX_POWER) - power)
    return jnp.exp(MAX_LOG_WEIGHT * jnp.tanh(raw / MAX_LOG_WEIGHT)), power
