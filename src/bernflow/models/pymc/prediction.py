"""Data of a PyMC model, and their replacement for predictions."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from bernflow.errors import ArgumentError
from bernflow.models.inputs import Opaque, check_values
from bernflow.models.pymc.program import Lengths, Program, Shapes

# An arbitrary seed, for draws that only determine shapes.
SEED = np.zeros(1, np.uint32)


class Inputs(eqx.Module):
    """Data by name, lengths of dims, and the shapes of draws of the observed variables.

    Attributes:
        data: traced arrays by name, or `Opaque` if the model needs the values.
        lengths: lengths of dims that the data do not determine.
        results: shapes and dtypes of new observations; None if they cannot be drawn.
    """

    data: dict[str, Any]
    lengths: Lengths = eqx.field(static=True)
    results: tuple[jax.ShapeDtypeStruct, ...] | None = eqx.field(static=True)


def plain(value: Any) -> Any:
    """Return the array of a source, traced or not."""
    return value.value if isinstance(value, Opaque) else value


def first_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message; PyTensor appends the whole graph."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def arguments(program: Program, inputs: Inputs) -> list[Any]:
    """Return the first arguments of the program's samplers."""
    return [*(length for _, length in inputs.lengths), *(plain(inputs.data[name]) for name in program.sources)]


def results_of_draw(program: Program, shapes: Shapes, inputs: Inputs) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Draw the observed variables once, at x = 0, to determine shapes and dtypes."""
    theta = program.center(shapes, inputs.data, inputs.lengths)
    drawn = program.sampler("predictive")(SEED, [*arguments(program, inputs), *theta])
    return tuple(jax.ShapeDtypeStruct(value.shape, value.dtype) for value in drawn)


def replaced(program: Program, shapes: Shapes, inputs: Inputs, new: dict[str, Any]) -> Inputs:
    """Replace data by new data, and update the lengths of their dims."""
    given = {name: _check(program, inputs, name, value) for name, value in new.items()}
    lengths = _new_lengths(program, inputs.lengths, given)
    errors = []
    # First as PyMC does it. Then with blank observations for the new number of rows, because PyMC takes the shape of an
    # observed variable from its values if the model does not specify it.
    for more in ({}, _blank_observations(program, inputs, given)):
        if more is None:
            break
        data = {n: _like(old, (given | more).get(n)) for n, old in inputs.data.items()}
        try:
            results = results_of_draw(program, shapes, Inputs(data, lengths, None))
        except Exception as error:  # distributions raise various errors for inconsistent shapes
            errors.append(error)
            continue
        return Inputs(data, lengths, results)
    shown = ", ".join(f"{name} of shape {value.shape}" for name, value in given.items())
    raise ArgumentError(
        f"predict(): the PyMC model cannot draw observations for {shown} ({first_line(errors[0])}). "
        "Give all data that belong together, and make the shape of the observed variable depend on them, with "
        "shape=mu.shape or dims in its distribution."
    ) from errors[0]


def _check(program: Program, inputs: Inputs, name: str, value: Any) -> np.ndarray:
    if name not in program.data_names:
        known = ", ".join(program.data_names)
        raise ArgumentError(
            f"predict({name}=...): the PyMC model has no pm.Data of this name: expected "
            + (f"one of {known}." if known else "one, and it has none. Put the data that change into pm.Data.")
        )
    old = plain(inputs.data[name])
    array = np.asarray(value)
    if array.ndim != old.ndim or array.dtype.kind not in "biuf":
        raise ArgumentError(
            f"predict({name}=...): got an array of shape {array.shape} and dtype {array.dtype}; expected numbers with "
            f"{old.ndim} axes, as in the fit, where the shape was {old.shape}."
        )
    check_values(array, f"predict({name}=...)", allow_infinite=True)
    return array.astype(old.dtype)


def _new_lengths(program: Program, lengths: Lengths, given: dict[str, np.ndarray]) -> Lengths:
    new: dict[str, int] = {}
    for name, value in given.items():
        for dim, length in zip(program.dims.get(name, ()), value.shape, strict=False):
            if dim is not None and new.setdefault(dim, length) != length:
                raise ArgumentError(
                    f"predict(): the new data give the dim {dim!r} the lengths {new[dim]} and {length}: expected one."
                )
    return tuple((dim, new.get(dim, length)) for dim, length in lengths)


def _blank_observations(program: Program, inputs: Inputs, given: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Return blank values, of the new number of rows, for the `pm.Data` that hold observed values."""
    old = {name: plain(inputs.data[name]).shape for name in inputs.data}
    changes = {(old[n][0], v.shape[0]) for n, v in given.items() if v.ndim and old[n][0] != v.shape[0]}
    if len(changes) != 1:
        return None
    ((before, after),) = changes
    observed = {n for n, source in program.sources.items() if source in program.values.values()} - set(given)
    rows = {n for n in observed if old[n] and old[n][0] == before}
    return {n: np.zeros((after, *old[n][1:]), plain(inputs.data[n]).dtype) for n in rows}


def _like(old: Any, new: np.ndarray | None) -> Any:
    if new is None:
        return old
    return Opaque(new) if isinstance(old, Opaque) else new
