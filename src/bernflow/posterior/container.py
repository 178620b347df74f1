"""One file of named arrays and a manifest: plain data with checksums, of which nothing is executed or trusted."""

import hashlib
import json
import os
import re
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from bernflow.errors import FileFormatError
from bernflow.files import write_whole
from bernflow.posterior.encoding import from_json, to_array, to_bytes, to_json
from bernflow.versions import version_of

MANIFEST = "manifest.json"
ARRAY = ".npy"
# The room for a checksum at the end of a file, in hexadecimal digits.
UNSEALED, BLOCK = bytes(2 * hashlib.sha256().digest_size), 2**20
# Names of members never become paths; odd ones are refused all the same.
PLAIN_NAME = re.compile(r"\w+\.(npy|json)", re.ASCII)


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        format: the name that its manifest has.
        version: the version that is written, and the only one that is read.
        what: what a user calls such a file.
        writer: what writes it.
        remedy: what to do with a damaged or outdated one.
    """

    format: str
    version: int
    what: str
    writer: str
    remedy: str

    def damaged(self, path: Path, why: str) -> FileFormatError:
        """Say that a file is not what it should be."""
        return FileFormatError(f"{path} is not {self.what}, or it is damaged ({why}): {self.remedy}.")


class Content(NamedTuple):
    """What a file holds: the manifest and the arrays, by name."""

    manifest: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write_container(path: Path, kind: Kind, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> Path:
    """Write a file, whole or not at all.

    Args:
        path: the file.
        kind: what it is.
        facts: JSON-able; what the manifest says beside format, versions and checksums.
        arrays: by names of letters, digits and underscores.
    """
    members = {name + ARRAY: to_bytes(values) for name, values in arrays.items()}
    manifest = {
        "format": kind.format,
        "format_version": kind.version,
        "bernflow_version": version_of("bernflow"),
        **facts,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in members.items()},
    }
    described = json.dumps(to_json(manifest, "manifest"), indent=1).encode()

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, content in {MANIFEST: described, **members}.items():
                archive.writestr(name, content)
            archive.comment = UNSEALED
        seal(file)

    return write_whole(path, write)


def seal(file: BinaryIO) -> None:
    """Put a checksum of the whole file into the comment at its end; there is room for it in a comment `UNSEALED`."""
    digest = _digest(file)
    file.seek(-len(digest), os.SEEK_END)
    file.write(digest)


def _digest(file: BinaryIO) -> bytes:
    """Return a checksum of a file but for its last bytes, which hold it."""
    total, left = hashlib.sha256(), file.seek(0, os.SEEK_END) - len(UNSEALED)
    file.seek(0)
    while left > 0 and (block := file.read(min(left, BLOCK))):
        total.update(block)
        left -= len(block)
    return total.hexdigest().encode()


def _is_sealed(path: Path) -> bool:
    with open(path, "rb") as file:
        return _digest(file) == file.read()


def read_container(path: Path, kind: Kind) -> Content:
    """Read a file and verify all of it: names, sizes, version, checksums.

    Raises:
        FileFormatError: whatever is wrong with the file.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise FileFormatError(f"{path} is a folder: expected {_file_in(path, kind)}.")
        if not stat.S_ISREG(status.st_mode):
            raise kind.damaged(path, "it is not a file")
        members = _read_members(path, status.st_size)
        manifest = _parse_manifest(members.pop(MANIFEST, None))
    except FileNotFoundError as error:
        raise FileFormatError(f"{path} does not exist: expected a file written by {kind.writer}.") from error
    except FileFormatError:
        raise
    except Exception as error:  # a file can make the parsers of zip and JSON raise almost anything
        raise kind.damaged(path, _reason(error)) from error
    _check_version(path, kind, manifest)
    try:
        if not _is_sealed(path):
            raise ValueError("the checksum of the whole file is wrong")
        return Content(manifest, _verified(manifest["sha256"], members))
    except Exception as error:  # nor are NumPy's headers to be trusted
        raise kind.damaged(path, _reason(error)) from error


def _file_in(folder: Path, kind: Kind) -> str:
    """Return which file of a folder was probably meant, or what is expected instead of a folder."""
    inside = sorted(folder.glob("*.bernflow"))
    return f"a file, such as {inside[0]}" if inside else f"a file written by {kind.writer}"


def _read_members(path: Path, size: int) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        # Stored, and no more in all than the file itself: nothing can unpack to more than was given.
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise ValueError("it contains compressed members")
        if sum(info.file_size for info in infos) > size:
            raise ValueError("its members claim to be larger than the file")
        odd = [info.filename for info in infos if not PLAIN_NAME.fullmatch(info.filename)]
        if odd:
            raise ValueError(f"it contains a member called {odd[0]!r}")
        members = {info.filename: archive.read(info) for info in infos}
    if len(members) != len(infos):
        raise ValueError("it contains names twice")
    return members


def _parse_manifest(content: bytes | None) -> dict[str, Any]:
    if content is None:
        raise ValueError(f"it has no {MANIFEST}")
    try:
        manifest = from_json(json.loads(content))
        return {**manifest, "format_version": int(manifest["format_version"]), "sha256": dict(manifest["sha256"])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its manifest cannot be read ({error!r})") from error


def _check_version(path: Path, kind: Kind, manifest: dict[str, Any]) -> None:
    named, version = manifest.get("format"), manifest["format_version"]
    if named != kind.format:
        raise FileFormatError(f"{path} holds {named!r}: expected {kind.format!r}, as written by {kind.writer}.")
    if version != kind.version:
        found = f"{path} has format version {version}, written by bernflow {manifest.get('bernflow_version')}; this"
        if version > kind.version:
            raise FileFormatError(f"{found} bernflow reads version {kind.version}: install a newer bernflow.")
        raise FileFormatError(f"{found} bernflow reads version {kind.version} only: {kind.remedy}.")


def _verified(checksums: dict[str, str], members: dict[str, bytes]) -> dict[str, np.ndarray]:
    if members.keys() != checksums.keys():
        raise ValueError(f"its contents differ from its manifest ({sorted(members.keys() ^ checksums.keys())})")
    for name, content in members.items():
        if hashlib.sha256(content).hexdigest() != checksums[name]:
            raise ValueError(f"the checksum of {name} is wrong")
    return {name.removesuffix(ARRAY): to_array(content) for name, content in members.items()}


def _reason(error: Exception) -> str:
    """Return what an error of ours says; of another one also its name."""
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
