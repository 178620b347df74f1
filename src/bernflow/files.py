"""Files that appear whole or not at all: finished beside their place, then moved into it."""

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

# Bytes of a description in JSON.
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
    """Write a file; until it is complete on disk, what was there before stays.

    Args:
        path: the file. Where it is a symbolic link, what it leads to is replaced.
        write: given a binary stream, which can be read, too, writes the contents.
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
    """Create a folder and make sure, before any long work, that files can be written there."""
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
    """Return strict JSON of plain and NumPy values; numbers that JSON lacks become text ("inf", "nan")."""
    return json.dumps(_jsonable(value), indent=1, allow_nan=False) + "\n"


def check_plain(path: Path) -> None:
    """Refuse what is neither a file nor a folder of files: links and pipes lead elsewhere.

    Raises:
        ValueError: if it is something else.
    """
    for part in (path, *path.rglob("*")) if path.is_dir() else (path,):
        mode = part.lstat().st_mode
        if not (stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and path.is_dir())):
            raise ValueError(f"{part.name} is a link, or neither a file nor a folder")


def read_plain(path: Path, limit: int = MAX_DESCRIPTION) -> bytes:
    """Read a description that anybody may have written: a file, no link, and not too large."""
    check_plain(path)
    if path.stat().st_size > limit:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes")
    return path.read_bytes()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say of a failure to write which file or folder it concerns, and what to do."""
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
        raise FileWriteError(
            f"{path} cannot be written ({why}): {advice}. What was there before is unchanged."
        ) from error


def place_of(path: Path) -> Path:
    """Follow symbolic links, so that a link stays one and the parts lie on the disk that it leads to."""
    return Path(os.path.realpath(path))


def sibling(path: Path, ending: str) -> Path:
    """Return a hidden name beside a file or folder that nobody else uses."""
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
