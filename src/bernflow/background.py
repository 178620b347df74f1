"""Functions that are compiled quickly, and in the background while the host does something else.

XLA compiles most of a function with one core and without Python's lock. What a fit will need is known as soon as the
model is; compiling it beside the search for a start makes use of a second core.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.errors import JaxRuntimeError

# More functions at once than this only keep each other waiting.
MAX_THREADS = 3
# What XLA compiles for a CPU by its former emitters is as fast and takes a third less of compiling. Later versions of
# XLA do not have them any more.
QUICKER = {"xla_cpu_use_fusion_emitters": False}


class BackgroundJit:
    """A function compiled when it is first called or, before that, in the background.

    Example:
        >>> import jax.numpy as jnp
        >>> @BackgroundJit
        ... def double(x):
        ...     return 2 * x
        >>> double.prepare(jnp.zeros(3))
        >>> double(jnp.ones(3)).tolist()
        [2.0, 2.0, 2.0]
    """

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function)
        self._function = function
        self._pending: list[Future] = []

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Begin to compile for arguments such as these; only their shapes and what is not an array matter."""
        if num_cores() > 1:
            # Traced here and now: what runs while a model is traced, such as NumPyro's handlers, knows one thread only.
            lowered = self.lower(*args, **kwargs)
            self._pending.append(_threads().submit(lowered.compile))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, after what is being compiled: it may be the same."""
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return self._function(*args, **kwargs)  # a part of something that is compiled as a whole
        while self._pending:
            self._pending.pop().exception()  # whatever went wrong will do so again, in the right place
        return self._compiled(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function and translate it for XLA."""
        return self._compiled.lower(*args, **kwargs)

    @functools.cached_property
    def _compiled(self) -> Any:
        return eqx.filter_jit(self._function, compiler_options=_options())  # type: ignore[call-overload]


def zeros_of(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function would return, with zeros in place of all numbers and nothing computed.

    Example:
        >>> zeros_of(lambda x: {"a": x @ x.T}, np.ones((2, 3)))["a"].shape
        (2, 2)
    """
    return jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf,
        eqx.filter_eval_shape(function, *args),
    )


def num_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _options() -> dict[str, bool] | None:
    """Return what this version of XLA knows of the options that make it quicker."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda: 0, compiler_options=QUICKER).lower().compile()
    except JaxRuntimeError:
        return None
    return QUICKER


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="bernflow-compile")
