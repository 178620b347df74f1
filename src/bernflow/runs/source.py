"""Models and data from files: a Stan program, or a function or object in a Python file."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bernflow.errors import ArgumentError, FileFormatError
from bernflow.models import AbstractModel, from_stan
from bernflow.models.convert import is_bambi
from bernflow.models.inputs import user_code
from bernflow.models.pymc import is_pymc
from bernflow.models.stan.data import read_data
from bernflow.runs.tables import TABLES, for_stan, read_table

STAN, PYTHON = ".stan", ".py"
# Default name of the model in a Python file.
DEFAULT_NAME = "model"
EXPECTED = "expected MODEL.stan, or MODEL.py:NAME with the name of a model in that file"


class Source(NamedTuple):
    """A model in a form accepted by `bernflow.fit`, and its keyword arguments."""

    model: Callable[..., Any] | AbstractModel
    model_kwargs: dict[str, Any]


def split_name(model: str) -> tuple[Path, str | None]:
    """Split `model.py:name` into path and name; a Stan program has none."""
    path, colon, name = model.rpartition(":")
    if not colon or not path.endswith(PYTHON):
        path, name = model, ""
    suffix = Path(path).suffix
    if suffix not in (STAN, PYTHON):
        raise ArgumentError(f"The model {model!r} is neither a Stan program nor a Python file: {EXPECTED}.")
    return Path(path), None if suffix == STAN else name or DEFAULT_NAME


def load_model(model: str, data: Path | None = None, progress: bool = True) -> Source:
    """Read a model and its data.

    Args:
        model: `model.stan`, or `model.py:name`: a NumPyro model function, which gets the data as keyword arguments, a
            bernflow, PyMC or Bambi model, which contains its data, or a function of the data that returns one. The
            Python file is executed.
        data: a JSON file in CmdStan's format, a table as CSV or Parquet, or None for models without data.
        progress: report the compilation of a Stan program on stderr.
    """
    path, name = split_name(model)
    if not path.is_file():
        raise FileFormatError(f"The model {str(path)!r} does not exist: {EXPECTED}.")
    if data is not None and not data.exists():
        raise FileFormatError(f"The data file {str(data)!r} does not exist: expected JSON, CSV or Parquet.")
    is_table = data is not None and data.suffix.lower() in TABLES
    values = read_table(data) if is_table else read_data(data)  # type: ignore[arg-type]
    if name is None:
        return Source(from_stan(path, data=for_stan(values) if is_table else data, progress=progress), {})
    values = {key: _as_array(value, key) for key, value in values.items()}
    found = _execute(path, name)
    where = f"{path}:{name}"
    if _builds_a_model(found):
        with user_code(f"The function {where}"):
            return Source(found(**_wanted(found, values, is_table)), {})
    if isinstance(found, AbstractModel) or is_pymc(found) or is_bambi(found):
        if data is not None:
            raise ArgumentError(
                f"{where} is a {type(found).__name__}, which contains its data: leave {data} out, or use a NumPyro "
                "model function, which gets them as keyword arguments."
            )
        return Source(found, {})
    if not callable(found) or isinstance(found, type):
        raise ArgumentError(
            f"{where} is a {type(found).__name__}: expected a NumPyro model function, a bf.Model, a PyMC or Bambi "
            "model, what bf.from_log_density returns, or a function that returns one of these."
        )
    values = _wanted(found, values, is_table)
    _check_arguments(where, found, values, data)
    return Source(found, values)


def _builds_a_model(found: Any) -> bool:
    """Tell whether a function builds a PyMC, Bambi or bernflow model, because it refers to one of these packages."""
    code, names = getattr(found, "__code__", None), getattr(found, "__globals__", {})
    if code is None:
        return False
    used = [names.get(name) for name in code.co_names]
    roots = {
        getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in used if value is not None
    }
    return any(str(root).split(".")[0] in ("pymc", "bambi", "bernflow") for root in roots)


def _wanted(function: Callable, values: dict[str, Any], is_table: bool) -> dict[str, Any]:
    """Omit columns of a table that a function does not take; names in a JSON file must match exactly."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins and some extension types have no signature
        return values
    if not is_table or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return values
    return {name: value for name, value in values.items() if name in parameters}


def _execute(path: Path, name: str) -> Any:
    """Execute a Python file and return its attribute `name`."""
    spec = importlib.util.spec_from_file_location(f"_bernflow_model_{path.stem}", path)
    assert spec is not None  # the suffix is that of Python
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # Allow imports of modules in the same folder, as for a script.
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with user_code(f"The file {str(path)!r}"):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    if not hasattr(module, name):
        functions = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == spec.name]
        others = f" It has {', '.join(functions)}." if functions else ""
        raise ArgumentError(f"{path} has no {name!r}: {EXPECTED}.{others}")
    return getattr(module, name)


def _as_array(value: Any, name: str) -> Any:
    """Convert lists to arrays; numbers remain numbers, so that a model can use them as shapes."""
    if isinstance(value, dict):
        return {key: _as_array(part, f"{name}.{key}") for key, part in value.items()}
    if not isinstance(value, list):
        return value
    try:
        return np.array(value)
    except ValueError as error:
        raise FileFormatError(
            f"The data {name!r} have rows of different lengths: expected arrays. Pad the rows, or give one variable "
            "per row."
        ) from error


def _check_arguments(where: str, function: Callable, values: dict[str, Any], data: Path | None) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins and some extension types have no signature
        return
    try:
        signature.bind(**values)
    except TypeError as error:
        given = ", ".join(values) or "none" if data is not None else "none, as there is no data file"
        raise ArgumentError(
            f"The arguments of {where}{signature} and the names of the data differ ({error}). The data are: {given}."
        ) from error
