"""Locals on intervals: coordinates in which they are as on the interval itself, and yet unbounded.

The unconstrained value x of a local on an interval is a logit. Where its density is Gaussian on the interval, as that
of a state between wide limits, it is not Gaussian in x. With t = 2 tanh(x / 2), a linear function of the value on the
interval up to near its limits, and going on as a straight line from there, it is.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# Beyond this logit t is linear in it.
LIMIT = 7.0
LIMIT_T = 2.0 * float(np.tanh(0.5 * LIMIT))
LOG_SLOPE = -float(np.log1p(-(0.25 * LIMIT_T**2)))


def to_logit(t: Float[Array, " n"], bounded: Bool[np.ndarray, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Map t to x where locals are on intervals, others to themselves; return x and log |dx/dt|."""
    half = jnp.clip(0.5 * t, -0.5 * LIMIT_T, 0.5 * LIMIT_T)
    x = 2.0 * jnp.arctanh(half) + (t - 2.0 * half) * np.exp(LOG_SLOPE)
    return jnp.where(bounded, x, t), jnp.sum(jnp.where(bounded, -jnp.log1p(-(half**2)), 0.0))


def from_logit(x: Float[Array, " n"], bounded: Bool[np.ndarray, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Undo `to_logit`; return t and log |dx/dt|."""
    inside = jnp.clip(x, -LIMIT, LIMIT)
    t = 2.0 * jnp.tanh(0.5 * inside) + (x - inside) * np.exp(-LOG_SLOPE)
    # 1 - tanh^2, without the digits that cancel.
    log_slope = 2.0 * (jnp.logaddexp(0.5 * inside, -0.5 * inside) - np.log(2.0))
    return jnp.where(bounded, t, x), jnp.sum(jnp.where(bounded, log_slope, 0.0))


def mask_of(bounded: tuple[int, ...], num: int) -> Bool[np.ndarray, " n"]:
    """Tell of every value whether it is one of those on intervals."""
    return np.isin(np.arange(num), bounded)
