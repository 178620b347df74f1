"""Conversion of Stan's flat output to named arrays."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bernflow.errors import ModelError

# One part of the name of a component: an index, a slot of a tuple, or a part of a complex number.
_STEP = re.compile(r"([.:])([^.:]+)")
_PARTS = {"real": 1, "imag": 2}


@dataclass(frozen=True)
class Variable:
    """One variable of a program.

    Attributes:
        name: its name; the slots of a tuple are variables `name:1`, `name:2`.
        shape: its shape; the last axis of a complex variable contains the real and imaginary parts.
        places: the indices of its components, in C order, in the flat output.
    """

    name: str
    shape: tuple[int, ...]
    places: np.ndarray

    @property
    def is_contiguous(self) -> bool:
        """Whether the components are contiguous and in C order in the flat output."""
        return bool(np.all(np.diff(self.places) == 1))


def group(names: Sequence[str]) -> list[Variable]:
    """Group the components by variable, from Stan's names such as `b.2.1` of a matrix.

    Stan writes matrices in column-major and arrays in row-major order; the indices are part of the names.

    Example:
        >>> [(v.name, v.shape, v.places.tolist()) for v in group(["a", "b.1.1", "b.2.1", "b.1.2", "b.2.2"])]
        [('a', (), [0]), ('b', (2, 2), [1, 3, 2, 4])]
    """
    places: dict[str, list[int]] = {}
    indices: dict[str, list[tuple[int, ...]]] = {}
    for place, name in enumerate(names):
        base, index = _parse(name)
        places.setdefault(base, []).append(place)
        indices.setdefault(base, []).append(index)
    return [_variable(base, np.array(indices[base], int), np.array(places[base])) for base in places]


def sizes(names: Sequence[str]) -> dict[str, int]:
    """Count the components of every variable.

    Raises:
        ModelError: if the components of a variable are not contiguous, as in an array of tuples.
    """
    bases = [_parse(name)[0] for name in names]
    starts = [i for i, base in enumerate(bases) if i == 0 or base != bases[i - 1]]
    ordered = [bases[i] for i in starts]
    twice = sorted({base for base in ordered if ordered.count(base) > 1})
    if twice:
        raise ModelError(
            f"The components of {', '.join(map(repr, twice))} are not contiguous, as in an array of tuples: declare "
            "one array per slot of the tuple in the parameters block."
        )
    return {base: bases.count(base) for base in ordered}


def _parse(name: str) -> tuple[str, tuple[int, ...]]:
    head = re.match(r"[^.:]+", name)
    base = head.group() if head else name
    index: list[int] = []
    for kind, what in _STEP.findall(name[len(base) :]):
        if kind == ":":
            base += f":{what}"
        else:
            index.append(_PARTS[what] if what in _PARTS else int(what))
    return base, tuple(index)


def _variable(name: str, indices: np.ndarray, places: np.ndarray) -> Variable:
    if indices.shape[1] == 0:
        return Variable(name, (), places)
    shape = tuple(int(n) for n in indices.max(axis=0))
    c_order = np.argsort(np.ravel_multi_index(tuple((indices - 1).T), shape))
    return Variable(name, shape, places[c_order])
