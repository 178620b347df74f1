"""Conversion of pytrees to named arrays and back, for storage without pickle."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bernflow.precision import use_precision


def named_arrays(prefix: str, tree: PyTree) -> dict[str, np.ndarray]:
    """Return the arrays of a tree by numbered names; random keys as integers."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return {f"{prefix}_{i:05d}": np.asarray(_plain(leaf)) for i, leaf in enumerate(leaves)}


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def fill_arrays(prefix: str, template: PyTree, arrays: dict[str, np.ndarray]) -> PyTree:
    """Replace the arrays of a template by stored ones."""
    variable, fixed = eqx.partition(template, eqx.is_array)
    leaves, structure = jax.tree.flatten(variable)
    filled = []
    for i, leaf in enumerate(leaves):
        stored, plain = arrays[f"{prefix}_{i:05d}"], _plain(leaf)
        if stored.dtype != plain.dtype and stored.dtype.kind == "V":
            # Types that NumPy lacks, such as bfloat16, are stored as bytes.
            stored = stored.view(plain.dtype)
        if stored.shape != plain.shape or stored.dtype != plain.dtype:
            raise ValueError(f"an array is {stored.dtype}{stored.shape}, expected {plain.dtype}{plain.shape}")
        value = jnp.asarray(stored)
        filled.append(value if plain is leaf else jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf)))
    return eqx.combine(jax.tree.unflatten(structure, filled), fixed)


class _OnHost:
    """A JAX array converted to a NumPy array."""

    def __init__(self, value: np.ndarray):
        self.value = value


def on_host(tree: PyTree) -> PyTree:
    """Convert JAX arrays in a tree to NumPy arrays for pickling: JAX unpickles 64-bit arrays as 32-bit ones."""

    def one(leaf: Any) -> Any:
        is_plain = isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return _OnHost(np.asarray(leaf)) if is_plain else leaf

    return jax.tree.map(one, tree)


def from_host(tree: PyTree) -> PyTree:
    """Invert `on_host`."""
    with use_precision("float64"):  # keeps 32-bit numbers unchanged
        return jax.tree.map(lambda leaf: jnp.asarray(leaf.value) if isinstance(leaf, _OnHost) else leaf, tree)
