"""Where the user's own code is on the stack: warnings name its line."""

import sys
from pathlib import Path

PACKAGE = str(Path(__file__).parent)


def user_level() -> int:
    """Return the `stacklevel` at which a warning of the calling function names a line outside of this package.

    Example:
        >>> user_level()
        1
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
