"""Exclusive locks on folders.

The folder itself is locked, so no file is left behind; filelock would need a lock file in every folder.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from bernflow.errors import BernflowError

try:
    import fcntl
except ImportError:  # on Windows folders are not locked
    fcntl = None  # type: ignore[assignment]


class FolderTakenError(BernflowError):
    """Another process or thread holds the lock of a folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; the system releases it at the latest when the process ends.

    On file systems without locks this does nothing.

    Args:
        folder: an existing folder.

    Raises:
        FolderTakenError: if the folder is locked.
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
            pass  # some network file systems do not support locks
        yield
    finally:
        os.close(descriptor)
