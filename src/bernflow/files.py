"""Atomic file writes: a temporary file in the same folder is renamed when it is complete."""

import errno
import json
import math
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bernflow.errors import FileWriteError

# Largest JSON file that is read, in bytes.
MAX_DESCRIPTION = 2**26
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
    """Write a file atomically: an existing file is replaced only when the new one is complete on disk.

    Args:
        path: the file. If it is a symbolic link, its target is replaced.
        write: writes the contents to a binary stream, which is also readable.
    """
    path = Path(path)
    with explained(path):
        place = place_of(path)
        partial = sibling(place, "part")
        try:
            with open(partial, "x+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, place)
        finally:
            partial.unlink(missing_ok=True)
    return path


def ensure_writable(folder: str | os.PathLike) -> Path:
    """Create a folder and check that files can be written there, before any long computation."""
    folder = Path(folder)
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        trial = sibling(folder / "trial", "part")
        try:
            trial.write_bytes(b"trial")
        finally:
            trial.unlink(missing_ok=True)
    return folder


def json_text(value: Any) -> str:
    """Return strict JSON of Python and NumPy values; non-finite numbers become strings ("inf", "nan")."""
    return json.dumps(_jsonable(value), indent=1, allow_nan=False) + "\n"


def check_plain(path: Path) -> None:
    """Raise an error for links, pipes and the like, which may lead elsewhere.

    Raises:
        ValueError: if the path is neither a regular file nor a folder of regular files.
    """
    for part in (path, *path.rglob("*")) if path.is_dir() else (path,):
        mode = part.lstat().st_mode
        if not (stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and path.is_dir())):
            raise ValueError(f"{part.name} is a link, or neither a file nor a folder")


def read_plain(path: Path, limit: int = MAX_DESCRIPTION) -> bytes:
    """Read a small untrusted file: a regular file, not a link, of limited size."""
    check_plain(path)
    if path.stat().st_size > limit:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes")
    return path.read_bytes()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Convert errors in writing to a `FileWriteError` that names the path and what to do."""
    try:
        yield
    except FileWriteError:
        raise
    except ValueError as error:
        if "null" not in str(error):
            raise
        raise FileWriteError(f"{str(path)!r} cannot be written ({error}): choose another name.") from error
    except OSError as error:
        why = error.strerror or str(error)
        inside = str(error.filename or "").partition(f".part{os.sep}")[2]
        why = f"{inside}: {why}" if inside else why
        advice = ADVICE.get(error.errno or 0, "choose another place")
        raise FileWriteError(f"{path} cannot be written ({why}): {advice}. Existing files are unchanged.") from error


def place_of(path: Path) -> Path:
    """Resolve symbolic links, so that links are kept and temporary files are on the same disk as the target."""
    return Path(os.path.realpath(path))


def sibling(path: Path, ending: str) -> Path:
    """Return a unique hidden path in the same folder."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.{ending}")


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
