"""Whether somebody watches what is written: progress is for terminals and notebooks, and only noise in a log."""

import sys
from typing import TextIO


def is_watched(stream: TextIO | None = None) -> bool:
    """Tell whether progress can be seen as it moves: in a terminal, or in a notebook.

    Args:
        stream: where it would be written (default `sys.stderr`).

    Example:
        >>> import io
        >>> is_watched(io.StringIO())
        False
    """
    if in_notebook():
        return True
    stream = sys.stderr if stream is None else stream
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # something else in its place, or closed
        return False


def in_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook, which has no terminal."""
    module = sys.modules.get("IPython")  # never imported for this: a kernel has done so
    shell = None if module is None else module.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None
