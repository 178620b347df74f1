"""A Stan program with data: row-wise operations, evaluated in one call for a whole batch."""

import hashlib
import weakref
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from bernflow.models.host import batched_host_call
from bernflow.models.stan import names as naming

NO_KEY = np.zeros(0, np.uint32)


class Operation(IntEnum):
    """The operations of a program; the numbers are those of shim.cpp."""

    VALUE = 0
    GRADIENT = 1
    HESSIAN = 2
    LOG_JACOBIAN = 3
    CONSTRAIN = 4
    CONSTRAIN_SLOPES = 5
    UNCONSTRAIN = 6
    DERIVED = 7


class Engine(Protocol):
    """An evaluator of programs: a compiled library of bernflow, or BridgeStan."""

    @property
    def name(self) -> str:
        """Return a name that identifies the engine."""
        ...

    @property
    def target(self) -> str | None:
        """Return the name of its XLA target, or None if only Python can call it."""
        ...

    def evaluate(
        self, operation: int, handles: np.ndarray, rows: np.ndarray, keys: np.ndarray, num_out: int
    ) -> np.ndarray:
        """Evaluate an operation on rows, (num, n) -> (num, num_out)."""
        ...

    def names(self, handle: int, which: int) -> list[str]:
        """Return names of components: 0 parameters, 1 with transformed ones, 2 with generated quantities, 3 on R^p."""
        ...

    def message(self, handle: int) -> str:
        """Return the message of the last evaluation that failed."""
        ...

    def free(self, handle: int) -> None:
        """Release an instance."""
        ...


class Instance:
    """A program with data.

    Two instances are equal if their programs are equal and their variables have the same shapes, whatever the data.
    Functions compiled for one are then reused for the other, because the handle, which represents the data, is an
    argument. The data are freed with the last instance that references them.

    Attributes:
        handle: number of the C++ object.
        parameters: the parameters.
        derived: transformed parameters and generated quantities; places count from the end of the parameters.
        num_transformed: number of derived variables that are transformed parameters.
        sizes: unconstrained dimensions of every parameter.
        origin: program and data, independent of the compiler.
    """

    def __init__(self, engine: Engine, handle: int, use_callback: bool = False, origin: Sequence[Any] = ()):
        self._finalizer = weakref.finalize(self, engine.free, handle)
        self._finalizer.atexit = False  # the operating system frees memory faster
        self.engine = engine
        self.handle = handle
        self.origin = tuple(origin)
        self.use_callback = use_callback or engine.target is None
        flat = [engine.names(handle, which) for which in range(4)]
        self.num_theta = len(flat[0])
        self.num_derived = len(flat[2]) - len(flat[0])
        self.parameters = naming.group(flat[0])
        self.derived = naming.group(flat[2][self.num_theta :])
        self.num_transformed = len(naming.group(flat[1][self.num_theta :]))
        naming.sizes(flat[0])  # raises an error if the components of a parameter are not contiguous
        by_name = naming.sizes(flat[3])
        self.sizes = tuple(by_name.get(variable.name, 0) for variable in self.parameters)
        self.dim = len(flat[3])
        digest = hashlib.sha256("\n".join(name for part in flat for name in (*part, "")).encode()).hexdigest()
        self._signature = (engine.name, digest, self.use_callback)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instance) and self._signature == other._signature

    def __hash__(self) -> int:
        return hash(self._signature)

    def identity_parts(self) -> tuple[Any, ...]:
        """Return everything that the density depends on, see `fingerprint`."""
        return self.origin, [(v.name, v.shape) for v in (*self.parameters, *self.derived)]

    def __copy__(self) -> "Instance":
        return self  # a second owner of the handle would not keep it alive

    def __deepcopy__(self, memo: dict[int, Any]) -> "Instance":
        return self

    def __repr__(self) -> str:
        return f"Instance({', '.join(v.name for v in self.parameters)})"

    def on_host(self, operation: Operation, rows: np.ndarray, num_out: int) -> np.ndarray:
        """Evaluate an operation on several rows without JAX, in double precision."""
        handles = np.full(len(rows), self.handle, np.int32)
        return self.engine.evaluate(operation, handles, rows, NO_KEY, num_out)

    def call(
        self,
        operation: Operation,
        handle: Int[Array, ""],
        x: Float[Array, " n"],
        num_out: int,
        key: UInt[Array, " k"] | np.ndarray = NO_KEY,
    ) -> Float[Array, " num_out"]:
        """Evaluate an operation; a vmapped call is one call for the whole batch.

        Stan computes in double precision; in single precision only inputs and outputs are rounded.
        """
        handle, key = jnp.asarray(handle), jnp.asarray(key)
        if self.use_callback or jax.default_backend() != "cpu":
            return _call_through_python(self.engine, operation, handle, x, key, num_out)
        assert self.engine.target is not None
        out = jax.ShapeDtypeStruct((num_out,), x.dtype)
        call = jax.ffi.ffi_call(self.engine.target, out, vmap_method="broadcast_all")
        return call(handle, x, key, operation=np.int64(operation))


def _call_through_python(
    engine: Engine, operation: Operation, handle: Array, x: Array, key: Array, num_out: int
) -> Array:
    """Evaluate an operation on the host, for a whole batch at once."""

    def evaluate(handles: np.ndarray, rows: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
        num = handles.size
        flat = rows.reshape(num, x.shape[0]), keys.reshape(num, keys.shape[-1])
        return [engine.evaluate(operation, handles.ravel(), *flat, num_out).reshape(*handles.shape, num_out)]

    out = jax.ShapeDtypeStruct((num_out,), x.dtype)
    return batched_host_call(evaluate, [out], handle, x, key, vmap_method="broadcast_all")[0]


def split(variables: Sequence[naming.Variable], flat: Float[Array, " n"]) -> dict[str, Array]:
    """Split a flat output into named arrays."""
    return {
        v.name: (flat[v.places[0] : v.places[-1] + 1] if v.is_contiguous else flat[v.places]).reshape(v.shape)
        for v in variables
    }


def join(variables: Sequence[naming.Variable], values: dict[str, Array]) -> Float[Array, " n"]:
    """Invert `split`; all variables of the flat output must be given."""
    in_order = jnp.concatenate([jnp.ravel(values[v.name]) for v in variables])
    return in_order[np.argsort(np.concatenate([v.places for v in variables]))]
