"""Networks for the pictures: the paper's, and a better one.

Example:
    >>> network = paper_cnn(1)
    >>> num_weights(network)
    419489
    >>> network(jnp.zeros((2, 128, 128, 3), jnp.uint8)).shape
    (2,)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from benchmarks.melanoma.layers import (
    Tree,
    as_unit,
    augment,
    batch_norm,
    convolve,
    dropout,
    frozen_tanh_norm_pool,
    glorot,
    he,
    norm_state,
    norm_weights,
    running,
    tanh_norm_pool,
)
from bernflow import ArgumentError
from bernflow.keys import as_key
from bernflow.models.network import Network

DTYPES = ("float32", "bfloat16")
Augment = Callable[[Key[Array, ""], Array], Array]

# The paper's network, with the defaults of Keras.
CHANNELS = (32, 32, 64, 64, 128)
UNITS = (128, 128)
DROPOUT = 0.3
MOMENTUM = 0.99

# The better network: channels of its stages, two residual blocks each.
STAGES = (32, 64, 128, 256)
BETTER_MOMENTUM = 0.9


def num_weights(network: Network) -> int:
    """Count the trainable weights."""
    return sum(leaf.size for leaf in jax.tree.leaves(network.weights))


def paper_cnn(key: object, *, dtype: str = "float32", shape: tuple[int, int, int] = (128, 128, 3)) -> Network:
    """Make the paper's network with fresh weights: five convolutions and two dense layers, 419,489 weights.

    Five 3x3 convolutions (32, 32, 64, 64, 128 channels), each followed by tanh, batch normalization and 2x2 max
    pooling; two dense layers of 128 with tanh, batch normalization and dropout 0.3; one output. Glorot-uniform weights.

    Args:
        key: an integer seed or a key.
        dtype: "float32", or "bfloat16" for convolutions, dense layers and their activations; weights, statistics and
            the output stay in single precision.
        shape: height, width (multiples of 32) and channels of the pictures.

    Returns:
        a network from pictures (B, H, W, C), unsigned bytes or numbers in [0, 1], to one number each (B,).
    """
    _check(dtype, shape, 2 ** len(CHANNELS))
    height, width, before = shape
    keys = iter(jax.random.split(as_key(key), len(CHANNELS) + len(UNITS) + 1))
    weights: Tree = {}
    state: Tree = {}
    for i, num in enumerate(CHANNELS):
        weights[f"conv{i}"] = {"kernel": glorot(next(keys), (3, 3, before, num)), "bias": jnp.zeros(num, jnp.float32)}
        weights[f"conv{i}"] |= norm_weights(num)
        state[f"conv{i}"] = norm_state(num)
        before = num
    before *= (height // 2 ** len(CHANNELS)) * (width // 2 ** len(CHANNELS))
    for i, num in enumerate(UNITS):
        weights[f"dense{i}"] = {"kernel": glorot(next(keys), (before, num)), "bias": jnp.zeros(num, jnp.float32)}
        weights[f"dense{i}"] |= norm_weights(num)
        state[f"dense{i}"] = norm_state(num)
        before = num
    weights["out"] = {"kernel": glorot(next(keys), (before, 1)), "bias": jnp.zeros(1, jnp.float32)}
    return Network(weights, state, PaperApply(dtype))


# A frozen dataclass is compared by its settings: two networks made alike share one compiled function.
@dataclass(frozen=True)
class PaperApply:
    """Evaluates the paper's network."""

    dtype: str

    def __call__(
        self, weights: Tree, state: Tree, inputs: Array, key: Key[Array, ""], training: bool
    ) -> tuple[Array, Tree]:
        """Return the outputs (B,) and the new state."""
        weights = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights)
        values = as_unit(jnp.asarray(inputs), self.dtype)
        new: Tree = {}
        for i in range(len(CHANNELS)):
            name = f"conv{i}"
            own = weights[name]
            values = convolve(values, own["kernel"])
            if training:
                values, mean, var = tanh_norm_pool(values, own["bias"], own["gamma"], own["beta"])
                new[name] = running(state[name], mean, var, MOMENTUM)
            else:
                values = frozen_tanh_norm_pool(values, own["bias"], own, state[name])
        values = values.reshape(values.shape[0], -1)
        for i in range(len(UNITS)):
            name = f"dense{i}"
            values = jnp.tanh(_dense(weights[name], values))
            values, new[name] = batch_norm(weights[name], state[name], values, training, MOMENTUM)
            if training:
                values = dropout(jax.random.fold_in(key, i), values, DROPOUT)
        out = _dense(weights["out"], values.astype(jnp.float32))[:, 0]
        return out, new if training else state


def better_cnn(
    key: object,
    *,
    dtype: str = "float32",
    shape: tuple[int, int, int] = (128, 128, 3),
    augment: Augment | None = augment,
) -> Network:
    """Make a residual network: a strided convolution, four stages of two blocks, an average over places; 2.8 M weights.

    Rectified units, batch normalization, He weights; the last normalization of a block starts at zero, so that every
    block starts as the identity; dropout 0.3 before the output.

    Args:
        key: an integer seed or a key.
        dtype: as in `paper_cnn`.
        shape: height, width (multiples of 16) and channels of the pictures.
        augment: changes the pictures in training, `augment(key, images)`; None leaves them as they are.

    Returns:
        a network from pictures (B, H, W, C) to one number each (B,).
    """
    _check(dtype, shape, 16)
    keys = iter(jax.random.split(as_key(key), 2 + 6 * len(STAGES)))
    weights: Tree = {"stem": _conv_norm(next(keys), 3, shape[2], STAGES[0])}
    state: Tree = {"stem": norm_state(STAGES[0])}
    before = STAGES[0]
    for name, num, _ in _blocks():
        weights[name] = {
            "first": _conv_norm(next(keys), 3, before, num),
            "second": _conv_norm(next(keys), 3, num, num, scale=0.0),
        }
        state[name] = {"first": norm_state(num), "second": norm_state(num)}
        if num != before:
            weights[name]["skip"] = _conv_norm(next(keys), 1, before, num)
            state[name]["skip"] = norm_state(num)
        before = num
    weights["out"] = {"kernel": glorot(next(keys), (before, 1)), "bias": jnp.zeros(1, jnp.float32)}
    return Network(weights, state, BetterApply(dtype, augment))


@dataclass(frozen=True)
class BetterApply:
    """Evaluates the residual network."""

    dtype: str
    augment: Augment | None

    def __call__(
        self, weights: Tree, state: Tree, inputs: Array, key: Key[Array, ""], training: bool
    ) -> tuple[Array, Tree]:
        """Return the outputs (B,) and the new state."""
        weights = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights)
        augment_key, dropout_key = jax.random.split(key)
        inputs = jnp.asarray(inputs)
        if training and self.augment is not None:
            inputs = self.augment(augment_key, inputs)
        new: Tree = {}

        def layer(values: Array, name: str, part: str | None = None, stride: int = 1) -> Array:
            own, old = (weights[name], state[name]) if part is None else (weights[name][part], state[name][part])
            out, fresh = batch_norm(own, old, convolve(values, own["kernel"], stride), training, BETTER_MOMENTUM)
            if part is None:
                new[name] = fresh
            else:
                new.setdefault(name, {})[part] = fresh
            return out

        values = jax.nn.relu(layer(as_unit(inputs, self.dtype), "stem", stride=2))
        for name, _, stride in _blocks():
            skip = layer(values, name, "skip", stride) if "skip" in weights[name] else values
            inner = jax.nn.relu(layer(values, name, "first", stride))
            values = jax.nn.relu(layer(inner, name, "second") + skip)
        pooled = jnp.mean(values.astype(jnp.float32), (1, 2))
        if training:
            pooled = dropout(dropout_key, pooled, DROPOUT)
        return _dense(weights["out"], pooled)[:, 0], new if training else state


def augmented(network: Network, augment: Augment = augment) -> Network:
    """Return the network with pictures changed at random in training, and left alone otherwise."""
    return Network(network.weights, network.state, AugmentedApply(network.apply, augment))


@dataclass(frozen=True)
class AugmentedApply:
    """Evaluates a network on changed pictures in training."""

    apply: Callable[..., tuple[Array, Any]]
    augment: Augment

    def __call__(
        self, weights: Any, state: Any, inputs: Array, key: Key[Array, ""], training: bool
    ) -> tuple[Array, Any]:
        """Return the outputs and the new state."""
        augment_key, key = jax.random.split(key)
        inputs = self.augment(augment_key, jnp.asarray(inputs)) if training else inputs
        return self.apply(weights, state, inputs, key, training)


def _blocks() -> list[tuple[str, int, int]]:
    """Return name, channels and stride of every residual block."""
    return [(f"stage{i}{'ab'[j]}", num, 2 if i > 0 and j == 0 else 1) for i, num in enumerate(STAGES) for j in range(2)]


def _conv_norm(key: Key[Array, ""], size: int, before: int, num: int, scale: float = 1.0) -> Tree:
    return {"kernel": he(key, (size, size, before, num)), **norm_weights(num, scale)}


def _dense(weights: Tree, values: Array) -> Array:
    return values @ weights["kernel"].astype(values.dtype) + weights["bias"].astype(values.dtype)


def _check(dtype: str, shape: tuple[int, int, int], multiple: int) -> None:
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype={dtype!r} is unknown: expected one of {', '.join(DTYPES)}.")
    if len(shape) != 3 or any(length < 1 for length in shape) or any(length % multiple for length in shape[:2]):
        raise ArgumentError(
            f"shape={shape!r}: expected height and width, both multiples of {multiple}, and the number of channels."
        )
