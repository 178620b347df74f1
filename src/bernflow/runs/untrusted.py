"""Checks of the untrusted files of a run before a parser opens them.

Tables, HDF5 and Zarr can claim wrong sizes, link to other files, and name code to be executed. Only what a run writes
is accepted: plain numbers and short strings, not larger than the files that contain them.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bernflow.files import read_plain

# Allowance in bytes, because dimensions in a NetCDF file have sizes but no values.
SLACK = 2**26
# Bound on the compression ratio of draws.
MAX_RATIO = 100
MAX_ENTRIES = 100_000
PLAIN_DTYPE = re.compile(r"[<>|]([fiub]\d{1,2}|U\d{1,4})")
BLOSC = ("blosclz", "lz4", "lz4hc", "zlib", "zstd", "snappy")
BLOSC_HEADER = 16
METADATA = (".zarray", ".zgroup", ".zattrs", ".zmetadata")
CHUNK_NAME = re.compile(r"\d+(\.\d+)*")
Shapes = dict[str, tuple[int, ...]]


def check_table(path: Path) -> None:
    """Raise an error for a table with more cells than bytes, because parsers pad short rows."""
    rows, columns = 0, 0
    with open(path, "rb") as file:
        for line in file:
            if not line.startswith(b"#"):
                rows, columns = rows + 1, max(columns, line.count(b",") + 1)
    if rows * columns > path.stat().st_size:
        raise ValueError(f"{path.name} claims {rows:,} rows of {columns:,} columns and has {path.stat().st_size} bytes")


def check_zarr(folder: Path) -> Shapes:
    """Check that a folder contains only plain or Blosc-compressed arrays; return their shapes by path."""
    stored = 0
    arrays: dict[str, dict[str, Any]] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if name not in METADATA and not CHUNK_NAME.fullmatch(name):
                raise ValueError(f"{folder.name} contains {name!r}")
            stored += path.stat().st_size
            arrays |= _described(path, Path(place).relative_to(folder).as_posix()) if name in METADATA else {}
            if len(arrays) > MAX_ENTRIES:
                raise ValueError(f"{folder.name} has more than {MAX_ENTRIES:,} arrays")
    total = sum(_check_array(folder, place, spec) for place, spec in arrays.items())
    if total > SLACK + MAX_RATIO * stored:
        raise ValueError(f"its arrays claim {total:,} bytes, and {stored:,} are stored")
    return {place.partition("#")[0]: tuple(spec["shape"]) for place, spec in arrays.items()}


def _described(path: Path, place: str) -> dict[str, dict[str, Any]]:
    """Return the descriptions of arrays in a metadata file; those in consolidated metadata are marked by "#"."""
    content = json.loads(read_plain(path))
    if path.name == ".zarray":
        return {place: dict(content)}
    if path.name != ".zmetadata":
        return {}
    entries = dict(content["metadata"]).items()
    return {f"{n.removesuffix('/.zarray')}#": dict(spec) for n, spec in entries if n.endswith(".zarray")}


def _check_array(folder: Path, place: str, spec: Mapping[str, Any]) -> int:
    """Raise an error for an array that needs other codecs than Blosc; return its size in bytes."""
    shape, chunks = ([int(n) for n in spec[name]] for name in ("shape", "chunks"))
    compressor, dtype = spec.get("compressor"), spec["dtype"]
    if spec.get("zarr_format") != 2 or spec.get("filters") or spec.get("dimension_separator", ".") != ".":
        raise ValueError(f"{place} has filters, or is of another format than Zarr 2 with its chunks in one folder")
    if not isinstance(dtype, str):
        raise ValueError(f"{place} has fields")
    if not PLAIN_DTYPE.fullmatch(dtype):
        raise ValueError(f"{place} holds {dtype!r}")
    if compressor is not None and (compressor.get("id") != "blosc" or compressor.get("cname") not in BLOSC):
        raise ValueError(f"{place} is compressed by {compressor.get('id')!r}")
    if any(n < 0 or not 0 < chunk <= max(n, 1) for n, chunk in zip(shape, chunks, strict=True)):
        raise ValueError(f"{place} has the shape {shape} in chunks {chunks}")
    size, chunk = (math.prod(counts) * np.dtype(dtype).itemsize for counts in (shape, chunks))
    if compressor is not None and not place.endswith("#"):
        _check_chunks(folder / place, chunk)
    return max(size, chunk)


def _check_chunks(folder: Path, size: int) -> None:
    """Raise an error for chunks whose Blosc header has another uncompressed size than the array."""
    for path in folder.iterdir():
        if CHUNK_NAME.fullmatch(path.name) and path.is_file():
            with open(path, "rb") as file:
                header = file.read(BLOSC_HEADER)
            if len(header) < BLOSC_HEADER or int.from_bytes(header[4:8], "little") != size:
                raise ValueError(f"the chunk {path.name} of {folder.name} has another size than {size:,} bytes")


def check_hdf5(path: Path) -> Shapes:
    """Check that a file contains only plain arrays that are not larger than itself; return their shapes by path."""
    import h5py

    limit = path.stat().st_size + SLACK
    shapes, total = {}, 0
    with h5py.File(path, "r") as file:
        for place, dataset in _datasets(file, h5py):
            total += _size(place, dataset, h5py, limit) + _size_of_attributes(dataset, h5py, limit)
            shapes[place] = dataset.shape
            if total > limit:
                raise ValueError(f"its arrays claim more than the {path.stat().st_size:,} bytes of the file")
    return shapes


def _datasets(file: Any, h5py: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a file and of its groups; links are not followed."""
    groups, seen = [("", file)], 0
    while groups:
        prefix, group = groups.pop()
        _size_of_attributes(group, h5py, SLACK)
        for name in group:
            seen += 1
            if type(group.get(name, getlink=True)) is not h5py.HardLink:
                raise ValueError(f"{prefix}{name} is a link")
            member = group[name]
            if isinstance(member, h5py.Group) and not prefix and seen <= MAX_ENTRIES:
                groups.append((f"{name}/", member))
            elif isinstance(member, h5py.Dataset) and seen <= MAX_ENTRIES:
                yield f"{prefix}{name}", member
            else:
                raise ValueError(f"{prefix}{name} is nested too deeply, or one of too many")


def _size(place: str, dataset: Any, h5py: Any, limit: int) -> int:
    """Raise an error for an array that is not stored plainly in the file; return its size in bytes."""
    plist = dataset.id.get_create_plist()
    if dataset.is_virtual or plist.get_external_count():
        raise ValueError(f"{place} is stored in another file")
    if plist.get_nfilters():
        raise ValueError(f"{place} has filters")
    if dataset.shape is None:
        return 0
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return _size_of_texts(place, dataset, limit)
    if dataset.dtype.kind not in "fiubS" and h5py.check_enum_dtype(dataset.dtype) is None:
        raise ValueError(f"{place} holds {dataset.dtype}")
    return math.prod(dataset.shape) * dataset.dtype.itemsize


def _size_of_texts(place: str, dataset: Any, limit: int) -> int:
    """Count the characters of strings one by one, because many may refer to the same long string."""
    num, total = math.prod(dataset.shape), 0
    if dataset.ndim != 1 or num > MAX_ENTRIES:
        raise ValueError(f"{place} holds texts of shape {dataset.shape}")
    for number in range(num):
        total += len(dataset[number]) + 64  # overhead of a Python object
        if total > limit:
            break
    return total


def _size_of_attributes(member: Any, h5py: Any, limit: int) -> int:
    """Return the size of the attributes of an array or group; raise an error for lists of strings."""
    total = 0
    for name in member.attrs:
        attribute = member.attrs.get_id(name)
        dtype, size = attribute.dtype, math.prod(attribute.shape or ())
        total += attribute.get_storage_size()
        if h5py.check_string_dtype(dtype) is not None and total <= limit:
            if size > 1:
                raise ValueError(f"the attribute {name} has {size} texts")
            total += len(member.attrs[name])
        if total > limit:
            raise ValueError(f"the attribute {name} is larger than the file")
    return total
