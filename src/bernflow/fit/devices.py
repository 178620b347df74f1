"""Many devices, many machines: rows spread over one axis of a mesh, particles over the other.

The compiler does the rest: it sees where the arrays lie, splits the work accordingly and puts in the sums over devices.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from bernflow.errors import ArgumentError
from bernflow.fit.settings import check_count
from bernflow.models import Model
from bernflow.models.base import AbstractJointModel, AbstractMappedModel, AbstractModel
from bernflow.models.inputs import Opaque, is_data
from bernflow.models.numpyro import NumPyroModel
from bernflow.placement import DATA, PARTICLES
from bernflow.precision import use_precision

# What users call the axes.
AXES = ("data", "particles")


def as_mesh(mesh: Any) -> Mesh:
    """Turn what the user gave into a mesh with our two axes, data first."""
    if isinstance(mesh, Mesh):
        names = tuple(mesh.axis_names)
        if not names or not set(names) <= set(AXES):
            raise ArgumentError(f"mesh has the axes {names}: expected 'data', 'particles' or both.")
        devices = mesh.devices.transpose() if names == AXES[::-1] else mesh.devices
        devices = devices.reshape([mesh.shape.get(name, 1) for name in AXES])
    elif isinstance(mesh, Mapping):
        if not mesh or not set(mesh) <= set(AXES):
            raise ArgumentError(f"mesh={dict(mesh)!r}: expected numbers of devices for 'data', 'particles' or both.")
        shape = [check_count(f"mesh[{name!r}]", mesh.get(name), 1) for name in AXES]
        available = jax.devices()
        if math.prod(shape) > len(available):
            raise ArgumentError(
                f"mesh={dict(mesh)!r} needs {math.prod(shape)} devices: there are {len(available)}. On a CPU, set "
                "jax.config.update('jax_num_cpu_devices', n) before anything else; on several machines, call "
                "jax.distributed.initialize() first."
            )
        devices = np.array(available[: math.prod(shape)]).reshape(shape)
    else:
        raise ArgumentError(
            f"mesh={mesh!r}: expected a jax.sharding.Mesh or a dict such as {{'data': 4, 'particles': 2}}."
        )
    return Mesh(devices, (DATA, PARTICLES))


class Devices:
    """The devices of a fit, and how rows are spread over them.

    In a run of several processes every process brings rows of its own where there is a data axis, and all of them
    otherwise.

    Args:
        mesh: with our two axes.
    """

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        owners = np.vectorize(lambda device: device.process_index)(mesh.devices)
        self.num_processes = len(np.unique(owners))
        if self.num_processes != jax.process_count():
            raise ArgumentError(
                f"mesh has devices of {self.num_processes} of {jax.process_count()} processes: expected all of them."
            )
        self.num_shards = mesh.shape[DATA]
        self.own_rows = self.num_shards > 1 and self.num_processes > 1
        if self.own_rows and (owners != owners[:, :1]).any():
            raise ArgumentError(
                f"mesh spreads the rows of one process over several, or those of several over one ({owners.tolist()}): "
                "expected the devices of one place along 'data' to be of one process. Make 'data' a multiple of the "
                "number of processes."
            )
        self.num_local_shards = int(np.sum(owners[:, 0] == jax.process_index())) if self.own_rows else self.num_shards

    def check(self, model: AbstractModel) -> None:
        """Refuse models whose work cannot be spread."""
        kind = type(model).__name__
        if isinstance(model, AbstractMappedModel):
            raise ArgumentError(
                f"mesh: a {kind} calls functions on the host, which cannot be spread over devices. Leave mesh out, or "
                "write the model for NumPyro or as a bf.Model."
            )
        if self.num_shards > 1 and not isinstance(model, Model | NumPyroModel):
            raise ArgumentError(
                f"mesh: a {kind} has no rows that could be spread over 'data'. Spread the particles alone, "
                "mesh={'particles': n}, or give a bf.Model, or a NumPyro model without subsample_size."
            )
        if self.own_rows and isinstance(model, Model) and model.network is not None:
            raise ArgumentError(
                "mesh: a model with a network cannot be spread over several processes: use the devices of one."
            )

    def everywhere(self, tree: PyTree) -> PyTree:
        """Put a copy of every array on every device."""
        return jax.tree.map(lambda leaf: self._put(leaf, PartitionSpec()) if is_data(leaf) else leaf, tree)

    def batch(self, values: np.ndarray) -> jax.Array:
        """Spread the rows of batches (steps, rows, ...); where they cannot be divided, every device gets all."""
        spec = PartitionSpec(None, DATA) if values.shape[1] % self.num_local_shards == 0 else PartitionSpec()
        return self._put(values, spec)

    def spread(self, model: AbstractModel) -> AbstractModel:
        """Return a model whose rows lie on the devices of the data axis and whose other arrays lie on all."""
        if self.num_shards == 1:
            return self.everywhere(model)
        if isinstance(model, Model):
            return self._spread_declarative(model)
        assert isinstance(model, NumPyroModel)
        return self._spread_arguments(model)

    def total_rows(self, num_rows: int) -> int:
        """Count the rows of all processes."""
        return int(self.counts(num_rows).sum())

    def counts(self, num_rows: int) -> np.ndarray:
        """Return the number of rows of every process."""
        if not self.own_rows:
            return np.array([num_rows])
        return multihost_utils.process_allgather(np.asarray(num_rows)).reshape(-1)

    def common(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Return an identity of the whole fit, the same in every process, from that of each with its own rows."""
        if not self.own_rows:
            return identity
        common = dict(identity)
        for name in ("data", "code_or_constants"):  # a model may hold its number of rows, which differs, too
            digests = multihost_utils.process_allgather(np.frombuffer(bytes.fromhex(identity[name]), np.uint8))
            common[name] = hashlib.sha256(np.asarray(digests, np.uint8).tobytes()).hexdigest()
        terms = identity["log_density"]
        with use_precision("float64"):
            values = np.sum(multihost_utils.process_allgather(np.array([*terms.values()], float)), 0)
        common["log_density"] = {name: [repr(float(v)) for v in row] for name, row in zip(terms, values, strict=True)}
        return common

    def _spread_declarative(self, model: Model) -> Model:
        counts = self.counts(model.num_rows())
        total = int(counts.sum())
        # Copies of the last row fill up what cannot be divided; they do not count.
        size = math.ceil(int(counts.max()) / self.num_local_shards) * self.num_local_shards
        own = model.num_rows()
        by_row, constant = model.split_rows()
        padded = jax.tree.map(lambda leaf: self._put(_padded(leaf, size), PartitionSpec(DATA)), by_row)
        is_real = None
        if (counts != size).any():
            is_real = self._put(np.arange(size) < own, PartitionSpec(DATA))
        return model.with_rows(padded, self.everywhere(constant), total, is_real)

    def _spread_arguments(self, model: NumPyroModel) -> NumPyroModel:
        leaves = jax.tree.leaves((model.args, model.kwargs))
        if any(isinstance(leaf, Opaque) and is_data(leaf.value) for leaf in leaves):
            raise ArgumentError(
                "mesh: the model function looks at the values of its arrays (len(np.unique(group)), say), so that they "
                "cannot be spread over devices. Pass what it computes from them as arguments."
            )
        num = max((leaf.shape[0] for leaf in leaves if is_data(leaf) and leaf.ndim), default=0)
        counts = self.counts(num)
        if num == 0 or (counts % self.num_local_shards).any() or (counts != counts[0]).any():
            raise ArgumentError(
                f"mesh: the longest arguments of the model have {' and '.join(map(str, counts))} rows, which cannot be "
                f"divided evenly among {self.num_shards} devices of 'data'. Leave some rows out, use another number of "
                "devices, or write the model as a bf.Model, whose rows are filled up."
            )

        def put(leaf: Any) -> Any:
            if not is_data(leaf):
                return leaf
            is_rows = leaf.ndim > 0 and leaf.shape[0] == num
            return self._put(leaf, PartitionSpec(DATA) if is_rows else PartitionSpec())

        return model.with_arguments(*jax.tree.map(put, (model.args, model.kwargs)))

    def _put(self, values: Any, spec: PartitionSpec) -> jax.Array:
        sharding = NamedSharding(self.mesh, spec)
        # The precision of the moment, as JAX would take it.
        values = np.asarray(values).astype(jax.dtypes.canonicalize_dtype(values.dtype), copy=False)
        if DATA in spec and self.own_rows:
            axis = spec.index(DATA)
            shape = list(values.shape)
            shape[axis] *= self.num_shards // self.num_local_shards
            return jax.make_array_from_process_local_data(sharding, values, tuple(shape))
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def check_batches(devices: Devices, model: AbstractJointModel, batch_size: int) -> None:
    """Refuse batches that cannot be divided evenly."""
    if batch_size % devices.num_shards:
        raise ArgumentError(
            f"batch_size={batch_size} with {devices.num_shards} devices along 'data': expected a multiple of that."
        )
    counts = devices.counts(model.num_rows())
    if (counts != counts[0]).any() or (devices.own_rows and counts[0] % devices.num_local_shards):
        raise ArgumentError(
            f"mesh: the processes have {' and '.join(map(str, counts))} rows: batches need equally many in each, a "
            f"multiple of its {devices.num_local_shards} devices along 'data'. Leave some rows out."
        )


def _padded(values: Any, size: int) -> np.ndarray:
    return np.concatenate([values, np.repeat(values[-1:], size - len(values), 0)]) if size > len(values) else values
