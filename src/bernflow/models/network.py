"""Networks that are trained together with the posterior: one interface for equinox, flax.nnx and plain functions."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from bernflow.compiled import filter_jit
from bernflow.errors import ModelError
from bernflow.keys import portable

# Rows per pass of a network over many rows.
BLOCK_SIZE = 256


class Network(eqx.Module):
    """A network as weights, state and a function: h = apply(weights, state, inputs, key, training).

    Attributes:
        weights: the trained weights.
        state: variables that change in training and are fixed afterward (running means of batch normalization).
        apply: `apply(weights, state, inputs, key, training)` returns the output (B, ...) for inputs (B, ...) and the
            new state; `key` is for dropout.
    """

    weights: PyTree
    state: PyTree
    apply: Callable[[PyTree, PyTree, Array, Key[Array, ""], bool], tuple[Array, PyTree]] = eqx.field(static=True)

    def __call__(self, inputs: Array) -> Array:
        """Evaluate the network in evaluation mode on a batch of inputs."""
        return self.apply(self.weights, self.state, inputs, jax.random.key(0), False)[0]

    def with_weights(self, weights: PyTree, state: PyTree) -> "Network":
        """Return the network with other weights."""
        return Network(weights, state, self.apply)


@filter_jit
def _evaluate_block(network: Network, inputs: Any) -> Array:
    return network(inputs)


def evaluate(network: Network, inputs: np.ndarray, block: int = BLOCK_SIZE) -> np.ndarray:
    """Evaluate a network in evaluation mode on many inputs, one block at a time on the device."""
    outputs = []
    for start in range(0, len(inputs), block):
        # The last block is padded with copies of the last row, so that all blocks have one compiled shape.
        rows = np.minimum(np.arange(start, start + block), len(inputs) - 1)
        outputs.append(np.asarray(_evaluate_block(network, inputs[rows]))[: len(inputs) - start])
    return np.concatenate(outputs)


def as_network(network: Any) -> Network:
    """Convert a network of any supported kind to a `Network`.

    Args:
        network: a `Network`; an equinox module that takes one input, or a pair of such a module and its `eqx.nn.State`;
            or a flax.nnx module that takes a batch.
    """
    if isinstance(network, Network):
        return network
    if isinstance(network, eqx.Module):
        return _from_equinox(network, None)
    if isinstance(network, tuple) and len(network) == 2 and isinstance(network[0], eqx.Module):
        return _from_equinox(*network)
    if _is_nnx(network):
        return _from_nnx(network)
    raise ModelError(
        f"network is a {type(network).__module__}.{type(network).__qualname__}: expected an equinox module, a pair "
        "(module, state) of equinox.nn.make_with_state, a flax.nnx module, or a bernflow Network. Wrap a flax.linen "
        "module with flax.nnx.bridge.ToNNX."
    )


class _EquinoxApply(eqx.Module):
    """Applies an equinox module to every row of a batch, with common running statistics."""

    fixed: PyTree
    takes_key: bool = eqx.field(static=True)

    def __call__(self, weights, state, inputs, key, training):
        module = eqx.combine(weights, self.fixed)
        if not training:
            module = eqx.nn.inference_mode(module)
        keys = jax.random.split(key, inputs.shape[0])

        def one(row, key, state):
            more = {"key": key} if self.takes_key else {}
            return module(row, **more) if state is None else module(row, state, **more)

        if state is None:
            return jax.vmap(lambda row, key: one(row, key, None))(inputs, keys), None
        # Batch normalization averages over the axis called "batch", so that the state is the same for all rows.
        return jax.vmap(one, axis_name="batch", in_axes=(0, 0, None), out_axes=(0, None))(inputs, keys, state)


def _from_equinox(module: eqx.Module, state: Any) -> Network:
    weights, fixed = eqx.partition(module, eqx.is_inexact_array)
    takes_key = "key" in inspect.signature(module.__call__).parameters  # type: ignore[operator]
    return Network(weights, state, _Static(_EquinoxApply(fixed, takes_key)))


class _NnxApply:
    """Applies a flax.nnx module to a batch."""

    def __init__(self, definition: Any):
        self.definition = definition

    def __call__(self, weights, state, inputs, key, training):
        from flax import nnx

        # Copy, because this call changes the variables of the module.
        module = nnx.merge(self.definition, weights, state, copy=True)
        if training:
            module.train()
            # Streams of random numbers are named by their use, or "default" in flax.
            nnx.reseed(module, dropout=portable(key), default=portable(key))
        else:
            module.eval()
        out = module(inputs)
        return out, nnx.state(module, nnx.Not(nnx.Param))


def _from_nnx(module: Any) -> Network:
    from flax import nnx

    definition, weights, state = nnx.split(module, nnx.Param, ...)
    return Network(weights, state, _Static(_NnxApply(definition)))


class _Static:
    """A function that jit compares by identity, because parts of a network may not be comparable."""

    def __init__(self, function: Callable):
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def _is_nnx(network: Any) -> bool:
    return any(base.__module__.startswith("flax.nnx") for base in type(network).__mro__)


def check_output(network: Network, inputs: np.ndarray) -> tuple[int, ...]:
    """Return the shape of the output per row, evaluated on shapes only."""
    if len(inputs) < 1:
        raise ModelError("images is empty: expected one row per observation.")
    rows = jax.ShapeDtypeStruct((2, *inputs.shape[1:]), jnp.asarray(inputs[:1]).dtype)
    try:
        out = eqx.filter_eval_shape(lambda network, rows: network(rows), network, rows)
    except Exception as error:
        raise ModelError(
            f"The network failed on a batch of shape {rows.shape} and type {rows.dtype} with {type(error).__name__}: "
            f"{error}"
        ) from error
    if not hasattr(out, "shape") or out.shape[:1] != (2,):
        given = getattr(out, "shape", type(out).__name__)
        raise ModelError(f"The network returned {given} for a batch of 2 rows: expected an array with 2 rows.")
    return out.shape[1:]
