"""Descriptions of PyTensor graphs by plain values, to compare models."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

# Memory addresses in the text of an object are ignored.
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def described(outputs: Sequence[Any], symbols: Sequence[Any] = ()) -> list[Any]:
    """Describe graphs by their operations, constants and inputs, whatever the names of variables.

    Args:
        outputs: the variables to describe.
        symbols: inputs that are identified by their position in this list; others only by their type.
    """
    from pytensor.graph.traversal import toposort

    places: dict[Any, Any] = {symbol: ["symbol", i, str(symbol.type)] for i, symbol in enumerate(symbols)}
    nodes: list[Any] = []
    for node in toposort(list(outputs), blockers=list(symbols)):
        described_node = [_operation(node.op), [_place(variable, places) for variable in node.inputs]]
        places |= {out: ["node", len(nodes), i] for i, out in enumerate(node.outputs) if out not in places}
        nodes.append(described_node)
    return [nodes, [_place(variable, places) for variable in outputs]]


def _place(variable: Any, places: dict[Any, Any]) -> Any:
    if variable in places:
        return places[variable]
    if hasattr(variable, "data"):  # a constant
        is_array = isinstance(variable.data, np.ndarray | np.generic)
        return ["constant", str(variable.type), variable.data if is_array else _plain(variable.data)]
    return ["input", _plain(variable.type)]


def _operation(op: Any) -> list[Any]:
    inner = getattr(op, "fgraph", None)
    graphs = [] if inner is None else described(inner.outputs, inner.inputs)
    props = [_plain(getattr(op, name, None)) for name in getattr(op, "__props__", ())]
    return [type(op).__qualname__, props, graphs]


def _plain(value: Any) -> str:
    return ADDRESS.sub("", str(value))
