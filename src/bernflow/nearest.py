"""The word that was meant, for messages about words that are not known."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest known word, or nothing where none is near.

    Example:
        >>> nearest("step", ["steps", "order"])
        " Did you mean 'steps'?"
    """
    known = [str(name) for name in known]
    # "X" for "x" has no letter in common.
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lower, n=1)
    return f" Did you mean {lower[near[0]]!r}?" if near else ""
