"""Plotting backends: matplotlib, or interactive libraries through arviz-plots."""

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bernflow.errors import ArgumentError

STATIC = "matplotlib"
# The packages of each backend, and how to install them.
NEEDS = {
    STATIC: ((), ""),
    "plotly": (("plotly", "webcolors"), "pip install 'bernflow[interactive]'"),
    "bokeh": (("bokeh",), "pip install bokeh"),
}

# Global to the process, like the backend of matplotlib; `static_figures` overrides it for figures in files.
_chosen = STATIC
_is_static: ContextVar[bool] = ContextVar("is_static", default=False)


def use(backend: str) -> None:
    """Set the default backend of `bernflow.plots`, which the argument `backend` of a function overrides.

    Marginals, pairs, predictive checks and comparisons have an interactive form. The other figures are always static,
    with a warning.

    Args:
        backend: "matplotlib" (static, the default), "plotly" or "bokeh".

    Example:
        >>> bf.plots.use("matplotlib")
        >>> bf.plots.use("gnuplot")
        Traceback (most recent call last):
            ...
        bernflow.errors.ArgumentError: ...
    """
    global _chosen
    _chosen = _check(backend)


def choose_backend(backend: str | None) -> str:
    """Return the backend for a figure with an interactive form: the given one, or the default."""
    if _is_static.get():
        return STATIC
    return _chosen if backend is None else _check(backend)


def stay_static(call: str) -> None:
    """Warn that a figure has no interactive form, if the default backend is interactive."""
    if choose_backend(None) != STATIC:
        warnings.warn(f"{call} has no interactive form: this is a matplotlib figure.", stacklevel=3)


@contextmanager
def static_figures() -> Iterator[None]:
    """Use matplotlib in a `with` block, whatever the default backend, for figures that are written to files."""
    token = _is_static.set(True)
    try:
        yield
    finally:
        _is_static.reset(token)


def _check(backend: str) -> str:
    if backend not in NEEDS:
        raise ArgumentError(f"backend={backend!r}: expected one of {', '.join(map(repr, NEEDS))}.")
    packages, install = NEEDS[backend]
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(
            f"backend={backend!r} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed: {install}, or use 'matplotlib'."
        )
    return backend
