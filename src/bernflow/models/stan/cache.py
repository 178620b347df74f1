"""The folder of compiled programs: private to the user, because what lies in it is executed."""

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
# Precompiled headers are large, and the compiler checks them itself.
UNCHECKED = ".gch"
ATTEMPTS = 3
# Names of entries: kind and key; of unfinished ones and of those on their way out, hidden and with a random end.
ENTRY = r"(object|program|shim|headers)-[0-9a-f]{32}"
UNFINISHED, HEADERS = re.compile(rf"\.{ENTRY}-\w+"), re.compile(r"headers-[0-9a-f]{32}")


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
    """Return where compiled programs are kept if nothing is wrong with that folder; it may not exist yet.

    Not by platformdirs, which ignores a relative `XDG_CACHE_HOME` and would replace four lines by a dependency.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser().absolute() / "stan"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bernflow" / "stan"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "bernflow" / "stan"


def find_problem(folder: Path) -> str | None:
    """Say why others could put code into a folder, or why we cannot; None where all is well."""
    if not hasattr(os, "getuid"):  # Windows: a folder in the user's profile is the user's
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
        if owner not in trusted:  # whoever owns a folder can put another one into the place of ours
            return f"{parent} belongs to another user (uid {owner})"
        if mode & stat.S_ISVTX:  # sticky, as /tmp is: nobody else can move it away
            continue
        if mode & stat.S_IWOTH:
            return f"everybody can write to {parent}"
        if mode & stat.S_IWGRP and not _is_private(group):
            return f"the group {group} can write to {parent}"
    return None


def _is_private(group: int) -> bool:
    """Tell whether a group is that of the administrator, or the one that systems make for every user alone."""
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
    """Remove what processes that were killed left behind, and precompiled headers that nobody has used for long.

    By the names that `produce` gives alone: the user may have chosen a folder with files of other kinds.
    """
    for pattern, days in ((UNFINISHED, 1), (HEADERS, 30)):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                if pattern.fullmatch(entry.name) and entry.lstat().st_mtime < time.time() - days * 86_400:
                    shutil.rmtree(entry, ignore_errors=True)


_TEMPORARY: list[Path] = []


def _temporary_folder() -> Path:
    """Return one temporary folder per process, which goes with it: libraries that are loaded lie in it."""
    if not _TEMPORARY:
        _TEMPORARY.append(Path(tempfile.mkdtemp(prefix="bernflow-stan-")))
        atexit.register(_remove_temporary, _TEMPORARY[0], os.getpid())
    return _TEMPORARY[0]


def _remove_temporary(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        shutil.rmtree(folder, ignore_errors=True)


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
        (made / CHECKSUMS).write_text(json.dumps(_checksums(made), indent=1))
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
        stated = json.loads((entry / CHECKSUMS).read_text())
        return stated == _checksums(entry)
    except (OSError, ValueError, RecursionError):
        return False


def _checksums(entry: Path) -> dict[str, str]:
    """Return the checksums of all files of an entry that have one."""
    files = sorted(path for path in entry.iterdir() if path.name != CHECKSUMS and path.suffix != UNCHECKED)
    return {path.name: checksum_of(path) for path in files}


def _remove(entry: Path) -> None:
    """Move an entry away before it is removed, so that nobody meets half of it."""
    away = entry.with_name(f".{entry.name}-{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        os.rename(entry, away)
        shutil.rmtree(away, ignore_errors=True)
