"""Compile functions in the background, with an adjustable optimization effort.

XLA compiles mostly on one core and without holding Python's GIL. The functions that a fit needs are known as soon as
the model is, so they are compiled on a second core during the search for a start.
"""

import enum
import functools
import gc
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.errors import JaxRuntimeError

from bernflow.compiled import filter_jit, num_variants
from bernflow.errors import BernflowError
from bernflow.memory import NEEDED_TO_COMPILE, check_memory

# More threads than this, or than cores, slow down each other and the host, which traces the next function. A function
# that is slow to compile has a separate thread, so that it does not delay the others.
MAX_THREADS = 2
THREAD_NAME = "bernflow-compile"
# The older CPU emitters of XLA compile in a third less time to equally fast code; later versions of XLA remove them.
# Compiling in one piece instead of 32 saves another tenth, because the pieces are not compiled in parallel.
QUICKER: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}


class Effort(enum.Enum):
    """Optimization effort of XLA on a CPU; times are those of a chunk of training steps of eight schools.

    * LEAST: for functions that run for milliseconds. Compiles in a fifth of the time, runs three times as long.
    * LIGHT: compiles in three quarters of the time, runs up to a sixth longer; most other functions not slower.
    * WIDE: LIGHT with the widest vectors, for densities of many rows (a fifth faster).
    * FULL: for functions that run for a long time.
    """

    LEAST = "least"
    LIGHT = "light"
    WIDE = "wide"
    FULL = "full"


OPTIONS: dict[Effort, dict[str, Any]] = {
    Effort.LEAST: {"xla_backend_optimization_level": 0},
    Effort.LIGHT: {"xla_backend_optimization_level": 1},
    Effort.WIDE: {"xla_backend_optimization_level": 1, "xla_cpu_prefer_vector_width": 512},
    Effort.FULL: {},
}


class BackgroundJit:
    """A function compiled on its first call or, before that, in the background.

    Args:
        function: the function to compile.
        effort: optimization effort, unless `with_effort` changes it.
        is_long: whether it takes longer to compile than all other functions together.

    Example:
        >>> import jax.numpy as jnp
        >>> @BackgroundJit
        ... def double(x):
        ...     return 2 * x
        >>> double.prepare(jnp.zeros(3))
        >>> double(jnp.ones(3)).tolist()
        [2.0, 2.0, 2.0]
    """

    def __init__(self, function: Callable[..., Any], effort: Effort = Effort.FULL, is_long: bool = False):
        functools.update_wrapper(self, function)
        self._function = function
        self._is_long = is_long
        self._variants = {effort: self}
        self._effort = effort
        self._pending: list[Future] = []

    def with_effort(self, effort: Effort) -> "BackgroundJit":
        """Return the same function compiled with another effort; both variants are cached."""
        if jax.default_backend() != "cpu":  # efforts only differ on CPUs
            return self
        if effort not in self._variants:
            self._variants[effort] = BackgroundJit(self._function, effort, self._is_long)
            self._variants[effort]._variants = self._variants
        return self._variants[effort]

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Start compiling for arguments of these shapes and types; static arguments are compared by value."""
        if self._is_long:
            check_memory(NEEDED_TO_COMPILE)
        if num_cores() > 1:
            # Trace in this thread: code that runs during tracing, such as NumPyro's handlers, is not thread-safe.
            try:
                lowered = self.lower(*args, **kwargs)
            except BernflowError:
                raise
            except Exception:  # the call itself will raise the same error, where it can be explained
                return
            self._pending.append(_threads(self._is_long).submit(lowered.compile))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, after waiting for pending compilations, which may be for the same arguments."""
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return self._function(*args, **kwargs)  # part of a larger compiled function
        self._wait()
        if self._is_long and not num_variants(self._compiled):
            check_memory(NEEDED_TO_COMPILE)
        return self._compiled(*args, **kwargs)

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for pending compilations; return whether all of them are done."""
        pending = wait(tuple(self._pending), None if math.isinf(seconds) else max(0.0, seconds)).not_done
        return not pending

    def _wait(self) -> None:
        while True:
            try:
                pending = self._pending.pop()  # another thread may do the same
            except IndexError:
                return
            pending.exception()  # ignored: the call itself will raise the same error

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Trace and lower the function."""
        return self._compiled.lower(*args, **kwargs)

    @functools.cached_property
    def _compiled(self) -> Any:
        return filter_jit(self._function, compiler_options=_known(self._effort))


def background_jit(effort: Effort, is_long: bool = False) -> Callable[[Callable[..., Any]], BackgroundJit]:
    """Decorate a function to be compiled in the background with the given effort."""
    return functools.partial(BackgroundJit, effort=effort, is_long=is_long)


def zeros_of(function: Callable[..., Any], *args: Any) -> Any:
    """Return zeros of the shapes and types that a function would return, without running it.

    Example:
        >>> zeros_of(lambda x: {"a": x @ x.T}, np.ones((2, 3)))["a"].shape
        (2, 2)
    """
    return jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf,
        eqx.filter_eval_shape(function, *args),
    )


@contextmanager
def without_pauses() -> Iterator[None]:
    """Pause Python's garbage collector unless other threads of the user are running.

    Tracing creates so many objects that repeated collections would take a tenth of the time of a first fit. The
    collector is global to the process, so it stays enabled if another thread could rely on it.

    Example:
        >>> with without_pauses():
        ...     gc.isenabled()
        False
    """
    if not gc.isenabled() or _has_other_threads():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _has_other_threads() -> bool:
    """Tell whether any thread is alive other than the current one, our compile threads and tqdm's monitor."""
    return any(
        thread is not threading.current_thread()
        and not thread.name.startswith(THREAD_NAME)
        and not type(thread).__module__.startswith("tqdm.")
        for thread in threading.enumerate()
    )


def num_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _known(effort: Effort) -> Mapping[str, Any] | None:
    """Return the options of an effort that this version of XLA accepts."""
    if jax.default_backend() != "cpu":
        return None
    options = QUICKER | OPTIONS[effort]
    # All options are tested at once, because every test is a compilation.
    if _accepts(*QUICKER.items(), *OPTIONS[Effort.WIDE].items()):
        return options
    return dict(option for option in options.items() if _accepts(option)) or None


@functools.cache
def _accepts(*options: tuple[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
    except JaxRuntimeError:
        return False
    return True


@functools.cache
def _threads(is_long: bool) -> ThreadPoolExecutor:
    num = 1 if is_long else max(1, min(MAX_THREADS, num_cores() - 1))
    return ThreadPoolExecutor(num, thread_name_prefix=THREAD_NAME)
