"""The functions that bernflow compiles, so that they can be cleared without clearing those of the user.

`jax.clear_caches` drops everything that a process has compiled. All functions of bernflow that live as long as the
process are compiled by the decorators of this module, which remember them.
"""

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

Function = TypeVar("Function", bound=Callable[..., Any])

# Weak references, so that a function that is dropped by its owner is dropped here, too.
_functions: weakref.WeakSet[Any] = weakref.WeakSet()


def filter_jit(function: Function, **options: Any) -> Function:
    """Compile a function with `eqx.filter_jit`, and remember it.

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
    """Compile a function with `jax.jit`, and remember it."""
    compiled: Any = jax.jit(function, **options)
    _remember(compiled)
    return compiled


def num_compiled() -> int:
    """Count the compiled variants of bernflow's own functions: one for every model, shape and type that they met."""
    return sum(function._cache_size() for function in list(_functions))


def num_variants(function: Any) -> int:
    """Count the compiled variants of one function that `filter_jit` returned; 0 where that is not known."""
    cached = getattr(function, "_cached", None)
    return cached._cache_size() if cached is not None and cached in _functions else 0


def clear_compiled() -> None:
    """Drop the compiled variants of bernflow's own functions; those needed again are compiled again."""
    for function in list(_functions):
        function.clear_cache()


def _remember(function: Any) -> None:
    # Both methods are JAX's own, but not documented. A version without them clears nothing.
    if hasattr(function, "clear_cache") and hasattr(function, "_cache_size"):
        _functions.add(function)
