"""Files and folders that appear whole or not at all: finished beside their place, then moved into it."""

import errno
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bernflow.errors import FileWriteError

# How often a folder is moved aside for a new one before we give up; another process may put its own there each time.
MAX_SWAPS = 100
SPACE = "free some space on that disk, or choose another one"
RIGHTS = "choose a folder that you may write to"
ADVICE = {
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EROFS: RIGHTS,
    errno.ENOENT: "create its folder first, or choose another one",
}


def write_whole(path: str | os.PathLike, write: Callable[[BinaryIO], Any]) -> Path:
    """Write a file; until it is complete on disk, what was there before stays.

    Args:
        path: the file. Where it is a symbolic link, what it leads to is replaced.
        write: given a binary stream, writes the contents.
    """
    path = Path(path)
    with _explained(path):
        place = _place(path)
        partial = _sibling(place, "part")
        try:
            with open(partial, "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, place)
        finally:
            partial.unlink(missing_ok=True)
    return path


def write_folder(folder: str | os.PathLike, write: Callable[[Path], Any], keep: Iterable[str] = ()) -> Path:
    """Write a folder; until it is complete on disk, what was there before stays.

    Processes that write the same folder at once leave the one of the last of them, whole. (Between two renames there
    is a moment without any.)

    Args:
        folder: the folder; it and its parents are created.
        write: given an empty folder, fills it.
        keep: names of files of the old folder that go on in the new one, unless it has one of that name.
    """
    folder = Path(folder)
    with _explained(folder):
        place = _place(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = _sibling(place, "part")
        try:
            fresh.mkdir()
            write(fresh)
            _sync(fresh)
            old = _swap(fresh, place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        for name in keep if old else ():
            if not (place / name).exists():
                os.replace(old[0] / name, place / name)
        for leftover in old:
            shutil.rmtree(leftover, ignore_errors=True)
    return folder


def ensure_writable(folder: str | os.PathLike) -> Path:
    """Create a folder and make sure, before any long work, that files can be written there."""
    folder = Path(folder)
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        trial = _sibling(folder / "trial", "part")
        try:
            trial.write_bytes(b"trial")
        finally:
            trial.unlink(missing_ok=True)
    return folder


def json_text(value: Any) -> str:
    """Return strict JSON of plain and NumPy values; numbers that JSON lacks become text ("inf", "nan")."""
    return json.dumps(_jsonable(value), indent=1, allow_nan=False) + "\n"


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileWriteError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        inside = str(error.filename or "").partition(f".part{os.sep}")[2]
        why = f"{inside}: {why}" if inside else why
        advice = ADVICE.get(error.errno or 0, "choose another place")
        raise FileWriteError(
            f"{path} cannot be written ({why}): {advice}. What was there before is unchanged."
        ) from error


def _place(path: Path) -> Path:
    """Follow symbolic links, so that a link stays one and the parts lie on the disk that it leads to."""
    return Path(os.path.realpath(path))


def _sibling(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.{ending}")


def _sync(folder: Path) -> None:
    """Wait until all files of a folder are on disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())


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
                    os.rename(old[-1], place)
                raise
        aside = _sibling(place, "old")
        try:
            os.rename(place, aside)
        except FileNotFoundError:
            continue  # another process has just moved it
        old.append(aside)
    raise OSError(errno.EBUSY, "other processes keep replacing it")


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_jsonable(part) for part in value]
    if isinstance(value, np.generic):
        return _jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
