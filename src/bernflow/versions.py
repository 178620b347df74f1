"""Versions of installed packages, for what is recorded beside results."""

from importlib import metadata

UNKNOWN = "unknown"


def version_of(package: str) -> str:
    """Return the installed version of a package, or "unknown" where it has no metadata.

    bernflow itself has none when it is used from a source tree that was not installed.

    Example:
        >>> version_of("no-such-package")
        'unknown'
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN
