"""The folder of compiled programs: private to the user, because what lies in it is executed."""

import contextlib
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path

from bernflow.errors import FileWriteError

VARIABLE = "BERNFLOW_CACHE"
CHECKSUMS = "sha256.json"
# Precompiled headers are large, and the compiler checks them itself.
UNCHECKED = ".gch"
ATTEMPTS = 3


def cache_folder() -> Path:
    """Return the folder of compiled programs, made on first use; a fresh private one where it is not safe."""
    folder = Path("~/.cache/bernflow/stan")
    try:
        folder = default_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = find_problem(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows where the home folder is
        problem = f"it cannot be made ({error})"
    if problem is None:
        return folder
    warnings.warn(
        f"bernflow: compiled Stan programs are not kept in {folder}, because {problem}. They go to a temporary folder "
        f"this time; correct the folder, or name another one in {VARIABLE}.",
        UserWarning,
        stacklevel=2,
    )
    return _temporary_folder()


def default_folder() -> Path:
    """Return where compiled programs are kept if nothing is wrong with that folder; it may not exist yet."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser() / "stan"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bernflow" / "stan"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bernflow" / "stan"


def find_problem(folder: Path) -> str | None:
    """Say why others could put code into a folder, or why we cannot; None where all is well."""
    status = folder.stat()
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        return f"it belongs to another user (uid {status.st_uid})"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return f"others can write to it (mode {stat.S_IMODE(status.st_mode):o})"
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return "it cannot be written to"
    for parent in folder.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:  # sticky, as /tmp is: nobody else can move it away
            return f"everybody can write to {parent}"
    return None


def _remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed left behind, and precompiled headers that nobody has used for long."""
    for pattern, days in ((".*", 1), ("headers-*", 30)):
        for entry in folder.glob(pattern):
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < time.time() - days * 86_400:
                    shutil.rmtree(entry, ignore_errors=True)


_TEMPORARY: list[Path] = []


def _temporary_folder() -> Path:
    """Return one temporary folder per process; it stays, because libraries that are loaded lie in it."""
    if not _TEMPORARY:
        _TEMPORARY.append(Path(tempfile.mkdtemp(prefix="bernflow-stan-")))
    return _TEMPORARY[0]


def produce(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return an entry of the cache, made if it is missing or damaged: a folder of files with their checksums.

    The entry appears whole or not at all. Several processes may make the same one at once: the first one stays.

    Args:
        folder: the cache.
        name: name of the entry.
        make: writes the files into the empty folder that it is given.
    """
    entry = folder / name
    if is_intact(entry):
        return entry
    _remove_leftovers(folder)
    made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    try:
        make(made)
        checksums = {path.name: _checksum(path) for path in sorted(made.iterdir()) if path.suffix != UNCHECKED}
        (made / CHECKSUMS).write_text(json.dumps(checksums, indent=1))
        for _ in range(ATTEMPTS):
            try:
                os.rename(made, entry)  # refused where the entry exists
                return entry
            except OSError:
                if is_intact(entry):
                    return entry
                _remove(entry)
        raise FileWriteError(f"{entry} is damaged and cannot be replaced: remove it.")
    finally:
        shutil.rmtree(made, ignore_errors=True)


def is_intact(entry: Path) -> bool:
    """Tell whether an entry is complete and its files have the checksums that they were stored with."""
    try:
        checksums = json.loads((entry / CHECKSUMS).read_text())
        return all(_checksum(entry / name) == expected for name, expected in checksums.items())
    except (OSError, ValueError, AttributeError):
        return False


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _remove(entry: Path) -> None:
    """Move an entry away before it is removed, so that nobody meets half of it."""
    away = entry.with_name(f".{entry.name}-{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        os.rename(entry, away)
        shutil.rmtree(away, ignore_errors=True)
