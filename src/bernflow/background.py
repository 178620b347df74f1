"""Functions that are compiled quickly, and in the background while the host does something else.

XLA compiles most of a function with one core and without Python's lock. What a fit will need is known as soon as the
model is; compiling it beside the search for a start makes use of a second core.
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

# More functions at once than this, or than there are cores, only keep each other waiting, and the host, which traces
# the next. A function that takes long has a thread of its own beside them, so that it does not hold them up.
MAX_THREADS = 2
THREAD_NAME = "bernflow-compile"
# What XLA compiles for a CPU by its former emitters is as fast and takes a third less of compiling; later versions of
# XLA do not have them any more. Code in one piece, in place of 32, takes a tenth less: the pieces are not compiled side
# by side.
QUICKER: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}


class Effort(enum.Enum):
    """How hard XLA tries on a CPU; compiling and running times are those of a chunk of steps of eight schools.

    * LEAST: for what runs for milliseconds. Compiled in a fifth of the time, runs three times longer.
    * LIGHT: compiled in three quarters of the time, runs up to a sixth longer; most other functions no longer at all.
    * WIDE: LIGHT with the widest vectors, where the time goes into one density of many rows (a fifth less).
    * FULL: for what runs for long.
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
    """A function compiled when it is first called or, before that, in the background.

    Args:
        function: what to compile.
        effort: how hard to try where `with_effort` does not say otherwise.
        is_long: whether compiling it takes longer than all others together.

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
        """Return the same function, compiled with another effort and kept beside this one."""
        if jax.default_backend() != "cpu":  # where efforts do not differ
            return self
        if effort not in self._variants:
            self._variants[effort] = BackgroundJit(self._function, effort, self._is_long)
            self._variants[effort]._variants = self._variants
        return self._variants[effort]

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Begin to compile for arguments such as these; only their shapes and what is not an array matter."""
        if self._is_long:
            check_memory(NEEDED_TO_COMPILE)
        if num_cores() > 1:
            # Traced here and now: what runs while a model is traced, such as NumPyro's handlers, knows one thread only.
            try:
                lowered = self.lower(*args, **kwargs)
            except BernflowError:
                raise
            except Exception:  # of JAX: it will come again, where it can be explained
                return
            self._pending.append(_threads(self._is_long).submit(lowered.compile))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, after what is being compiled: it may be the same."""
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return self._function(*args, **kwargs)  # a part of something that is compiled as a whole
        self._wait()
        if self._is_long and not num_variants(self._compiled):
            check_memory(NEEDED_TO_COMPILE)
        return self._compiled(*args, **kwargs)

    def wait(self, seconds: float) -> bool:
        """Wait for what is being compiled, at most so long; return whether nothing is any more."""
        pending = wait(tuple(self._pending), None if math.isinf(seconds) else max(0.0, seconds)).not_done
        return not pending

    def _wait(self) -> None:
        while True:
            try:
                pending = self._pending.pop()  # which another thread may do, too
            except IndexError:
                return
            pending.exception()  # whatever went wrong will do so again, in the right place

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function and translate it for XLA."""
        return self._compiled.lower(*args, **kwargs)

    @functools.cached_property
    def _compiled(self) -> Any:
        return filter_jit(self._function, compiler_options=_known(self._effort))


def background_jit(effort: Effort, is_long: bool = False) -> Callable[[Callable[..., Any]], BackgroundJit]:
    """Decorate a function that is compiled in the background, with some effort."""
    return functools.partial(BackgroundJit, effort=effort, is_long=is_long)


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


@contextmanager
def without_pauses() -> Iterator[None]:
    """Pause Python's garbage collector, if no thread of the user runs meanwhile.

    Tracing creates so many objects that the collector would go through all of them again and again, for a tenth of the
    time of a first fit. The collector belongs to the process, so it is left alone if another thread could rely on it.

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
    """Tell whether a thread is alive besides the current one, our compile threads and the monitor of tqdm's bars."""
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
    """Return what this version of XLA knows of the options of an effort."""
    if jax.default_backend() != "cpu":
        return None
    options = QUICKER | OPTIONS[effort]
    # All of them at once: every question takes a compilation.
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
