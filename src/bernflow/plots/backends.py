"""Who draws: matplotlib, or a library of interactive figures by way of arviz-plots."""

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bernflow.errors import ArgumentError

STATIC = "matplotlib"
# What each backend imports, and how to install it.
NEEDS = {
    STATIC: ((), ""),
    "plotly": (("plotly", "webcolors"), "pip install 'bernflow[interactive]'"),
    "bokeh": (("bokeh",), "pip install bokeh"),
}

# One for the whole process, like the backend of matplotlib; `static_figures` overrules it where files are written.
_chosen = STATIC
_is_static: ContextVar[bool] = ContextVar("is_static", default=False)


def use(backend: str) -> None:
    """Choose who draws the figures of `bernflow.plots` from now on; `backend=` of a single call overrules it.

    Marginals, pairs, predictive checks and comparisons have an interactive form. The other figures are static in any
    case, and say so in a warning.

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
    """Return who draws a figure that has an interactive form: the one asked for, or else the one in use."""
    if _is_static.get():
        return STATIC
    return _chosen if backend is None else _check(backend)


def stay_static(call: str) -> None:
    """Warn that a figure has no interactive form, where interactive ones are in use."""
    if choose_backend(None) != STATIC:
        warnings.warn(f"{call} has no interactive form: this is a figure of matplotlib.", stacklevel=3)


@contextmanager
def static_figures() -> Iterator[None]:
    """Draw with matplotlib inside of a `with` block, whatever is in use: for what is written into files."""
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
            f"installed: {install}, or leave it at 'matplotlib'."
        )
    return backend
