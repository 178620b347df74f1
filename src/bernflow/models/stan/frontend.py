"""`from_stan`: make a model from a program and its data."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from bernflow.errors import ArgumentError, ModelError
from bernflow.models.stan import bridge
from bernflow.models.stan.bridge import is_bridgestan
from bernflow.models.stan.build import FILE, Program, build, translate
from bernflow.models.stan.data import read_data, to_arrays, to_json
from bernflow.models.stan.instance import Instance
from bernflow.models.stan.library import load
from bernflow.models.stan.model import StanModel
from bernflow.precision import use_settings

MAX_SEED = 2**32 - 1


@use_settings()
def from_stan(
    model: Any, data: Any = None, *, seed: int = 0, callback: bool = False, progress: bool = True
) -> StanModel:
    """Make a model from a Stan program and its data.

    The program is compiled on first use, which takes about half a minute, and cached in a private folder of the user.

    Args:
        model: the path of a .stan file, or the program itself (any string with a line break or a brace); or a
            `bridgestan.StanModel`, which contains its data and is called through Python.
        data: a dict of numbers, lists and arrays by name, or the path of a JSON file in CmdStan's format; names that
            the program does not declare are ignored.
        seed: seed of random functions in the transformed data block.
        callback: call the program through Python instead of XLA's foreign function interface. This is slower, and the
            default if that interface is not available.
        progress: report compilations on stderr.

    Returns:
        A model for `bernflow.fit`.

    Example:
        >>> program = "data { real y; } parameters { real mu; } model { mu ~ normal(0, 1); y ~ normal(mu, 1); }"
        >>> model = from_stan(program, data={"y": 0.5})  # doctest: +SKIP
    """
    if is_bridgestan(model):
        return _from_bridgestan(model, data)
    program = _read_program(model)
    values = read_data(data)
    if not isinstance(seed, int | np.integer) or not 0 <= seed <= MAX_SEED:
        raise ArgumentError(f"from_stan: seed={seed!r}: expected an integer from 0 to {MAX_SEED}.")
    translation = translate(program)
    if not translation.info["parameters"]:
        raise ModelError(
            f"The Stan program {program.name!r} has no parameters to infer: expected at least one in its parameters "
            "block."
        )
    inputs = translation.info["inputs"]
    known = {name: value for name, value in values.items() if name in inputs}
    json = to_json(known)
    library = load(build(translation, program.name, progress, json, int(seed)))
    handle, message = library.new(json, seed)
    if handle == 0:
        raise ModelError(_blame_data(program.name, message, inputs))
    return StanModel(Instance(library, handle, callback, (translation.cpp, json, int(seed))), to_arrays(known))


def _from_bridgestan(model: Any, data: Any) -> StanModel:
    if data is not None:
        raise ArgumentError("from_stan: a bridgestan.StanModel was given with data: expected none, it has its own.")
    return StanModel(Instance(bridge.ENGINE, bridge.ENGINE.new(model), origin=bridge.origin_of(model)), {})


def _read_program(model: Any) -> Program:
    if isinstance(model, str) and ("\n" in model or "{" in model):
        return Program(model, FILE)
    if not isinstance(model, str | os.PathLike):
        raise ArgumentError(
            f"from_stan: the model is a {type(model).__module__}.{type(model).__qualname__}: expected the path of a "
            ".stan file, a program as text, or a bridgestan.StanModel."
        )
    path = Path(model)
    try:
        return Program(path.read_text(encoding="utf-8"), path.name, path.resolve().parent)
    except FileNotFoundError as error:
        raise ArgumentError(
            f"The Stan program {str(path)!r} does not exist: expected a file, or a program as text (with a line break "
            "or a brace)."
        ) from error
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name with a zero byte
        raise ArgumentError(f"The Stan program {str(path)!r} cannot be read ({error}).") from error


def _blame_data(name: str, message: str, inputs: dict[str, dict[str, Any]]) -> str:
    expected = ", ".join(f"{key} ({_describe(kind)})" for key, kind in inputs.items()) or "none"
    message = message.strip().replace(repr(FILE), repr(name))
    return (
        f"Stan rejects the data of {name!r}:\n{message}\nThe program's data block expects: {expected}. Give each by "
        "name with these dimensions, and integers as integers (8, not 8.0)."
    )


def _describe(kind: dict[str, Any]) -> str:
    dimensions = kind.get("dimensions", 0)
    what = kind.get("type", "tuple")
    what = what if isinstance(what, str) else "tuple"
    return what if not dimensions else f"{what}, {dimensions} dimension{'s' if dimensions > 1 else ''}"
