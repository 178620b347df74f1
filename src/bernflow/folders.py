"""Folders that appear whole or not at all: finished beside their place, then exchanged with what is there."""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bernflow.files import explained, place_of, sibling

# How often a folder is moved aside for a new one before we give up; another process may put its own there each time.
MAX_SWAPS = 100
# Of Linux' renameat2: paths are relative to the working folder; the two names are exchanged.
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def write_folder(
    folder: str | os.PathLike, write: Callable[[Path], Any], keep: Callable[[Path], Iterable[str]] | None = None
) -> Path:
    """Write a folder; until it is complete on disk, what was there before stays.

    Processes that write the same folder at once leave the one of the last of them, whole. On Linux the old and the new
    one are exchanged in one step; elsewhere there is a moment without any.

    Args:
        folder: the folder; it and its parents are created.
        write: given an empty folder, fills it.
        keep: given the old folder, names what goes on in the new one, unless it has something of that name.
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
    """Let a file or folder appear at a second place too, so that it is never missing from both."""
    if os.path.lexists(target):
        return
    with contextlib.suppress(FileNotFoundError):  # its owner has just removed it
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
        shutil.copy2(source, target, follow_symlinks=False)  # some file systems know no second names


def _swap(fresh: Path, place: Path) -> list[Path]:
    """Put a finished folder into its place; return where those lie now that were there before."""
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
            continue  # another process has just moved it
        old.append(aside)
    raise OSError(errno.EBUSY, "other processes keep replacing it")


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; return whether the system can."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0
