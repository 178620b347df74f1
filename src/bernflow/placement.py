"""Where arrays lie: the axes over which rows and particles are spread, known to compiled code while a mesh is in use.

Code that is compiled asks JAX for the mesh in use, which is part of what JAX compiles for. Without one of ours, every
function here returns what it was given.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PyTree

# Names of our own: a mesh that the user has set for other work has other ones and changes nothing here.
DATA, PARTICLES = "bernflow_data", "bernflow_particles"


def use_mesh(mesh: Mesh | None) -> AbstractContextManager:
    """Spread the enclosed computations over a mesh with our axes; None leaves them where they are."""
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


def placed(tree: PyTree) -> PyTree:
    """Move arrays of NumPy to the device; `jnp.asarray` would compile something for every shape."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf, tree)


def is_spread() -> bool:
    """Tell whether a mesh of ours is in use."""
    return DATA in jax.sharding.get_abstract_mesh().axis_names


def replicated(tree: PyTree) -> PyTree:
    """Have every device hold all of these arrays; to be called in compiled code."""
    if not is_spread():
        return tree
    arrays, others = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.with_sharding_constraint(arrays, PartitionSpec()), others)


def over_particles(z: Float[Array, "s p"]) -> Float[Array, "s p"]:
    """Spread particles over their axis; to be called in compiled code.

    The noise itself is drawn as a whole on every device, so that it is the same on any number of them.
    """
    if not is_spread():
        return z
    return jax.lax.with_sharding_constraint(replicated(z), PartitionSpec(PARTICLES))


def fetched(tree: PyTree) -> PyTree:
    """Return replicated arrays as arrays of this process alone."""
    if not is_spread():
        return tree
    return placed(jax.tree.map(lambda leaf: np.asarray(leaf) if _is_plain(leaf) else leaf, tree))


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
