"""A registry of the functions that bernflow compiles, so that their caches can be cleared without the user's.

`jax.clear_caches` drops everything that a process has compiled. All functions of bernflow with the lifetime of the
process are compiled by the decorators of this module, which register them.
"""

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

Function = TypeVar("Function", bound=Callable[..., Any])

# Weak references, so that functions are dropped with their owners.
_functions: weakref.WeakSet[Any] = weakref.WeakSet()


def filter_jit(function: Function, **options: Any) -> Function:
    """Compile a function with `eqx.filter_jit` and register it.

    Example:
        >>> @filter_jit
        ... def double(x):
        ...     return 2 * x
        >>> before = num_compiled()
        >>> double(np.ones(3)).tolist()
        [2.0, 2.0, 2.0]
        >>> num_compiled() - before
        1
    """
    wrapper = eqx.filter_jit(function, **options)  # type: ignore[call-overload]
    _remember(getattr(wrapper, "_cached", None))
    return wrapper  # type: ignore[return-value]


def jit(function: Function, **options: Any) -> Function:
    """Compile a function with `jax.jit` and register it."""
    compiled: Any = jax.jit(function, **options)
    _remember(compiled)
    return compiled


def num_compiled() -> int:
    """Count the compiled variants of bernflow's own functions: one for every model, shape and type."""
    return sum(function._cache_size() for function in list(_functions))


def num_variants(function: Any) -> int:
    """Count the compiled variants of one function returned by `filter_jit`; 0 if unknown."""
    cached = getattr(function, "_cached", None)
    return cached._cache_size() if cached is not None and cached in _functions else 0


def clear_compiled() -> None:
    """Drop the compiled variants of bernflow's own functions; they are recompiled when needed."""
    for function in list(_functions):
        function.clear_cache()


def _remember(function: Any) -> None:
    # Both methods are undocumented in JAX. With a version that lacks them nothing is registered.
    if hasattr(function, "clear_cache") and hasattr(function, "_cache_size"):
        _functions.add(function)
