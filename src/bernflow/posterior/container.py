"""A file format for named arrays and a manifest with checksums; files are untrusted and no code is executed."""

import hashlib
import io
import json
import math
import os
import re
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from bernflow.errors import ArgumentError, FileFormatError
from bernflow.files import write_whole
from bernflow.versions import version_of

MANIFEST = "manifest.json"
ARRAY = ".npy"
# Placeholder for the hexadecimal checksum at the end of a file.
UNSEALED, READ_SIZE = bytes(2 * hashlib.sha256().digest_size), 2**20
# Names of members are never used as paths, but unusual ones are still rejected.
PLAIN_NAME = re.compile(r"\w+\.(npy|json)", re.ASCII)


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        format: name of the format in the manifest.
        version: format version that is written, and the only one that is read.
        what: description of such a file, for messages.
        writer: the call that writes it.
        remedy: what to do with a damaged or outdated file.
    """

    format: str
    version: int
    what: str
    writer: str
    remedy: str

    def damaged(self, path: Path, why: str) -> FileFormatError:
        """Return an error for a damaged file."""
        return FileFormatError(f"{path} is not {self.what}, or it is damaged ({why}): {self.remedy}.")


class Content(NamedTuple):
    """The content of a file: the manifest and the arrays by name."""

    manifest: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write_container(path: Path, kind: Kind, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> Path:
    """Write a file, atomically.

    Args:
        path: the file.
        kind: the kind of file.
        facts: further entries of the manifest, JSON-serializable.
        arrays: arrays by names of letters, digits and underscores.
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
    """Write a checksum of the whole file into the zip comment at its end, replacing `UNSEALED`."""
    digest = _digest(file)
    file.seek(-len(digest), os.SEEK_END)
    file.write(digest)


def _digest(file: BinaryIO) -> bytes:
    """Return a checksum of a file without its last bytes, which store the checksum."""
    total, left = hashlib.sha256(), file.seek(0, os.SEEK_END) - len(UNSEALED)
    file.seek(0)
    while left > 0 and (block := file.read(min(left, READ_SIZE))):
        total.update(block)
        left -= len(block)
    return total.hexdigest().encode()


def _is_sealed(path: Path) -> bool:
    with open(path, "rb") as file:
        return _digest(file) == file.read()


def read_container(path: Path, kind: Kind) -> Content:
    """Read a file and verify names, sizes, version and checksums.

    Raises:
        FileFormatError: if anything is wrong with the file.
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
    except Exception as error:  # the zip and JSON parsers can raise almost any error
        raise kind.damaged(path, _reason(error)) from error
    _check_version(path, kind, manifest)
    try:
        if not _is_sealed(path):
            raise ValueError("the checksum of the whole file is wrong")
        return Content(manifest, _verified(manifest["sha256"], members))
    except Exception as error:  # so can the parser of NumPy's headers
        raise kind.damaged(path, _reason(error)) from error


def _file_in(folder: Path, kind: Kind) -> str:
    """Return a hint for a folder: the file that was probably meant, or what is expected."""
    inside = sorted(folder.glob("*.bernflow"))
    return f"a file, such as {inside[0]}" if inside else f"a file written by {kind.writer}"


def _read_members(path: Path, size: int) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        # Members must be uncompressed and not larger than the file, which rules out zip bombs.
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
        raise FileFormatError(f"{path} contains {named!r}: expected {kind.format!r}, as written by {kind.writer}.")
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
    """Return the message of an error, with its type unless it is a plain ValueError."""
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def to_bytes(values: Any) -> bytes:
    """Encode an array in NumPy's format, without pickle."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(values), allow_pickle=False)
    return buffer.getvalue()


def to_array(content: bytes) -> np.ndarray:
    """Decode an array in NumPy's format with an untrusted header."""
    buffer = io.BytesIO(content)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, fortran, dtype = readers[np.lib.format.read_magic(buffer)](buffer)
    # Checked before memory is allocated, because the header may claim any shape.
    if dtype.hasobject or len(content) - buffer.tell() != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array does not have the size of {shape} {dtype} that its header claims")
    flat = np.frombuffer(content, dtype, offset=buffer.tell())
    return flat.reshape(shape, order="F" if fortran else "C").copy()


def to_json(value: Any, where: str) -> Any:
    """Convert to strict JSON values; non-finite numbers become {"float": "inf"}."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: to_json(item, f"{where}.{key}") for key, item in value.items()}
    raise ArgumentError(f"{where} cannot be saved: {type(value).__name__} is not JSON; use numbers, strings and lists.")


def from_json(value: Any) -> Any:
    """Invert `to_json`; tuples remain lists."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if isinstance(value, dict):
        return float(value["float"]) if value.keys() == {"float"} else {k: from_json(v) for k, v in value.items()}
    return value
