"""The cache of compiled programs, which must be private to the user because its content is executed."""

import atexit
import contextlib
import json
import os
import re
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
from bernflow.sealed import checksum_of

VARIABLE = "BERNFLOW_CACHE"
CHECKSUMS = "sha256.json"
# Precompiled headers are large, and the compiler verifies them itself.
UNCHECKED = ".gch"
ATTEMPTS = 3
# Entries are named by kind and key; unfinished ones and those being removed are hidden with a random suffix.
ENTRY = r"(object|program|shim|headers)-[0-9a-f]{32}"
UNFINISHED, HEADERS = re.compile(rf"\.{ENTRY}-\w+"), re.compile(r"headers-[0-9a-f]{32}")


def cache_folder() -> Path:
    """Return the cache folder, created on first use; a new private folder if the usual one is not safe."""
    folder = Path("~/.cache/bernflow/stan")
    try:
        folder = default_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = find_problem(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: the home folder is unknown
        problem = f"it cannot be created ({error})"
    if problem is None:
        return folder
    warnings.warn(
        f"bernflow: compiled Stan programs are not cached in {folder}, because {problem}. A temporary folder is used "
        f"instead; correct the permissions, or choose another folder with {VARIABLE}.",
        UserWarning,
        stacklevel=2,
    )
    return _temporary_folder()


def default_folder() -> Path:
    """Return the usual cache folder, which may not exist yet.

    platformdirs is not used: it would replace four lines by a dependency, and ignores a relative `XDG_CACHE_HOME`.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser().absolute() / "stan"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bernflow" / "stan"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "bernflow" / "stan"


def find_problem(folder: Path) -> str | None:
    """Return why others could write code into a folder or why we cannot; None if there is no problem."""
    if not hasattr(os, "getuid"):  # on Windows, folders in the user's profile are private
        return None if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else "it cannot be written to"
    status, trusted = folder.stat(), (0, os.getuid())
    if status.st_uid != os.getuid():
        return f"it belongs to another user (uid {status.st_uid})"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return f"others can write to it (mode {stat.S_IMODE(status.st_mode):o})"
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return "it cannot be written to"
    for step in (folder.absolute(), *folder.absolute().parents):
        if step.is_symlink() and step.lstat().st_uid not in trusted:
            return f"the link {step} belongs to another user (uid {step.lstat().st_uid})"
    for parent in folder.resolve().parents:
        owner, group, mode = parent.stat().st_uid, parent.stat().st_gid, parent.stat().st_mode
        if owner not in trusted:  # the owner of a parent folder can replace ours
            return f"{parent} belongs to another user (uid {owner})"
        if mode & stat.S_ISVTX:  # sticky, like /tmp: only owners can rename entries
            continue
        if mode & stat.S_IWOTH:
            return f"everybody can write to {parent}"
        if mode & stat.S_IWGRP and not _is_private(group):
            return f"the group {group} can write to {parent}"
    return None


def _is_private(group: int) -> bool:
    """Tell whether a group is that of root, or the user's private group."""
    if group == 0:
        return True
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _remove_leftovers(folder: Path) -> None:
    """Remove unfinished entries of killed processes, and precompiled headers that have not been used for long.

    Only names that `produce` creates are matched, because the user may have chosen a folder with other files.
    """
    for pattern, days in ((UNFINISHED, 1), (HEADERS, 30)):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                if pattern.fullmatch(entry.name) and entry.lstat().st_mtime < time.time() - days * 86_400:
                    shutil.rmtree(entry, ignore_errors=True)


_TEMPORARY: list[Path] = []


def _temporary_folder() -> Path:
    """Return a temporary folder that exists as long as the process, because it contains loaded libraries."""
    if not _TEMPORARY:
        _TEMPORARY.append(Path(tempfile.mkdtemp(prefix="bernflow-stan-")))
        atexit.register(_remove_temporary, _TEMPORARY[0], os.getpid())
    return _TEMPORARY[0]


def _remove_temporary(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)


def produce(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return a cache entry, a folder of files with their checksums; it is made if it is missing or damaged.

    Entries are written atomically. If several processes make the same entry, the first one is kept.

    Args:
        folder: the cache.
        name: name of the entry.
        make: writes the files into an empty folder.
    """
    entry = folder / name
    if is_intact(entry):
        return entry
    _remove_leftovers(folder)
    made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    try:
        make(made)
        (made / CHECKSUMS).write_text(json.dumps(_checksums(made), indent=1))
        for _ in range(ATTEMPTS):
            try:
                os.rename(made, entry)  # fails if the entry exists
                return entry
            except OSError:
                if is_intact(entry):
                    return entry
                _remove(entry)
        raise FileWriteError(f"{entry} is damaged and cannot be replaced: remove it.")
    finally:
        shutil.rmtree(made, ignore_errors=True)


def is_intact(entry: Path) -> bool:
    """Tell whether an entry is complete and its files have the stored checksums."""
    try:
        stated = json.loads((entry / CHECKSUMS).read_text())
        return stated == _checksums(entry)
    except (OSError, ValueError, RecursionError):
        return False


def _checksums(entry: Path) -> dict[str, str]:
    """Return the checksums of all files of an entry that are checked."""
    files = sorted(path for path in entry.iterdir() if path.name != CHECKSUMS and path.suffix != UNCHECKED)
    return {path.name: checksum_of(path) for path in files}


def _remove(entry: Path) -> None:
    """Rename an entry before removing it, so that no process sees a partial entry."""
    away = entry.with_name(f".{entry.name}-{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        os.rename(entry, away)
        shutil.rmtree(away, ignore_errors=True)
