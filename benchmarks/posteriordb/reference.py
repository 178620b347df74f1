"""Data and reference draws of posteriordb, read from a folder.

The folder holds `posteriors/NAME.json`, `data/DATA.json.zip` and `draws/NAME.json.zip`. It is not part of the package:
give it to the functions, name it in the environment variable BERNFLOW_POSTERIORDB, or put it into
`shared/data/posteriordb` beside the checkout.
"""

import json
import os
import zipfile
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks.posteriordb.catalogue import Entry
from bernflow import ArgumentError, FileFormatError

VARIABLE = "BERNFLOW_POSTERIORDB"
BESIDE_CHECKOUT = Path("shared", "data", "posteriordb")
FOLDERS = ("posteriors", "data", "draws")


def find_folder(folder: str | PathLike | None = None) -> Path:
    """Return the folder with the data: the one given, that of the environment variable, or that beside the checkout.

    Raises:
        ArgumentError: if there is none; a test may catch it and skip.
    """
    named = folder if folder is not None else os.environ.get(VARIABLE)
    path = Path(named) if named else Path(__file__).resolve().parents[3] / BESIDE_CHECKOUT
    missing = [name for name in FOLDERS if not (path / name).is_dir()]
    if missing:
        raise ArgumentError(
            f"{path} is not a folder of posteriordb: expected the folders {', '.join(FOLDERS)} in it, without "
            f"{', '.join(missing)}. Pass the folder, or set the environment variable {VARIABLE}."
        )
    return path


def load_data(entry: Entry, folder: str | PathLike | None = None) -> dict[str, Any]:
    """Read the data of a posterior: whole numbers stay Python's, lists become arrays."""
    values = _read_zip(find_folder(folder) / "data" / f"{entry.data_name}.json.zip")
    if not isinstance(values, dict):
        raise FileFormatError(
            f"The data of {entry.name} are a {type(values).__name__}: expected a JSON object of names and values."
        )
    return {name: np.asarray(value) if isinstance(value, list) else value for name, value in values.items()}


def load_draws(entry: Entry, folder: str | PathLike | None = None) -> dict[str, Float[np.ndarray, "chains draws"]]:
    """Read the reference draws of a posterior: one array (chains, draws) per scalar column, such as `beta[1]`."""
    chains = _read_zip(find_folder(folder) / "draws" / f"{entry.name}.json.zip")
    expected = set(entry.columns)
    if not isinstance(chains, list) or not chains or any(set(chain) != expected for chain in chains):
        raise FileFormatError(
            f"The reference draws of {entry.name} are not a list of chains with the columns "
            f"{', '.join(entry.columns)}: the file belongs to another posterior or another version of posteriordb."
        )
    draws = {name: np.asarray([chain[name] for chain in chains], np.float64) for name in entry.columns}
    bad = [name for name, values in draws.items() if values.ndim != 2 or not np.isfinite(values).all()]
    if bad:
        raise FileFormatError(
            f"The reference draws of {entry.name} have missing or infinite values or chains of unequal length in "
            f"{', '.join(bad)}: expected finite numbers. Copy the file anew."
        )
    return draws


def _read_zip(path: Path) -> Any:
    """Read the one JSON file in an archive."""
    if not path.is_file():
        raise ArgumentError(f"There is no file {path}: expected the data and draws of posteriordb in its folder.")
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = archive.namelist()
            return json.loads(archive.read(name))
    except Exception as error:  # what is damaged can make zlib and the parsers raise almost anything
        raise FileFormatError(
            f"{path} cannot be read ({type(error).__name__}: {error}): expected an archive of one JSON file. Copy it "
            "anew."
        ) from error
