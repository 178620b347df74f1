"""The networks, made from a network or a function, with augmentation in training."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from bernflow.errors import ArgumentError, ModelError
from bernflow.models.inputs import NUMERIC_KINDS, user_code
from bernflow.models.network import Network, as_network

# Rows of images that are checked at once for non-finite values.
BLOCK = 1024


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Applies a network to images that are augmented in training; compared by value, so that it compiles once.

    Attributes:
        apply: as in `Network`.
        augment: `augment(key, images)` for a batch of images, or None.
    """

    apply: Callable
    augment: Callable | None

    def __call__(self, weights: Any, state: Any, inputs: Array, key: Key[Array, ""], training: bool) -> tuple:
        """Augment, then apply."""
        if training and self.augment is not None:
            key, augment_key = jax.random.split(key)
            with user_code("augment(key, images)"):
                augmented = self.augment(augment_key, inputs)
            if jnp.shape(augmented)[:1] != inputs.shape[:1]:
                raise ModelError(
                    f"augment(key, images) returned shape {jnp.shape(augmented)} for images of shape {inputs.shape}: "
                    "expected as many rows."
                )
            inputs = jnp.asarray(augmented)
        if inputs.dtype == jnp.float64 and not _is_double(weights):
            # Layers of a network accept only inputs of the type of their weights.
            inputs = inputs.astype(jnp.float32)
        return self.apply(weights, state, inputs, key, training)


def _is_double(weights: Any) -> bool:
    return any(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(weights) if eqx.is_inexact_array(leaf))


class NetworkSource:
    """Makes networks.

    Args:
        network: a network, whose weights start every training; or a function of a key that makes one.
        augment: `augment(key, images)` for training, or None.
    """

    def __init__(self, network: Any, augment: Callable | None):
        is_network = (
            isinstance(network, eqx.Module | tuple) or hasattr(network, "__nnx_repr__") or not callable(network)
        )
        is_network |= any(base.__module__.startswith("flax") for base in type(network).__mro__)
        if augment is not None and not callable(augment):
            raise ArgumentError(f"augment={augment!r}: expected a function augment(key, images).")
        self._augment = augment
        self._make = None if is_network else network
        # Converted once: compiled functions identify a network by its object.
        self._given = as_network(network) if is_network else None
        self._first: tuple[Any, Network] | None = None

    def identity_parts(self) -> tuple:
        """Return the inputs of the networks, for fingerprints."""
        return (self._make if self._given is None else self._given, self._augment)

    def __call__(self, key: Key[Array, ""]) -> Network:
        """Return a network; a function makes one from the key."""
        if self._given is not None:
            network = self._given
        else:
            assert self._make is not None
            with user_code("network(key)"):
                network = self._shared(self._make(key))
        return Network(network.weights, network.state, Prepared(network.apply, self._augment))

    def _shared(self, made: Any) -> Network:
        """Convert the result of the function; networks that differ only in weights share compiled code."""
        network, fixed = as_network(made), _fixed_part(made)
        if self._first is not None and fixed is not None:
            same: bool = jax.tree.structure(network.weights) == jax.tree.structure(self._first[1].weights)  # type: ignore[operator]
            if same and _equal(fixed, self._first[0]):
                return Network(network.weights, network.state, self._first[1].apply)
        if self._first is None:
            self._first = (fixed, network)
        return network


def missing_network(*_: Any) -> Any:
    """Placeholder for the network of a file that was loaded without it."""
    raise ArgumentError(
        "This SemiStructured was loaded without its network, which predictions need: bernflow.load(path, network)."
    )


def _fixed_part(made: Any) -> Any:
    """Return the structure of a network without weights and state, or None if it is unknown."""
    if isinstance(made, Network):
        return (made.apply,)
    module = made[0] if isinstance(made, tuple) and made else made
    if isinstance(module, eqx.Module):
        return eqx.partition(module, eqx.is_inexact_array)[1]
    return None


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(eqx.tree_equal(one, other))
    except (TypeError, ValueError):
        return False


def check_images(images: Any, where: str = "images") -> np.ndarray:
    """Return images as an array of numbers, one row per observation; memory-mapped files remain mapped."""
    array = images if isinstance(images, np.ndarray) else np.asarray(images)
    is_float = jnp.issubdtype(array.dtype, jnp.floating)
    if array.ndim < 1 or not (array.dtype.kind in NUMERIC_KINDS or is_float):
        raise ArgumentError(
            f"{where} has shape {array.shape} and type {array.dtype}: expected numbers, one row per observation."
        )
    if is_float:
        for start in range(0, len(array), BLOCK):
            block = np.isfinite(array[start : start + BLOCK].astype(np.float32)).reshape(
                len(array[start : start + BLOCK]), -1
            )
            if not block.all():
                row = start + int(np.flatnonzero(~block.all(1))[0])
                raise ArgumentError(
                    f"{where} has values that are not finite, the first in row {row}: expected numbers."
                )
    return array
