"""Checksums of Python values by content: data, objects, and functions with their code and everything they refer to.

The checksum of equal values is the same in every process. Only the type of opaque values (locks, open files) counts.
"""

import hashlib
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bernflow.errors import ArgumentError
from bernflow.functions import READS_GLOBALS, Names, code_parts, is_library, loaded_names

# Of larger arrays only MAX_HASHED_BYTES are hashed, in evenly spaced blocks including the first and the last.
MAX_HASHED_BYTES, NUM_BLOCKS = 2**30, 64
# Types whose `repr` describes the value completely.
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), slice, range)
# Sequences of plain values longer than this are hashed by their `repr`.
LONG = 1000
# Attributes of classes that Python manages, some of them set only after first use.
INTERNAL = (
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__firstlineno__",
    "__static_attributes__",
    "__slotnames__",
    "__abstractmethods__",
    "_abc_impl",
)


def fingerprint(value: Any) -> str:
    """Return a checksum of a value.

    The checksum of a function covers its code, defaults, closure and the globals that it reads; that of an object of a
    user-defined class also covers the methods. Of a user's module, the attributes that the code names count, and all of
    them where the module is used in another way, as in `getattr(module, name)`. Functions, classes and modules of
    installed packages are identified by name. An object may define a method `identity_parts` that returns what its
    identity depends on.

    Example:
        >>> scale = 1.0
        >>> f = lambda x, scale=scale: -scale * x
        >>> g = lambda x, scale=2.0: -scale * x
        >>> fingerprint(f) == fingerprint(g)
        False
    """
    try:
        return _Reader().digest(value).hex()
    except RecursionError as error:
        raise ArgumentError(
            f"A {type(value).__name__} is nested too deeply to be compared with that of an earlier call: expected a "
            "model with fewer levels of nesting. Leave out resume=."
        ) from error


class _Reader:
    """Computes digests of values; each object is read once, and cycles are detected."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._done: dict[int, tuple[bytes, Any]] = {}

    def digest(self, value: Any) -> bytes:
        if type(value) in PLAIN:
            return _hash(type(value).__name__, repr(value))
        number = id(value)
        if number in self._done:
            return self._done[number][0]
        if number in self._open:
            return _hash("cycle", str(len(self._open) - self._open[number]))
        self._open[number] = len(self._open)
        try:
            found = _hash(*self._parts(value))
        finally:
            del self._open[number]
        self._done[number] = found, value  # keeps the value alive, so that its id is not reused
        return found

    def _parts(self, value: Any) -> Iterator[str | bytes]:
        if not isinstance(value, type) and hasattr(type(value), "identity_parts"):
            return iter([_name(type(value)), self.digest(value.identity_parts())])
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(value)
        for kinds, read in self._readers():
            if isinstance(value, kinds):
                return read(value)
        return self._object(value)

    def _readers(self) -> list[tuple[Any, Callable[[Any], Iterator[str | bytes]]]]:
        return [
            ((dict, types.MappingProxyType), self._mapping),
            ((set, frozenset), lambda v: iter(["set", *sorted(map(self.digest, v))])),
            ((list, tuple), self._sequence),
            (types.FunctionType, self._function),
            (types.MethodType, lambda v: iter(["method", self.digest(v.__func__), self.digest(v.__self__)])),
            (types.CodeType, self._code),
            (types.ModuleType, self._module),
            (type, self._class),
            ((property, staticmethod, classmethod), self._descriptor),
        ]

    def _array(self, value: Any) -> Iterator[str | bytes]:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            yield from ("key", str(jax.random.key_impl(value)), self.digest(np.asarray(jax.random.key_data(value))))
            return
        yield f"array {value.dtype} {value.shape}"
        if isinstance(value, np.ma.MaskedArray):
            yield self.digest(np.ma.getmaskarray(value))
            value = np.ma.getdata(value)
        for block in _blocks(value):
            array = np.ascontiguousarray(block)
            yield self.digest(array.ravel().tolist()) if array.dtype.hasobject else array.tobytes()

    def _mapping(self, value: Any) -> Iterator[str | bytes]:
        yield _name(type(value))
        yield from sorted(self.digest(key) + self.digest(item) for key, item in value.items())

    def _sequence(self, value: Any) -> Iterator[str | bytes]:
        yield _name(type(value)) if is_library(type(value)) else self.digest(type(value))
        if len(value) > LONG and {type(item) for item in value} <= set(PLAIN):
            yield repr(list(value))
            return
        yield from map(self.digest, value)

    def _function(self, value: types.FunctionType) -> Iterator[str | bytes]:
        yield "function"
        library = is_library(value)
        if library:
            yield f"{value.__module__}.{value.__qualname__}"
        if not library or "<" in value.__qualname__:
            yield from self._code(value.__code__)
        yield self.digest([value.__defaults__, value.__kwdefaults__, vars(value)])
        names = None if library else loaded_names(value.__code__)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield name
                content = cell.cell_contents
                yield self.digest(content) if names is None else self._variable(name, content, names)
            except ValueError:  # not filled yet
                yield "empty"
        if names is not None:
            yield from self._globals(value, names)

    def _globals(self, value: types.FunctionType, names: Names) -> Iterator[str | bytes]:
        """Yield the globals that a function reads, and what it reads of user modules."""
        space = value.__globals__
        for name in sorted(names.globals & space.keys()):
            yield name
            yield self._variable(name, space[name], names)
        for name, module in names.modules(space.get("__package__")):
            yield self._variable(name, module, names)
        yield from map(self.digest, names.computed_imports())
        if names.globals & READS_GLOBALS - space.keys():
            yield self._contents(space)

    def _variable(self, name: str, value: Any, names: Names) -> bytes:
        """Return the digest of a variable; of a user's module, only what is read counts where that is known."""
        if not isinstance(value, types.ModuleType) or is_library(value) or id(value) in self._open:
            return self.digest(value)
        if name in names.bare:
            return self.digest(value)
        self._open[id(value)] = len(self._open)
        try:
            # A module may compute attributes by a function of this name.
            read = sorted((names.attributes | {"__getattr__"}) & vars(value).keys())
            return _hash("module", *(part for n in read for part in (n, self._variable(n, vars(value)[n], names))))
        finally:
            del self._open[id(value)]

    def _module(self, value: types.ModuleType) -> Iterator[str | bytes]:
        yield from ("module", value.__name__)
        if not is_library(value):
            yield self._contents(vars(value))

    def _contents(self, space: dict[str, Any]) -> bytes:
        """Return the digest of all variables of a module but those that Python manages."""
        if id(space) in self._open:
            return _hash("cycle")
        self._open[id(space)] = len(self._open)
        try:
            names = sorted(n for n in space if n == "__getattr__" or not (n.startswith("__") and n.endswith("__")))
            return _hash(*(part for name in names for part in (name, self.digest(space[name]))))
        finally:
            del self._open[id(space)]

    def _code(self, value: types.CodeType) -> Iterator[str | bytes]:
        yield from code_parts(value)
        yield from map(self.digest, value.co_consts)

    def _class(self, value: type) -> Iterator[str | bytes]:
        yield "class"
        if is_library(value):
            yield _name(value)
            return
        yield from map(self.digest, value.__bases__)
        yield self.digest({name: part for name, part in vars(value).items() if name not in INTERNAL})

    def _descriptor(self, value: Any) -> Iterator[str | bytes]:
        yield type(value).__name__
        functions = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value.__func__,)
        yield from map(self.digest, functions)

    def _object(self, value: Any) -> Iterator[str | bytes]:
        yield self.digest(type(value))
        if callable(value) and hasattr(value, "__wrapped__"):  # what jax.jit and functools.lru_cache return
            yield self.digest(value.__wrapped__)
        yield from self._reduced(value)

    def _reduced(self, value: Any) -> Iterator[str | bytes]:
        """Yield the state that pickle would store of an object."""
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # a lock, a file or a generator has no state to compare
            yield "opaque"
            return
        if isinstance(reduced, str):
            yield reduced
            return
        function, arguments, state, *items = (*reduced, None, None, None)[:5]
        yield self.digest(function)
        yield self.digest(arguments)
        yield self.digest(_without_caches(type(value), state))
        yield from (self.digest(list(part)) for part in items if part is not None)


def _without_caches(cls: type, state: Any) -> Any:
    """Leave out attributes that are computed on first access, as by `cached_property`."""
    if not isinstance(state, dict):
        return state
    return {name: part for name, part in state.items() if not _is_computed(getattr(cls, str(name), None))}


def _is_computed(attribute: Any) -> bool:
    kind = type(attribute)
    return hasattr(kind, "__get__") and not hasattr(kind, "__set__") and not isinstance(attribute, types.FunctionType)


def _blocks(value: Any) -> list[Any]:
    if value.nbytes <= MAX_HASHED_BYTES or value.ndim == 0 or len(value) < 2 * NUM_BLOCKS:
        return [value]
    num = max(1, math.ceil(MAX_HASHED_BYTES / NUM_BLOCKS / (value.nbytes / len(value))))
    starts = np.linspace(0, len(value) - num, NUM_BLOCKS).astype(int)
    return [value[start : start + num] for start in starts]


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}" if is_library(cls) else cls.__name__


def _hash(*parts: str | bytes) -> bytes:
    total = hashlib.sha256()
    for part in parts:
        content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        total.update(f"{len(content)}:".encode())
        total.update(content)
    return total.digest()
