"""Encoding of arrays and numbers as bytes and JSON, without pickle."""

import io
import math
from typing import Any

import numpy as np

from bernflow.errors import ArgumentError


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
