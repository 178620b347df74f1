"""Text from files that others have made, fit to be shown in a terminal."""

import unicodedata

# Control characters, invisible ones that change the direction of text, halves of characters, separators of lines.
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str, keep: str = "") -> str:
    r"""Write out characters that a terminal would obey instead of showing.

    Args:
        text: any text.
        keep: characters that stay as they are, such as line breaks.

    Example:
        >>> printable("\x1b[2Jgood")
        '\\x1b[2Jgood'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in keep or not _is_hidden(char) else repr(char)[1:-1] for char in text)


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in HIDDEN
