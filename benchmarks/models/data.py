"""Data of the eleven real posteriors, read from a folder.

The folder holds `data/NAME.json` as posteriordb has them. It is not part of the package: give it to the functions, name
it in the environment variable BERNFLOW_HIERARCHICAL, or put it into `shared/data/hierarchical` beside the checkout.
"""

import json
import os
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bernflow import ArgumentError, FileFormatError

VARIABLE = "BERNFLOW_HIERARCHICAL"
BESIDE_CHECKOUT = Path("shared", "data", "hierarchical")


def find_folder(folder: str | PathLike | None = None) -> Path:
    """Return the folder with the data: the one given, that of the environment variable, or that beside the checkout.

    Raises:
        ArgumentError: if there is none; a test may catch it and skip.
    """
    named = folder if folder is not None else os.environ.get(VARIABLE)
    path = Path(named) if named else Path(__file__).resolve().parents[3] / BESIDE_CHECKOUT
    if not (path / "data").is_dir():
        raise ArgumentError(
            f"{path} does not contain the data of the hierarchical posteriors: expected a folder `data` in it. Pass "
            f"the folder, or set the environment variable {VARIABLE}."
        )
    return path


def load_data(name: str, folder: str | PathLike | None = None) -> dict[str, Any]:
    """Read one data set: whole numbers stay Python's, lists become arrays.

    Args:
        name: name of the file in the folder `data`, without `.json`.
        folder: see `find_folder`.
    """
    path = find_folder(folder) / "data" / f"{name}.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return {key: np.asarray(value) if isinstance(value, list) else value for key, value in values.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise FileFormatError(
            f"{path} cannot be read ({type(error).__name__}: {error}): expected a JSON object with the data of "
            "posteriordb. Copy it again."
        ) from error
