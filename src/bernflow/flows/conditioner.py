"""Autoregressive conditioners: functions of z_1..z_{j-1} for dimension j."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key


def hidden_degrees(dim: int, width: int) -> np.ndarray:
    """Return the index of the last input that every hidden unit may depend on, spread evenly over 0..dim-2."""
    return np.floor(np.arange(width) * (dim - 1) / width).astype(int)


def _glorot(key: Key[Array, ""], shape: tuple[int, ...], fans: int) -> Float[Array, "..."]:
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) * np.sqrt(6.0 / fans)


def random_layers(
    key: Key[Array, ""], num_inputs: int, width: int
) -> tuple[Float[Array, "h c"], Float[Array, "h h"], Float[Array, " h"]]:
    """Draw weights of variance one for two layers, and biases of the first with standard deviation 0.3.

    One call of the generator draws all of them, because every call adds to the compile time.
    """
    numbers = jax.random.normal(key, (width, num_inputs + width + 1))
    return numbers[:, :num_inputs], numbers[:, num_inputs:-1], 0.3 * numbers[:, -1]


class MaskedNetwork(eqx.Module):
    """Two masked tanh layers and a masked linear readout of `num_outputs` values per dimension.

    The readout starts at zero, so that a new network has no effect, or with the defaults of Keras as in the paper.
    """

    w1: Float[Array, "h p"]
    b1: Float[Array, " h"]
    w2: Float[Array, "h h"]
    b2: Float[Array, " h"]
    out: Float[Array, "p k h"]

    def __init__(self, key: Key[Array, ""], dim: int, num_outputs: int, width: int, glorot: bool = False):
        self.b2 = jnp.zeros(width)
        if glorot:
            key1, key2, key3 = jax.random.split(key, 3)
            self.w1 = _glorot(key1, (width, dim), dim + width)
            self.w2 = _glorot(key2, (width, width), 2 * width)
            self.out = _glorot(key3, (dim, num_outputs, width), width + dim * num_outputs)
            self.b1 = jnp.zeros(width)
            return
        first, second, self.b1 = random_layers(key, dim, width)
        fan_in = np.maximum(hidden_degrees(dim, width) + 1, 1)[:, None]
        self.w1 = first / np.sqrt(fan_in)
        seen = (hidden_degrees(dim, width)[:, None] >= hidden_degrees(dim, width)[None, :]).sum(1, keepdims=True)
        self.w2 = second / np.sqrt(seen)
        self.out = jnp.zeros((dim, num_outputs, width))

    def masked(self) -> "MaskedLayers":
        """Apply the masks to the weights.

        A hidden unit depends on inputs, and units, up to its degree; dimension j depends on units of degree below j.
        """
        width, dim = self.w1.shape
        degree = hidden_degrees(dim, width)
        first = self.w1 * (degree[:, None] >= np.arange(dim)[None, :])
        second = self.w2 * (degree[:, None] >= degree[None, :])
        allowed = np.arange(dim)[:, None] > degree[None, :]
        return MaskedLayers(first, self.b1, second, self.b2, self.out * allowed[:, None, :])

    def hidden(self, z: Float[Array, " p"]) -> Float[Array, " h"]:
        """Evaluate the last hidden layer."""
        return self.masked().layers(z)[1]

    def readout(self) -> Float[Array, "p k h"]:
        """Return the readout weights with the mask applied."""
        return self.masked().readout


class MaskedLayers(NamedTuple):
    """The layers of a network with the masks applied."""

    first: Float[Array, "h p"]
    b1: Float[Array, " h"]
    second: Float[Array, "h h"]
    b2: Float[Array, " h"]
    readout: Float[Array, "p k h"]

    def layers(self, z: Float[Array, " p"]) -> tuple[Float[Array, " h"], Float[Array, " h"]]:
        """Evaluate both hidden layers."""
        h = jnp.tanh(self.first @ z + self.b1)
        return h, jnp.tanh(self.second @ h + self.b2)

    def hidden_by_z(self, layers: tuple[Float[Array, " h"], Float[Array, " h"]]) -> Float[Array, "h p"]:
        """Return the derivative of the last hidden layer, given the activations of both layers."""
        slope1, slope2 = (1.0 - layer**2 for layer in layers)
        return slope2[:, None] * (self.second @ (slope1[:, None] * self.first))


# A log-scale is linear in e up to here. Beyond, a scale grows like a power of e: exp(e) of a heavy-tailed e overflows,
# and one such draw makes the ELBO minus infinity.
LINEAR_UNTIL = 8.0


class Skip(eqx.Module):
    """Unsaturated terms in e_1..e_{j-1} for location and log-scale of dimension j (see `BernsteinFlow`).

    Linear terms make Neal's funnel (up to `LINEAR_UNTIL`) and linear-Gaussian hierarchies exact; the tanh network alone
    saturates and gets their tails wrong. The log-scale also has terms in log sqrt(1 + (e / k)^2) with a learned knee k:
    parameters with a common scale are far out together, on either side. A multivariate Student-t with n degrees of
    freedom is exact: k_i^2 = n + i - 1, where i counts from 1.
    """

    shift: Float[Array, "p c"]
    log_scale: Float[Array, "p c"]
    spread: Float[Array, "p c"]
    log_knee: Float[Array, " c"]

    def __init__(self, dim: int, context: int):
        self.shift = jnp.zeros((dim, context))
        self.log_scale = jnp.zeros((dim, context))
        self.spread = jnp.zeros((dim, context))
        self.log_knee = jnp.zeros(context)

    def terms(self, e: Float[Array, " c"]) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        """Return the terms that are added to the location and to the log-scale of every dimension."""
        linear = jnp.clip(e, -LINEAR_UNTIL, LINEAR_UNTIL) + jnp.sign(e) * jnp.log1p(_excess(e))
        far = 0.5 * jnp.log1p((e * jnp.exp(-self.log_knee)) ** 2)
        return self.shift @ e, self.log_scale @ linear + self.spread @ far

    def slopes(self, e: Float[Array, " c"]) -> tuple[Float[Array, "p c"], Float[Array, "p c"]]:
        """Return the derivatives of both terms."""
        far_by_e = e / (jnp.exp(2.0 * self.log_knee) + e**2)
        return self.shift, self.log_scale / (1.0 + _excess(e)) + self.spread * far_by_e

    def strictly_lower(self) -> "Skip":
        """Apply the autoregressive mask."""
        return jax.tree.map(lambda leaf: jnp.tril(leaf, -1) if leaf.ndim == 2 else leaf, self)


def _excess(e: Float[Array, " c"]) -> Float[Array, " c"]:
    """Return how far |e| exceeds the range where log-scales are linear."""
    return jnp.maximum(jnp.abs(e) - LINEAR_UNTIL, 0.0)
