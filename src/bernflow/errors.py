"""Errors that say what was given, what was expected and what to do."""


class BernflowError(Exception):
    """Base class of every error that bernflow raises on purpose."""


class ModelError(BernflowError, ValueError):
    """The model cannot be fitted as it stands; the message names the site or argument."""


class ArgumentError(BernflowError, ValueError):
    """An argument of a bernflow function is wrong; the message names it."""


class FileFormatError(BernflowError, ValueError):
    """A file is not a saved posterior, is damaged, or comes from a newer bernflow."""


class FileWriteError(BernflowError, OSError):
    """A file or folder cannot be written; what was there before is unchanged."""
