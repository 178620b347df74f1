"""PyTensor's JAX functions, imported without side effects.

Importing `pytensor.link.jax.dispatch` sets JAX's precision for the whole process. PyMC's JAX samplers rely on that, but
bernflow must not do it. So bernflow uses a separate copy of the module, which is not kept in `sys.modules`: a later
import by the user has its usual effect.
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
# Re-entrant, because converting a graph may rewrite another one.
_lock = threading.RLock()


@contextmanager
def jax_dispatch() -> Iterator[ModuleType]:
    """Provide the module with PyTensor's JAX functions: the user's if it was imported, otherwise a copy.

    PyTensor's rewrites import submodules by name. Within this context they get those of the same copy.
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
    """Import the module with its submodules, and restore `sys.modules` and the precision."""
    # A separate thread sees the global precision and not a local one of the caller.
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
