"""Detection of terminals and notebooks, where progress bars are shown."""

import sys
from typing import TextIO


def is_watched(stream: TextIO | None = None) -> bool:
    """Tell whether a progress bar can be shown: in a terminal or a notebook.

    Args:
        stream: the stream to write to (default `sys.stderr`).

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
    except (AttributeError, ValueError):  # not a real stream, or closed
        return False


def in_notebook() -> bool:
    """Tell whether this process is a notebook kernel."""
    module = sys.modules.get("IPython")  # a kernel has imported it
    shell = None if module is None else module.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None
