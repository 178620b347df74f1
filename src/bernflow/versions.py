"""Versions of installed packages."""

from importlib import metadata

UNKNOWN = "unknown"


def version_of(package: str) -> str:
    """Return the installed version of a package, or "unknown" without metadata, as in an uninstalled source tree.

    Example:
        >>> version_of("no-such-package")
        'unknown'
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN
