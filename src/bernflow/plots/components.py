"""What the figures of marginals and pairs share: scalar components of named draws, and their densities."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from scipy.signal import find_peaks

from bernflow.errors import ArgumentError
from bernflow.nearest import nearest
from bernflow.posterior.tables import Axes

# What lies outside of these quantiles is not drawn: a single far draw would squeeze the rest.
VIEW = (0.0025, 0.9975)
# From this share of its peak on, a density at the end of the view is cut by a bound and does not just leave the view.
CUT = 0.12
# A kernel is widened so many times, each time by this factor, while the density has more bumps than these that can be
# seen (as a share of its peak) and are smaller than so many standard errors: the rule for its width fails now and then.
MAX_WIDENINGS, WIDENING = 6, 1.4
MAX_BUMPS, VISIBLE, SIGNIFICANT = 2, 0.02, 4.0


class Panel(NamedTuple):
    """One scalar component of a named quantity, with its draws.

    Attributes:
        name: name of the quantity.
        where: its index.
        values: its draws, (num,).
        marks: what the model calls its place along each axis; the index itself if None.
    """

    name: str
    where: tuple[int, ...]
    values: np.ndarray
    marks: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        """Name with index, for example `b[2]`, or with coordinates, as in `b[park]`."""
        return self.name + (f"[{', '.join(map(str, self.marks or self.where))}]" if self.where else "")


# Names of the axes of quantities, and labels along named axes.
Dims = Mapping[str, Sequence[str | None]]
Coords = Mapping[str, Any]


def components(
    draws: Mapping[str, np.ndarray],
    var_names: Sequence[str] | str,
    limit: int,
    axes: tuple[Dims, Coords] = ({}, {}),
) -> tuple[list[Panel], int]:
    """Return the first `limit` scalar components, and the number of all of them.

    Args:
        draws: arrays of shape (num, *shape) by name.
        var_names: names, each for all of its components, or single components like "b[2]" or "b[park]".
        limit: the largest number of components to return.
        axes: names of the axes, and labels along them.
    """
    dims, coords = axes
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    marks = {name: axis_marks(value.shape[1:], dims.get(name, ()), coords) for name, value in draws.items()}
    chosen = [_find(draws, marks, name) for name in names]
    everything = ((name, index) for name, indices in chosen for index in indices)
    panels = []
    for name, index in itertools.islice(everything, limit):
        words = tuple(axis[i] for axis, i in zip(marks[name], index, strict=True))
        panels.append(Panel(name, index, component_draws(draws[name], index), words))
    return panels, sum(len(indices) for _, indices in chosen)


def named_axes(posterior: Any) -> tuple[Dims, Coords]:
    """Return what a posterior calls its axes and the places along them; nothing for plain draws."""
    axes = getattr(posterior, "axes", Axes())
    return axes.dims, axes.coords


def axis_marks(shape: Sequence[int], dims: Sequence[str | None], coords: Coords, first: int = 0) -> list[list[str]]:
    """Return what the places along every axis are called: their coordinates, or else numbers from `first` on."""
    return Axes({"": dims}, coords, first).marks("", shape)


def component_draws(draws: np.ndarray, where: tuple[int, ...]) -> np.ndarray:
    """Return the draws of one component in double precision."""
    at: Any = (slice(None), *where)
    return np.asarray(draws[at], dtype=np.float64)


def _find(
    draws: Mapping[str, np.ndarray], marks: Mapping[str, list[list[str]]], wanted: str
) -> tuple[str, Sequence[tuple[int, ...]]]:
    """Return the name and the indices that a string like "b", "b[2]" or "b[park]" stands for."""
    if wanted in draws:
        return wanted, list(np.ndindex(draws[wanted].shape[1:]))
    called = re.fullmatch(r"(.+?)\[(.+)\]", str(wanted))
    if called and called[1] in draws:
        words = [word.strip() for word in called[2].split(",")]
        places = marks[called[1]]
        if len(words) == len(places) and all(word in axis for word, axis in zip(words, places, strict=True)):
            return called[1], [tuple(axis.index(word) for word, axis in zip(words, places, strict=True))]
    match = re.fullmatch(r"(.+)\[(\d+(?:, *\d+)*)\]", str(wanted))
    if match and match[1] in draws:
        shape = draws[match[1]].shape[1:]
        index = tuple(int(number) for number in match[2].split(","))
        if len(index) == len(shape) and all(i < size for i, size in zip(index, shape, strict=True)):
            return match[1], [index]
        raise ArgumentError(f"var_names: {wanted!r} does not exist; {match[1]!r} has the shape {shape}.")
    raise ArgumentError(
        f"var_names: {wanted!r} is unknown; expected some of {', '.join(draws)}.{nearest(str(wanted), draws)}"
    )


def trusted_draws(reference: Mapping[str, Any] | None, panels: Sequence[Panel]) -> list[np.ndarray | None]:
    """Return the reference draws of every component, None where there are none."""
    found = [_trusted(reference or {}, panel) for panel in panels]
    if reference and all(trusted is None for trusted in found):
        names = dict.fromkeys(panel.name for panel in panels)
        raise ArgumentError(f"reference has {', '.join(reference)}: expected draws of a plotted {', '.join(names)}.")
    return found


def _trusted(reference: Mapping[str, Any], panel: Panel) -> np.ndarray | None:
    """Return the reference draws of one component, if there are any."""
    if panel.name not in reference:
        return None
    value = np.asarray(reference[panel.name])
    fits = value.ndim == len(panel.where) + 1 and all(i < n for i, n in zip(panel.where, value.shape[1:], strict=True))
    if not fits or len(value) < 2:
        raise ArgumentError(
            f"reference[{panel.name!r}] has shape {value.shape}: expected at least two draws, (num, *shape), with "
            f"{panel.label}."
        )
    return component_draws(value, panel.where)


def estimate_density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the density inside of the view; it is scaled to the share of the draws that lies there."""
    low, high = np.quantile(values, VIEW)
    inside = values[(values >= low) & (values <= high)]
    if len(np.unique(inside)) < 2:  # a constant, or hardly any draws: a spike of arbitrary width
        at = np.median(values)
        width = 1e-3 * max(abs(at), 1.0)
        return np.array([at - width, at, at + width]), np.array([0.0, 1.0, 0.0])
    grid, density, width = array_stats.kde(inside, bw=_bandwidth(inside))
    for _ in range(MAX_WIDENINGS):
        if not _is_jagged(density, width, len(inside)):
            break
        width = WIDENING * float(width)
        grid, density, _ = array_stats.kde(inside, bw=width)
    if max(density[0], density[-1]) > CUT * density.max():
        # Down to zero at the ends, so that a density that is cut by a bound is drawn as one.
        grid, density = np.pad(grid, 1, mode="edge"), np.pad(density, 1)
    return grid, density * len(inside) / len(values)


def _is_jagged(density: np.ndarray, width: float, num: int) -> bool:
    """Tell whether a density has bumps that can be seen and are no more than the Monte Carlo error of its estimate."""
    top = density.max()
    places, found = find_peaks(density, prominence=VISIBLE * top)
    errors = np.sqrt(density[places] / (2.0 * math.sqrt(math.pi) * num * width))
    return int(np.sum(found["prominences"] < SIGNIFICANT * errors)) > MAX_BUMPS


def _bandwidth(values: np.ndarray) -> str:
    """Choose the rule for the width of the kernel.

    The one of Sheather and Jones follows narrow modes that lie far apart, where others go by the distance between them.
    Of whole numbers it would make spikes.
    """
    return "experimental" if np.array_equal(values, np.round(values)) else "isj"


def leftover_note(shown: int, total: int) -> str | None:
    """Return the line below a figure that leaves components out, and how to choose them."""
    return f"{shown} of {total} components; choose others with var_names=[...]." if total > shown else None
