"""Shift and log scale of the noise of locals, as functions of the globals that are trained."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.flows.conditioner import LINEAR_UNTIL, random_layers


class Drift(eqx.Module):
    """Functions of the standardized globals u, linear in the features (u, hidden(u)); zero at the start."""

    shift: Float[Array, " n"]
    log_scale: Float[Array, " n"]
    w1: Float[Array, "h c"]
    b1: Float[Array, " h"]
    w2: Float[Array, "h h"]
    b2: Float[Array, " h"]
    shift_out: Float[Array, "n f"]
    log_scale_out: Float[Array, "n f"]

    def __init__(self, key: Key[Array, ""], num: int, context: int, width: int):
        self.shift, self.log_scale = jnp.zeros(num), jnp.zeros(num)
        first, second, self.b1 = random_layers(key, context, width)
        self.w1, self.w2 = first / np.sqrt(context), second / np.sqrt(width)
        self.b2 = jnp.zeros(width)
        features = context + width
        self.shift_out, self.log_scale_out = jnp.zeros((num, features)), jnp.zeros((num, features))

    def __call__(self, u: Float[Array, " c"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Evaluate shift and log scale."""
        features = self.features(u)
        return self.shift + self.shift_out @ features, self.log_scale + self.log_scale_out @ features

    def features(self, u: Float[Array, "... c"]) -> Float[Array, "... f"]:
        """Return the features: u, with logarithmic growth far out, and the last hidden layer."""
        hidden = jnp.tanh(jnp.tanh(u @ self.w1.T + self.b1) @ self.w2.T + self.b2)
        beyond = jnp.maximum(jnp.abs(u) - LINEAR_UNTIL, 0.0)
        linear = jnp.clip(u, -LINEAR_UNTIL, LINEAR_UNTIL) + jnp.sign(u) * jnp.log1p(beyond)
        return jnp.concatenate([linear, hidden], -1)
