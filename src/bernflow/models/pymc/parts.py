"""The parts of a PyMC model: its variables, and symbols for its data."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from bernflow.models.pymc.graphs import host_function


class Parts(NamedTuple):
    """Variables of a model as PyTensor graphs.

    Attributes:
        free: the parameters.
        observed: the observed variables.
        deterministics: the derived quantities.
        potentials: other terms of the log density.
        values: the variables that represent the values of the observed variables in graphs.
        sources: the inputs for data in the graphs, by name: `pm.Data` and other shared variables; symbols for observed
            values and for batches.
        constants: values of the constant sources.
        rows: symbols for batches, with the variable whose rows each contains.
    """

    free: tuple[Any, ...]
    observed: tuple[Any, ...]
    deterministics: tuple[Any, ...]
    potentials: tuple[Any, ...]
    values: tuple[Any, ...]
    sources: dict[str, Any]
    constants: dict[str, np.ndarray]
    rows: dict[Any, Any]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copy the current data; all rows for batches."""
        return {name: self._value(name, source) for name, source in self.sources.items()}

    def _value(self, name: str, source: Any) -> np.ndarray:
        if name in self.constants:
            return self.constants[name]
        variable = self.rows.get(source, source)
        if hasattr(variable, "get_value"):
            return np.asarray(variable.get_value())
        return np.asarray(host_function([], [variable])()[0])


def dissect(model: Any) -> Parts:
    """Find the parts of a model without modifying it."""
    from pytensor.graph.basic import Constant

    groups = [
        list(model.free_RVs),
        list(model.observed_RVs),
        list(model.deterministics),
        list(model.potentials),
        [model.rvs_to_values[rv] for rv in model.observed_RVs],
    ]
    rows = batches_in(v for group in groups for v in group)
    if rows:
        groups, rows = _without_batches(groups, rows)
    free, observed, deterministics, potentials, values = groups
    sources: dict[str, Any] = {}
    constants = {}
    unused = [v for v in model.data_vars if v not in rows.values()]
    for variable in _shared([*unused, *(v for group in groups for v in group)], model):
        sources[_unused(variable.name or "shared", sources)] = variable
    for i, (rv, value) in enumerate(zip(observed, values, strict=True)):
        if isinstance(value, Constant):
            constants[rv.name] = np.asarray(value.data)
            values[i] = sources[rv.name] = value.type()
    names = {value: rv.name for rv, value in zip(observed, values, strict=True)}
    for symbol, variable in rows.items():
        name = variable.name if variable in model.data_vars else names.get(symbol, "minibatch")
        sources[_unused(name, sources)] = symbol
    own = (tuple(free), tuple(observed), tuple(deterministics), tuple(potentials), tuple(values))
    return Parts(*own, sources, constants, rows)


def batches_in(variables: Iterable[Any]) -> dict[Any, Any]:
    """Find the batches of `pm.Minibatch` in graphs, with the variable whose rows each contains."""
    from pymc.data import MinibatchOp
    from pytensor.graph.traversal import ancestors

    owners = (v.owner for v in ancestors(list(variables)) if v.owner is not None)
    nodes = dict.fromkeys(node for node in owners if isinstance(node.op, MinibatchOp))
    # The last input and output are the random generator.
    return {out: rows for node in nodes for rows, out in zip(node.inputs[:-1], node.outputs[:-1], strict=True)}


def _without_batches(groups: list[list[Any]], batches: dict[Any, Any]) -> tuple[list[list[Any]], dict[Any, Any]]:
    """Replace batches by symbols for any number of rows; return the symbols with the variables of their rows."""
    from pytensor.graph.replace import clone_replace

    symbols = {batch: batch.type.clone(shape=(None, *batch.type.shape[1:]))() for batch in batches}
    flat = [v for group in groups for v in group]
    # Not strict, because the batches have a static length and the symbols do not.
    cloned = clone_replace(flat, symbols, rebuild_strict=False)
    for old, new in zip(flat, cloned, strict=True):
        new.name = old.name
    remaining = iter(cloned)
    return [[next(remaining) for _ in group] for group in groups], {symbols[b]: rows for b, rows in batches.items()}


def _shared(variables: list[Any], model: Any) -> list[Any]:
    """Find the shared variables that contain data."""
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.traversal import graph_inputs
    from pytensor.tensor.random.type import RandomType

    used = dict.fromkeys(v for v in graph_inputs(variables) if isinstance(v, SharedVariable))
    lengths = set(model.dim_lengths.values())
    return [v for v in used if not isinstance(v.type, RandomType) and v not in lengths]


def _unused(name: str, taken: dict[str, Any]) -> str:
    """Return the name, with a number appended if it is taken."""
    number = 2
    while (candidate := name if number == 2 else f"{name}_{number - 1}") in taken:
        number += 1
    return candidate
