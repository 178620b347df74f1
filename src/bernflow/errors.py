"""Errors that say what was given, what was expected and what to do."""

from bernflow.text import printable


class BernflowError(Exception):
    """Base class of every error that bernflow raises on purpose.

    Example:
        >>> try:
        ...     bf.fit(print, steps=0)
        ... except bf.BernflowError as error:
        ...     print(type(error).__name__)
        ArgumentError
    """

    def __str__(self) -> str:
        """Return the message; a terminal shows what a file put into it, and does not obey it."""
        return printable(super().__str__(), keep="\n\t")


class ModelError(BernflowError, ValueError):
    """The model cannot be fitted as it stands; the message names the site or argument.

    Example:
        >>> bf.Model(prior={}, likelihood=lambda theta: None, y=np.zeros(3))
        Traceback (most recent call last):
            ...
        bernflow.errors.ModelError: ...
    """


class ArgumentError(BernflowError, ValueError):
    """An argument of a bernflow function is wrong; the message names it.

    Example:
        >>> post.draws(-1)
        Traceback (most recent call last):
            ...
        bernflow.errors.ArgumentError: ...
    """


class FileFormatError(BernflowError, ValueError):
    """A file is not a saved posterior, is damaged, or comes from a newer bernflow.

    Example:
        >>> import pathlib
        >>> size = pathlib.Path("notes.txt").write_text("no posterior")
        >>> bf.load("notes.txt")
        Traceback (most recent call last):
            ...
        bernflow.errors.FileFormatError: ...
    """


class FileWriteError(BernflowError, OSError):
    """A file or folder cannot be written; what was there before is unchanged.

    Example:
        >>> import pathlib
        >>> pathlib.Path("folder").mkdir()
        >>> post.save("folder")
        Traceback (most recent call last):
            ...
        bernflow.errors.FileWriteError: ...
    """


class UnknownArgumentError(ArgumentError, TypeError):
    """A keyword argument that neither bernflow nor the model knows; the message names the nearest one.

    Example:
        >>> bf.fit(model, y, step=100)
        Traceback (most recent call last):
            ...
        bernflow.errors.UnknownArgumentError: ...
    """
