"""Escaping of untrusted text for display in a terminal."""

import unicodedata

# Unicode categories: control and format characters, surrogates, line and paragraph separators.
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str, keep: str = "") -> str:
    r"""Escape characters that a terminal would interpret.

    Args:
        text: any text.
        keep: characters that are not escaped, such as line breaks.

    Example:
        >>> printable("\x1b[2Jgood")
        '\\x1b[2Jgood'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in keep or not _is_hidden(char) else repr(char)[1:-1] for char in text)


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in HIDDEN
