"""Exceptions. Messages state what was given, what was expected and what to do."""

from bernflow.text import printable


class BernflowError(Exception):
    """Base class of all errors raised by bernflow.

    Example:
        >>> try:
        ...     bf.fit(print, steps=0)
        ... except bf.BernflowError as error:
        ...     print(type(error).__name__)
        ArgumentError
    """

    def __str__(self) -> str:
        """Return the message with control characters escaped, because parts of it may come from files."""
        return printable(super().__str__(), keep="\n\t")


class ModelError(BernflowError, ValueError):
    """The model cannot be fitted; the message names the site or argument.

    Example:
        >>> bf.Model(prior={}, likelihood=lambda theta: None, y=np.zeros(3))
        Traceback (most recent call last):
            ...
        bernflow.errors.ModelError: ...
    """


class ArgumentError(BernflowError, ValueError):
    """An argument of a bernflow function is invalid; the message names it.

    Example:
        >>> post.draws(-1)
        Traceback (most recent call last):
            ...
        bernflow.errors.ArgumentError: ...
    """


class FileFormatError(BernflowError, ValueError):
    """A file is not in the expected format, is damaged, or was written by a newer version of bernflow.

    Example:
        >>> import pathlib
        >>> size = pathlib.Path("notes.txt").write_text("no posterior")
        >>> bf.load("notes.txt")
        Traceback (most recent call last):
            ...
        bernflow.errors.FileFormatError: ...
    """


class FileWriteError(BernflowError, OSError):
    """A file or folder cannot be written; existing files are unchanged.

    Example:
        >>> import pathlib
        >>> pathlib.Path("folder").mkdir()
        >>> post.save("folder")
        Traceback (most recent call last):
            ...
        bernflow.errors.FileWriteError: ...
    """


class UnknownArgumentError(ArgumentError, TypeError):
    """A keyword argument is unknown to bernflow and the model; the message suggests the closest match.

    Example:
        >>> bf.fit(model, y, step=100)
        Traceback (most recent call last):
            ...
        bernflow.errors.UnknownArgumentError: ...
    """
