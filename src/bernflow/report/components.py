"""Scalar components of named draws: labels, summaries, and a selection to plot."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.summaries import is_constant, summarize
from bernflow.plots.components import component_draws
from bernflow.plots.regions import independent
from bernflow.posterior.tables import Axes, written

QUANTILES = (0.05, 0.5, 0.95)
COLUMNS = ("mean", "sd", "5%", "50%", "95%")
# Significant digits of the sd; more are within the Monte Carlo error of a report's draws.
DIGITS = 3
# Pairs are searched among at most this many components.
MAX_COMPARED = 100


class Component(NamedTuple):
    """One scalar component of a named quantity.

    Attributes:
        label: name with index.
        name: name of the quantity.
        derived: whether it is a derived quantity.
        values: its draws, (num,).
        where: its index.
    """

    label: str
    name: str
    derived: bool
    values: Float[np.ndarray, " num"]
    where: tuple[int, ...] = ()


def list_components(
    draws: Mapping[str, np.ndarray],
    parameters: Iterable[str],
    axes: Axes,
) -> Iterator[Component]:
    """Yield all components, parameters first."""
    parameters = set(parameters)
    for derived in (False, True):
        for name, value in draws.items():
            if (name not in parameters) != derived:
                continue
            for index, label in axes.labels(name, value.shape[1:]):
                yield Component(label, name, derived, component_draws(value, index), index)


def table_row(component: Component) -> list[str]:
    """Return the summary of a component as strings, in the order of `COLUMNS`."""
    return written(summarize(component.values, QUANTILES), DIGITS)


def select_evenly(components: Sequence[Component], limit: int) -> list[Component]:
    """Select components round-robin over the quantities, in their original order."""
    groups: dict[str, list[int]] = {}
    for place, component in enumerate(components):
        groups.setdefault(component.name, []).append(place)
    rounds = itertools.zip_longest(*groups.values())
    places = (place for one in rounds for place in one if place is not None)
    return [components[place] for place in sorted(itertools.islice(places, limit))]


def vary(components: Iterable[Component]) -> list[Component]:
    """Return the components that are finite and not constant."""
    return [c for c in components if np.all(np.isfinite(c.values)) and not is_constant(c.values)]


def strongest_pairs(components: Sequence[Component], limit: int) -> tuple[list[Component], float, tuple[str, str]]:
    """Select the components with the strongest rank correlations, none of them constant or a function of another.

    Returns:
        At most `limit` components in their original order, the strongest correlation and the labels of that pair.
    """
    varying = independent(select_evenly(vary(components), MAX_COMPARED), MAX_COMPARED)
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
