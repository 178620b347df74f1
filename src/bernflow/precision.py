"""Local precision and JAX settings, without changing the user's global ones."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import jax
import numpy as np

from bernflow.errors import ArgumentError
from bernflow.forks import check_not_forked

PRECISIONS = ("float32", "float64")
# JAX settings that bernflow's computations rely on, whatever the user's own. NaN densities are handled; transfers to
# the device and broadcasting are intended; and tracers that NumPyro traces hold would be reported as leaks.
SETTINGS: tuple[tuple[Callable[[Any], AbstractContextManager], Any], ...] = (
    (jax.transfer_guard, "allow"),
    (jax.debug_nans, False),
    (jax.debug_infs, False),
    (jax.numpy_dtype_promotion, "standard"),
    (jax.numpy_rank_promotion, "allow"),
    (jax.check_tracer_leaks, False),
    (jax.disable_jit, False),
)


def resolve_precision(precision: str | None) -> str:
    """Return the training precision: the given one, else double on a CPU and single on an accelerator."""
    if precision is None:
        return "float64" if jax.default_backend() == "cpu" else "float32"
    if precision not in PRECISIONS:
        raise ArgumentError(f"precision={precision!r} is unknown: expected one of {', '.join(PRECISIONS)} or None.")
    return precision


@contextmanager
def use_settings() -> Iterator[None]:
    """Use the JAX settings that bernflow relies on, except for the precision, in a `with` block."""
    with ExitStack() as stack:
        for set_locally, value in SETTINGS:
            stack.enter_context(set_locally(value))
        yield


@contextmanager
def use_precision(precision: str) -> Iterator[None]:
    """Use the given precision, and the JAX settings that bernflow relies on, in a `with` block.

    NumPy arrays that a model closes over also have this precision, whatever the process did with them before, and
    tracing inside the block does not affect how the caller's own functions convert them later.
    """
    check_not_forked()  # here because every computation of bernflow enters this context
    with use_settings(), jax.enable_x64(precision == "float64"), _constants:
        yield


def float_dtype() -> np.dtype:
    """Return the floating-point type of the precision in use.

    Example:
        >>> with use_precision("float32"):
        ...     float_dtype()
        dtype('float32')
    """
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


class _ConstantsByPrecision:
    """Makes JAX cache converted NumPy arrays separately for single and double precision.

    JAX (0.10 to 0.12) converts a NumPy array that a traced function closes over to a typed constant, and caches this
    constant as long as a traced function holds it, even if the precision changes. Code traced in double precision would
    get the single precision constants of an earlier MCMC run, and vice versa. Inside this context the converted arrays
    are cached by array and precision. Both references are weak, as in JAX, and the context is thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_entered = 0
        self._convert: Callable[[Any], Any] | None = None
        self._converted: dict[tuple[int, str], tuple[weakref.ref, weakref.ref]] = {}

    def __enter__(self) -> None:
        with self._lock:
            self._num_entered += 1
            if self._num_entered == 1 and (module := _module_that_converts()) is not None:
                self._convert, module.canonicalize_value = module.canonicalize_value, self._canonicalize

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            self._num_entered -= 1
            if self._num_entered == 0 and (module := _module_that_converts()) is not None:
                module.canonicalize_value = self._convert

    def _canonicalize(self, value: Any) -> Any:
        assert self._convert is not None
        if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray) or hasattr(value, "aval"):
            return self._convert(value)  # not cached by JAX, or already converted
        entry = (id(value), float_dtype().name)
        array, constant = self._converted.get(entry, (_nothing, _nothing))
        known = constant()
        if known is not None and array() is value:
            return known
        converted = self._convert(value.view(np.ndarray))  # JAX caches the view, which nobody else references
        forget = weakref.ref(converted, lambda _: self._converted.pop(entry, None))
        self._converted[entry] = (weakref.ref(value), forget)
        return converted


def _nothing() -> None:
    return None


def _module_that_converts() -> Any:
    """Return the JAX module whose `canonicalize_value` caches arrays, or None in versions without it."""
    from jax._src import dtypes

    return dtypes if hasattr(dtypes, "canonicalize_value") else None


_constants = _ConstantsByPrecision()
