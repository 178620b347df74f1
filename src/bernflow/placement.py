"""Sharding of rows and particles over the devices of a mesh.

Compiled code gets the current mesh from JAX, which includes it in its cache key. Without a mesh of bernflow, every
function here returns its argument.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PyTree

# Unique names, so that a mesh that the user has set for other computations is ignored.
DATA, PARTICLES = "bernflow_data", "bernflow_particles"


def use_mesh(mesh: Mesh | None) -> AbstractContextManager:
    """Run the enclosed computations on a mesh with our axes; None changes nothing."""
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


def placed(tree: PyTree) -> PyTree:
    """Move NumPy arrays to the device; `jnp.asarray` would compile a function for every shape."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf, tree)


def is_spread() -> bool:
    """Tell whether a mesh of bernflow is in use."""
    return DATA in jax.sharding.get_abstract_mesh().axis_names


def replicated(tree: PyTree) -> PyTree:
    """Replicate arrays on all devices; to be called in compiled code."""
    if not is_spread():
        return tree
    arrays, others = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.with_sharding_constraint(arrays, PartitionSpec()), others)


def over_particles(z: Float[Array, "s p"]) -> Float[Array, "s p"]:
    """Shard particles over their axis; to be called in compiled code.

    Every device draws all of the noise, so that the noise does not depend on the number of devices.
    """
    if not is_spread():
        return z
    return jax.lax.with_sharding_constraint(replicated(z), PartitionSpec(PARTICLES))


def fetched(tree: PyTree) -> PyTree:
    """Return replicated arrays as unsharded arrays of this process."""
    if not is_spread():
        return tree
    return placed(jax.tree.map(lambda leaf: np.asarray(leaf) if _is_plain(leaf) else leaf, tree))


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
