"""Tails of their own weight: u -> sinh(d asinh(u)) / d, with one d for each side.

It is the identity for d = 1 and near zero, and grows like |u|^d far out: normal noise gets tails that fall like
exp(-|x|^(2 / d)) up to constants, exponential ones for d = 2, and for larger d tails that look like those of a
Student-t as far as draws reach. One number per side is learned from all draws of its side, where the outermost
coefficients of a polynomial are learned from the few draws that reach them.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

# |log d| stays below this: d is between 1/4.5 and 4.5.
MAX_LOG_WEIGHT = 1.5


def bend(tails: Float[Array, "... 2"], u: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return the bent value and the log of its derivative; `tails` holds the raw weights of the left and right side."""
    weight = _weight(tails, u)
    angle = weight * jnp.arcsinh(u)
    size = jnp.abs(angle)
    log_cosh = size + jnp.log1p(jnp.exp(-2.0 * size)) - jnp.log(2.0)
    return jnp.sinh(angle) / weight, log_cosh - 0.5 * jnp.log1p(u**2)


def unbend(tails: Float[Array, "... 2"], v: Float[Array, "..."]) -> Float[Array, "..."]:
    """Invert `bend`."""
    weight = _weight(tails, v)
    return jnp.sinh(jnp.arcsinh(weight * v) / weight)


def _weight(tails: Array, side: Array) -> Array:
    raw = jnp.where(side < 0.0, tails[..., 0], tails[..., 1])
    return jnp.exp(MAX_LOG_WEIGHT * jnp.tanh(raw / MAX_LOG_WEIGHT))
