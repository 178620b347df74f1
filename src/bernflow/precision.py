"""Local precision: double where it is affordable, without touching the user's global JAX settings."""

from contextlib import AbstractContextManager

import jax
import numpy as np

from bernflow.errors import ArgumentError

PRECISIONS = ("float32", "float64")


def resolve_precision(precision: str | None) -> str:
    """Return the precision to train in: double on a CPU, single on an accelerator, unless it was asked for."""
    if precision is None:
        return "float64" if jax.default_backend() == "cpu" else "float32"
    if precision not in PRECISIONS:
        raise ArgumentError(f"precision={precision!r} is unknown: expected one of {', '.join(PRECISIONS)} or None.")
    return precision


def use_precision(precision: str) -> AbstractContextManager:
    """Enter the given precision for the enclosed JAX computations only."""
    return jax.enable_x64(precision == "float64")


def float_dtype() -> np.dtype:
    """Return the type of floating-point numbers in the precision that is in use.

    Example:
        >>> with use_precision("float32"):
        ...     float_dtype()
        dtype('float32')
    """
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))
