"""Atomic writes of folders: a complete temporary folder is exchanged with the existing one."""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bernflow.files import explained, place_of, sibling

# Number of attempts to replace a folder, because other processes may replace it at the same time.
MAX_SWAPS = 100
# Constants of renameat2 in Linux: paths are relative to the working folder; exchange two names atomically.
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def write_folder(
    folder: str | os.PathLike, write: Callable[[Path], Any], keep: Callable[[Path], Iterable[str]] | None = None
) -> Path:
    """Write a folder atomically: an existing folder is replaced only when the new one is complete on disk.

    If several processes write the same folder, the last one wins. On Linux the old and the new folder are exchanged in
    one step; on other systems there is a moment without either.

    Args:
        folder: the folder; it and its parents are created.
        write: fills an empty folder.
        keep: returns the names of entries of the old folder that are kept, unless the new one has the same names.
    """
    folder = Path(folder)
    with explained(folder):
        place = place_of(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = sibling(place, "part")
        old: list[Path] = []
        try:
            fresh.mkdir()
            write(fresh)
            _sync(fresh)
            for name in keep(place) if keep and place.is_dir() else ():
                _share(place / name, fresh / name)
            old = _swap(fresh, place)
        finally:
            for leftover in (fresh, *old):
                shutil.rmtree(leftover, ignore_errors=True)
    return folder


def _sync(folder: Path) -> None:
    """Wait until all files of a folder are on disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())


def _share(source: Path, target: Path) -> None:
    """Hard-link a file or folder to a second path, so that at least one of them always exists."""
    if os.path.lexists(target):
        return
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target, symlinks=True, copy_function=_link)
        else:
            _link(source, target)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except (OSError, NotImplementedError):
        shutil.copy2(source, target, follow_symlinks=False)  # some file systems do not support hard links


def _swap(fresh: Path, place: Path) -> list[Path]:
    """Move a finished folder into place; return the new paths of the folders that it replaced."""
    old: list[Path] = []
    for _ in range(MAX_SWAPS):
        try:
            os.rename(fresh, place)
            return old
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                if old:
                    os.rename(old.pop(), place)
                raise
        if _exchange(fresh, place):
            return [*old, fresh]
        aside = sibling(place, "old")
        try:
            os.rename(place, aside)
        except FileNotFoundError:
            continue  # another process moved it
        old.append(aside)
    raise OSError(errno.EBUSY, "other processes keep replacing it")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; return whether the system supports it."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0
