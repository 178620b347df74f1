"""Local precision: double where it is affordable, without touching the user's global JAX settings."""

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
# The settings of JAX that bernflow's computations rely on, whatever the user has set for other code. A density may be
# NaN where a search ends up, which is handled; moving arrays to the device and broadcasting are intended here; and
# tracers that a NumPyro trace holds until it is dropped would be reported as leaks.
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
    """Return the precision to train in: double on a CPU, single on an accelerator, unless it was asked for."""
    if precision is None:
        return "float64" if jax.default_backend() == "cpu" else "float32"
    if precision not in PRECISIONS:
        raise ArgumentError(f"precision={precision!r} is unknown: expected one of {', '.join(PRECISIONS)} or None.")
    return precision


@contextmanager
def use_settings() -> Iterator[None]:
    """Use the settings of JAX that bernflow relies on, except for the precision, for the enclosed computations only."""
    with ExitStack() as stack:
        for set_locally, value in SETTINGS:
            stack.enter_context(set_locally(value))
        yield


@contextmanager
def use_precision(precision: str) -> Iterator[None]:
    """Use the given precision, and the settings of JAX that bernflow relies on, for the enclosed computations only.

    NumPy arrays that a model closes over have this precision, too, whatever the process did with them before; and
    what is traced here does not change what the caller's own functions see of them afterwards.
    """
    check_not_forked()  # here because every computation of bernflow comes by
    with use_settings(), jax.enable_x64(precision == "float64"), _constants:
        yield


def float_dtype() -> np.dtype:
    """Return the type of floating-point numbers in the precision that is in use.

    Example:
        >>> with use_precision("float32"):
        ...     float_dtype()
        dtype('float32')
    """
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


class _ConstantsByPrecision:
    """While entered, JAX keeps what it makes of a NumPy array apart for single and double precision.

    JAX (0.10 to 0.12) converts a NumPy array that a traced function closes over to a typed constant, and hands out the
    same constant for that array as long as a traced function holds it, even if the precision has changed since. Code
    traced in double precision would get the single precision constants of an earlier MCMC run, and the other way
    round. Inside this context the converted arrays are remembered by precision as well, in a dictionary of our own.
    Both references are weak, as in JAX, and other threads may use it meanwhile: the results are what JAX documents.
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
            return self._convert(value)  # nothing that JAX remembers, or what was converted before
        entry = (id(value), float_dtype().name)
        array, constant = self._converted.get(entry, (_nothing, _nothing))
        known = constant()
        if known is not None and array() is value:
            return known
        converted = self._convert(value.view(np.ndarray))  # JAX remembers the view, which nobody else holds
        forget = weakref.ref(converted, lambda _: self._converted.pop(entry, None))
        self._converted[entry] = (weakref.ref(value), forget)
        return converted


def _nothing() -> None:
    return None


def _module_that_converts() -> Any:
    """Return the module of JAX whose `canonicalize_value` remembers arrays, or None in versions without it."""
    from jax._src import dtypes

    return dtypes if hasattr(dtypes, "canonicalize_value") else None


_constants = _ConstantsByPrecision()
