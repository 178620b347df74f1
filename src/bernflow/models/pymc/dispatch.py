"""PyTensor's JAX functions, without what importing them does to the process.

Importing `pytensor.link.jax.dispatch` sets JAX's precision for the whole process. PyMC's JAX samplers rely on that, and
bernflow must not do it. So bernflow uses a copy of its own, which is not kept in `sys.modules`: a later import by the
user has the effect that it always has.
"""

import functools
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import jax
import jax.numpy as jnp

PARENT, CHILD = "pytensor.link.jax", "dispatch"
NAME = f"{PARENT}.{CHILD}"
# Re-entrant: converting a graph may rewrite another.
_lock = threading.RLock()


@contextmanager
def jax_dispatch() -> Iterator[ModuleType]:
    """Provide the module with PyTensor's JAX functions, the user's if it was imported and a copy otherwise.

    PyTensor's rewrites import parts of it by name. Within this context they get the parts of the same copy.
    """
    with _lock:
        if NAME in sys.modules:
            yield sys.modules[NAME]
            return
        copy = _own_copy()
        parent = import_module(PARENT)
        sys.modules.update(copy)
        setattr(parent, CHILD, copy[NAME])
        try:
            yield copy[NAME]
        finally:
            _drop(copy)


def is_double() -> bool:
    """Tell whether JAX computes in double precision."""
    return jnp.result_type(float) == jnp.float64


@functools.cache
def _own_copy() -> dict[str, ModuleType]:
    """Import the module with all of its parts, and leave neither them nor the precision behind."""
    # A thread of its own sees the global precision, whatever local one surrounds this call.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_import).result()
    copy = {name: module for name, module in sys.modules.items() if name == NAME or name.startswith(f"{NAME}.")}
    _drop(copy)
    return copy


def _import() -> None:
    before = is_double()
    try:
        import_module(NAME)
    finally:
        jax.config.update("jax_enable_x64", before)


def _drop(modules: dict[str, ModuleType]) -> None:
    for name in modules:
        del sys.modules[name]
    delattr(sys.modules[PARENT], CHILD)
