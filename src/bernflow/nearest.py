"""Suggestions for unknown names in error messages."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the closest known word, or an empty string if none is close.

    Example:
        >>> nearest("step", ["steps", "order"])
        " Did you mean 'steps'?"
    """
    known = [str(name) for name in known]
    # Case is ignored: "X" and "x" have no character in common.
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lower, n=1)
    return f" Did you mean {lower[near[0]]!r}?" if near else ""
