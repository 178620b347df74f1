"""Data for a Stan program, from a dict or from a file in CmdStan's JSON format."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bernflow.errors import ArgumentError, FileFormatError

# Non-finite numbers are strings in CmdStan's JSON.
_SPECIAL = {"nan": np.nan, "inf": np.inf, "infinity": np.inf}


def read_data(data: Any) -> dict[str, Any]:
    """Return data by name as numbers and nested lists.

    Args:
        data: a dict of numbers, lists and arrays, the path of a JSON file, or None for no data.
    """
    if data is None:
        return {}
    if isinstance(data, str | os.PathLike):
        return _plain_dict(_read_file(Path(data)), f"{Path(data)}: ")
    if not isinstance(data, Mapping):
        raise ArgumentError(
            f"from_stan: data is a {type(data).__name__}: expected a dict by name of variable, or the path of a JSON "
            "file."
        )
    return _plain_dict(data, "from_stan: ")


def to_json(data: dict[str, Any]) -> str:
    """Return data as JSON for Stan; integers stay integers, and doubles are exact."""
    return json.dumps(data)


def to_arrays(data: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the data that are numeric arrays."""
    arrays = {}
    for name, value in data.items():
        try:
            array = np.asarray(value)
        except ValueError:  # ragged arrays; Stan has accepted or ignored them
            continue
        if array.dtype.kind in "iuf":
            arrays[name] = array
    return arrays


def _read_file(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileFormatError(f"The data file {str(path)!r} does not exist: expected a JSON file.") from error
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name with a zero byte
        raise FileFormatError(f"The data file {str(path)!r} cannot be read ({error}).") from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"The data file {str(path)!r} is not JSON ({error}): expected an object of variables by name, such as "
            '{"N": 2, "y": [0.5, 1.5]}.'
        ) from error
    if not isinstance(data, dict):
        raise FileFormatError(
            f"The data file {str(path)!r} contains a {type(data).__name__}: expected an object of variables by name, "
            'such as {"N": 2, "y": [0.5, 1.5]}.'
        )
    return data


def _plain_dict(data: Mapping[Any, Any], where: str) -> dict[str, Any]:
    for name in data:
        if not isinstance(name, str):
            raise ArgumentError(f"{where}data has the key {name!r}: expected names of variables.")
    return {name: _plain(value, f"{where}data[{name!r}]") for name, value in data.items()}


def _plain(value: Any, where: str) -> Any:
    """Convert a value to numbers and lists."""
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return _special(value, where)
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, Mapping):  # a tuple, with slot numbers as keys
        return {str(slot): _plain(item, where) for slot, item in value.items()}
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ArgumentError(f"{where} is a masked array: expected complete data. Drop or impute the masked values.")
    array = np.asarray(value)
    if array.dtype.kind == "b":
        array = array.astype(int)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    if array.dtype.kind == "V" and np.can_cast(array.dtype, np.float64):  # bfloat16
        array = array.astype(np.float64)
    if array.dtype.kind not in "iuf":
        raise ArgumentError(
            f"{where} is a {type(value).__name__} with dtype {array.dtype}: expected numbers, or lists or arrays of "
            "them."
        )
    return array.tolist()


def _special(value: str, where: str) -> float:
    word = value.strip().lower()
    sign = -1.0 if word.startswith("-") else 1.0
    if word.lstrip("+-") not in _SPECIAL:
        raise ArgumentError(f'{where} contains the string {value!r}: expected numbers, or "NaN", "Inf" and "-Inf".')
    return sign * _SPECIAL[word.lstrip("+-")]
