"""Scalar components of named draws: labels, summaries, and which of them to draw."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.summaries import summarize
from bernflow.plots.components import axis_marks, component_draws

QUANTILES = (0.05, 0.5, 0.95)
COLUMNS = ("mean", "sd", "5%", "50%", "95%")
# More components than this are not compared with each other.
MAX_COMPARED = 200


class Component(NamedTuple):
    """One scalar component of a named quantity.

    Attributes:
        label: name with index, as a reader sees it.
        name: name of the quantity.
        derived: whether the model computes it from its parameters.
        values: its draws, (num,).
    """

    label: str
    name: str
    derived: bool
    values: Float[np.ndarray, " num"]


def list_components(
    draws: Mapping[str, np.ndarray],
    parameters: Iterable[str],
    dims: Mapping[str, tuple[str | None, ...]],
    coords: Mapping[str, Any],
    first_index: int = 0,
) -> Iterator[Component]:
    """Yield all components, those of parameters first."""
    parameters = set(parameters)
    for derived in (False, True):
        for name, value in draws.items():
            if (name not in parameters) != derived:
                continue
            marks = axis_marks(value.shape[1:], dims.get(name, ()), coords, first_index)
            for index in np.ndindex(value.shape[1:]):
                inside = ", ".join(axis[i] for axis, i in zip(marks, index, strict=True))
                label = f"{name}[{inside}]" if index else name
                yield Component(label, name, derived, component_draws(value, index))


def table_row(component: Component) -> list[str]:
    """Return the figures of a component as text, in the order of `COLUMNS`."""
    return format_row(summarize(component.values, QUANTILES))


def format_row(values: Sequence[float]) -> list[str]:
    """Write numbers of one component with as many decimals as their sd, the second of them, makes meaningful.

    Example:
        >>> format_row([1234.5678, 0.0123, 1234.5, 1234.6])
        ['1234.5678', '0.0123', '1234.5000', '1234.6000']
    """
    sd = values[1]
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if not math.isfinite(sd) or sd <= 0:
        return [f"{v:.4g}" for v in values]
    # Between 0.5 and 5 two decimals, so that parameters of about unit scale are written alike.
    decimals = 2 - math.floor(math.log10(2 * sd))
    if decimals > 7 or largest >= 1e7:
        digits = min(max(math.floor(math.log10(largest / sd)) + 3, 3), 15)
        return [f"{v:.{digits}g}" for v in values]
    # Adding zero turns a negative zero into a positive one.
    return [f"{round(v, max(decimals, 0)) + 0.0:.{max(decimals, 0)}f}" for v in values]


def fair_share(components: Sequence[Component], limit: int) -> list[Component]:
    """Choose components such that every quantity is shown before any is shown twice; their order stays."""
    groups: dict[str, list[int]] = {}
    for place, component in enumerate(components):
        groups.setdefault(component.name, []).append(place)
    rounds = itertools.zip_longest(*groups.values())
    places = (place for one in rounds for place in one if place is not None)
    return [components[place] for place in sorted(itertools.islice(places, limit))]


def strongest_pairs(components: Sequence[Component], limit: int) -> tuple[list[Component], float, tuple[str, str]]:
    """Choose the components with the strongest rank correlations.

    Returns:
        At most `limit` of them in their order, the strongest correlation and the labels of that pair.
    """
    varying = [c for c in components if np.all(np.isfinite(c.values)) and np.ptp(c.values) > 0]
    varying = fair_share(varying, MAX_COMPARED)
    if len(varying) < 2:
        return [], 0.0, ("", "")
    ranks = np.stack([np.argsort(np.argsort(c.values)) for c in varying]).astype(np.float64)
    correlation = np.atleast_2d(np.corrcoef(ranks))
    rows, columns = np.triu_indices(len(varying), 1)
    order = np.argsort(-np.abs(correlation[rows, columns]), kind="stable")
    chosen: dict[int, None] = {}
    for pair in order:
        new = [int(i) for i in (rows[pair], columns[pair]) if int(i) not in chosen]
        if len(chosen) + len(new) > limit:
            break
        chosen |= dict.fromkeys(new)
    best = order[0]
    labels = (varying[rows[best]].label, varying[columns[best]].label)
    return [varying[i] for i in sorted(chosen)], float(correlation[rows[best], columns[best]]), labels
