"""JSON files that contain a checksum of their own content, and checksums of files and folders."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bernflow.files import json_text, read_plain

SEAL = "seal"


def sealed_text(value: Mapping[str, Any]) -> str:
    """Return JSON of Python and NumPy values with a checksum of the content."""
    plain = json.loads(json_text(value))
    return json_text({**plain, SEAL: _digest(plain)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a file written with `sealed_text`.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not JSON or its checksum is wrong.
    """
    try:
        value = dict(json.loads(read_plain(path)))
        seal = value.pop(SEAL)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path.name} is not JSON with a checksum: {type(error).__name__}: {error}") from error
    if seal != _digest(value):
        raise ValueError(f"the checksum of {path.name} is wrong")
    return value


def checksum_of(path: Path) -> str:
    """Return the SHA-256 checksum of a file, or of the names and contents of all files in a folder."""
    if not path.is_dir():
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total = hashlib.sha256()
    for part in sorted(part for part in path.rglob("*") if part.is_file()):
        total.update(f"{part.relative_to(path).as_posix()}\0{checksum_of(part)}\n".encode())
    return total.hexdigest()


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
