"""Data for a model from a CSV or Parquet table."""

from pathlib import Path
from typing import Any

import numpy as np

from bernflow.errors import ArgumentError, FileFormatError

CSV, PARQUET = ".csv", (".parquet", ".pq")
TABLES = (CSV, *PARQUET)
# The name of the number of rows, unless a column has this name.
NUM_ROWS = "N"


def read_table(path: Path) -> dict[str, Any]:
    """Return the columns of a table as arrays by name, and its number of rows as N."""
    import pandas as pd

    if not path.is_file():
        raise FileFormatError(f"The data file {str(path)!r} does not exist: expected JSON, CSV or Parquet.")
    try:
        table = pd.read_csv(path) if path.suffix.lower() == CSV else pd.read_parquet(path)
    except ImportError as error:
        raise ArgumentError(
            f"{path}: Parquet needs the package pyarrow: run pip install pyarrow, or write the table as CSV."
        ) from error
    except Exception as error:  # parsers can raise almost any error
        raise FileFormatError(f"The data file {str(path)!r} cannot be read ({error}).") from error
    columns = {str(name): table[name].to_numpy() for name in table.columns}
    return {NUM_ROWS: len(table), **columns}


def for_stan(values: dict[str, Any]) -> dict[str, Any]:
    """Return the numeric columns of a table for a Stan program, which ignores undeclared ones."""
    return {
        name: value.astype(int) if getattr(value, "dtype", np.dtype(int)).kind == "b" else value
        for name, value in values.items()
        if np.asarray(value).dtype.kind in "biuf"
    }
