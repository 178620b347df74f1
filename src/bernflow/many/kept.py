"""Results of many fits in a folder: one file each, with a fingerprint of its inputs."""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bernflow.errors import ArgumentError, BernflowError, FileFormatError
from bernflow.files import check_plain, ensure_writable, write_whole
from bernflow.fingerprint import fingerprint
from bernflow.fit import load
from bernflow.posterior import Posterior
from bernflow.posterior.container import Kind, read_container, write_container
from bernflow.sealed import checksum_of, read_sealed, sealed_text

KIND = Kind("bernflow-result", 1, "a kept result", "bf.map_fits(resume=...)", "delete it, and it is made again")
POSTERIOR, VALUES, NOTE = "bernflow", "npz", "json"
MAX_NAME = 100


class ResultFolder:
    """A folder of results.

    Args:
        folder: the folder, which is created if needed.
        function: the function that computes the results.
        cases: its arguments by name.
    """

    def __init__(self, folder: Any, function: Any, cases: Mapping[str, Any]):
        try:
            self._folder = ensure_writable(folder)
        except (OSError, TypeError, ValueError) as error:
            raise ArgumentError(f"resume={folder!r} cannot be written to ({error}): choose another one.") from error
        self._identities = {name: fingerprint((function, case)) for name, case in cases.items()}
        self._files = {name: _file_name(name) for name in cases}
        self._warned = False

    def load(self, name: str) -> Any:
        """Return a result, or None if it is missing or damaged."""
        note = self._path(name, NOTE)
        if not note.exists():
            return None
        try:
            stated = read_sealed(note)
            kind, identity, checksum = (str(stated[key]) for key in ("kind", "identity", "sha256"))
            path = self._path(name, kind if kind in (POSTERIOR, VALUES) else VALUES)
            check_plain(path)
            whole = checksum_of(path) == checksum
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._distrust(note, f"{type(error).__name__}: {error}")
            return None
        if identity != self._identities[name]:
            raise ArgumentError(
                f"resume: {note} belongs to another function or another case {name!r}: expected the same as now. "
                "Choose another folder, or delete that file to compute it again."
            )
        try:
            if whole:
                return self._read(path)
            self._distrust(path, "its checksum is wrong")
        except BernflowError as error:
            self._distrust(path, str(error))
        return None

    def save(self, name: str, value: Any) -> None:
        """Save a result; warn once about results that cannot be saved."""
        is_posterior = isinstance(value, Posterior)
        path = self._path(name, POSTERIOR if is_posterior else VALUES)
        try:
            if is_posterior:
                value.save(path)
                load(path)  # some posteriors cannot be loaded without their model
            else:
                write_container(path, KIND, *_split(name, value))
        except BernflowError as error:
            path.unlink(missing_ok=True)
            if not self._warned:
                warnings.warn(
                    f"bernflow: the result of {name!r} is not saved ({error}); another call computes it again. Return "
                    "a dict of numbers, strings and arrays instead.",
                    UserWarning,
                    stacklevel=3,
                )
            self._warned = True
            return
        stated = {"kind": path.suffix[1:], "identity": self._identities[name], "sha256": checksum_of(path)}
        write_whole(self._path(name, NOTE), lambda file: file.write(sealed_text(stated).encode()))

    def _read(self, path: Path) -> Any:
        if path.suffix[1:] == POSTERIOR:
            return load(path)
        manifest, arrays = read_container(path, KIND)
        try:
            return {**manifest["values"], **{name: arrays[key] for name, key in manifest["arrays"].items()}}
        except (KeyError, TypeError, AttributeError) as error:
            raise KIND.damaged(path, f"{type(error).__name__}: {error}") from error

    def _path(self, name: str, ending: str) -> Path:
        return self._folder / f"{self._files[name]}.{ending}"

    def _distrust(self, path: Path, why: str) -> None:
        warnings.warn(f"bernflow: {path} cannot be used ({why}): it is computed again.", UserWarning, stacklevel=4)


def _file_name(name: str) -> str:
    """Return a portable file name; names with special characters are made unique by a checksum."""
    if re.fullmatch(r"[a-z0-9_-]+", name) and len(name) <= MAX_NAME:
        return name
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:40]}~{fingerprint(name)[:16]}"


def _split(name: str, value: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Split a dict into JSON values and arrays."""
    if not isinstance(value, Mapping):
        raise FileFormatError(f"it is a {type(value).__name__}, expected a posterior or a dict")
    found = {key: np.asarray(part) for key, part in value.items() if hasattr(part, "__array__")}
    arrays = {f"array_{i:04d}": part for i, part in enumerate(found.values())}
    if any(part.dtype.hasobject for part in arrays.values()):
        raise FileFormatError("it has arrays of objects")
    plain = {key: part for key, part in value.items() if key not in found}
    return {"values": plain, "arrays": dict(zip(found, arrays, strict=True))}, arrays
