"""Folders that one process at a time works in.

The lock is on the folder itself, so that no file is left behind; filelock would need one in every folder.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from bernflow.errors import BernflowError

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, two processes must not be given the same folder
    fcntl = None  # type: ignore[assignment]


class FolderTakenError(BernflowError):
    """Another process, or another thread, works in a folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which leaves no file behind; it ends with the process, however that ends.

    File systems that know no locks are used without.

    Args:
        folder: the folder, which exists.

    Raises:
        FolderTakenError: if it is taken.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderTakenError(f"{folder} is in use by another process.") from error
        except OSError:
            pass  # network file systems may refuse; files of unique names are written whole all the same
        yield
    finally:
        os.close(descriptor)
