"""Coordinates for locals with interval support: linear in the constrained value, but unbounded.

The unconstrained value x of such a local is a logit. A density that is Gaussian on the interval, such as that of a
state between wide limits, is not Gaussian in x. It is Gaussian in t = 2 tanh(x / 2), which is linear in the constrained
value; close to the limits t continues as a straight line in x.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# Beyond this logit t is linear in it.
LIMIT = 7.0
LIMIT_T = 2.0 * float(np.tanh(0.5 * LIMIT))
LOG_SLOPE = -float(np.log1p(-(0.25 * LIMIT_T**2)))


def to_logit(t: Float[Array, " n"], bounded: Bool[np.ndarray, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Map t to x where locals have interval support and leave others unchanged; return x and log |dx/dt|."""
    half = jnp.clip(0.5 * t, -0.5 * LIMIT_T, 0.5 * LIMIT_T)
    x = 2.0 * jnp.arctanh(half) + (t - 2.0 * half) * np.exp(LOG_SLOPE)
    return jnp.where(bounded, x, t), jnp.sum(jnp.where(bounded, -jnp.log1p(-(half**2)), 0.0))


def from_logit(x: Float[Array, " n"], bounded: Bool[np.ndarray, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Undo `to_logit`; return t and log |dx/dt|."""
    inside = jnp.clip(x, -LIMIT, LIMIT)
    t = 2.0 * jnp.tanh(0.5 * inside) + (x - inside) * np.exp(-LOG_SLOPE)
    # 1 - tanh^2, without cancellation.
    log_slope = 2.0 * (jnp.logaddexp(0.5 * inside, -0.5 * inside) - np.log(2.0))
    return jnp.where(bounded, t, x), jnp.sum(jnp.where(bounded, log_slope, 0.0))


def mask_of(bounded: tuple[int, ...], num: int) -> Bool[np.ndarray, " n"]:
    """Return which values have interval support."""
    return np.isin(np.arange(num), bounded)
