"""Scalar components of named draws and their densities, for figures of marginals and pairs."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from matplotlib.axes import Axes as MplAxes
from scipy.signal import find_peaks

from bernflow.errors import ArgumentError
from bernflow.nearest import nearest
from bernflow.plots.style import FIT, REFERENCE, hide_density_axis
from bernflow.posterior.tables import Axes

# The range of axes, as quantiles, so that single extreme draws do not dominate it.
VIEW = (0.0025, 0.9975)
# If a density at the end of the range exceeds this fraction of its peak, it is truncated by a bound.
CUT = 0.12
# The bandwidth rule sometimes fails. A kernel is widened up to this many times by this factor while the density has
# more bumps than this that are visible (as a share of its peak) and smaller than this many standard errors.
MAX_WIDENINGS, WIDENING = 6, 1.4
MAX_BUMPS, VISIBLE, SIGNIFICANT = 2, 0.02, 4.0


class Panel(NamedTuple):
    """One scalar component of a named quantity, with its draws.

    Attributes:
        name: name of the quantity.
        where: its index.
        values: its draws, (num,).
        marks: its coordinate labels along each axis; the index itself if None.
    """

    name: str
    where: tuple[int, ...]
    values: np.ndarray
    marks: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        """Name with index, for example `b[2]`, or with coordinates, as in `b[park]`."""
        return self.name + (f"[{', '.join(map(str, self.marks or self.where))}]" if self.where else "")


def components(
    draws: Mapping[str, np.ndarray],
    var_names: Sequence[str] | str,
    limit: int,
    axes: Axes | None = None,
) -> tuple[list[Panel], int]:
    """Return the first `limit` scalar components, and the number of all of them.

    Args:
        draws: arrays of shape (num, *shape) by name.
        var_names: names of quantities, or single components like "b[2]" or "b[park]".
        limit: the largest number of components to return.
        axes: names and labels of the axes.
    """
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    marks = {name: (axes or Axes()).marks(name, value.shape[1:]) for name, value in draws.items()}
    chosen = [_find(draws, marks, name) for name in names]
    everything = ((name, index) for name, indices in chosen for index in indices)
    panels = []
    for name, index in itertools.islice(everything, limit):
        words = tuple(axis[i] for axis, i in zip(marks[name], index, strict=True))
        panels.append(Panel(name, index, component_draws(draws[name], index), words))
    return panels, sum(len(indices) for _, indices in chosen)


def named_axes(posterior: Any) -> Axes:
    """Return names and labels of the axes of a posterior, with indices from 0; empty for plain draws."""
    return getattr(posterior, "axes", Axes())._replace(first=0)


def component_draws(draws: np.ndarray, where: tuple[int, ...]) -> np.ndarray:
    """Return the draws of one component in double precision."""
    at: Any = (slice(None), *where)
    return np.asarray(draws[at], dtype=np.float64)


def _find(
    draws: Mapping[str, np.ndarray], marks: Mapping[str, list[list[str]]], wanted: str
) -> tuple[str, Sequence[tuple[int, ...]]]:
    """Return the name and the indices of a string like "b", "b[2]" or "b[park]"."""
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
    """Return the reference draws of every component, or None for components without."""
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
    """Estimate the density inside the range of the axis, scaled to the fraction of the draws there."""
    low, high = np.quantile(values, VIEW)
    inside = values[(values >= low) & (values <= high)]
    if len(np.unique(inside)) < 2:  # constant or too few draws: return a spike of arbitrary width
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
        # Extend to zero at the ends, so that a truncated density is drawn as such.
        grid, density = np.pad(grid, 1, mode="edge"), np.pad(density, 1)
    return grid, density * len(inside) / len(values)


def _is_jagged(density: np.ndarray, width: float, num: int) -> bool:
    """Tell whether a density has visible bumps that are within the Monte Carlo error of its estimate."""
    top = density.max()
    places, found = find_peaks(density, prominence=VISIBLE * top)
    errors = np.sqrt(density[places] / (2.0 * math.sqrt(math.pi) * num * width))
    return int(np.sum(found["prominences"] < SIGNIFICANT * errors)) > MAX_BUMPS


def draw_density(axes: MplAxes, values: np.ndarray, reference: np.ndarray | None, dashes: Any = (0, (4, 2))) -> float:
    """Draw the density of one component, and that of a reference as a dashed line; return the largest value."""
    grid, density = estimate_density(values)
    axes.fill_between(grid, density, color=FIT, alpha=0.16, linewidth=0)
    axes.plot(grid, density, color=FIT, linewidth=1.6, label="bernflow")
    top = density.max()
    if reference is not None:
        grid, density = estimate_density(reference)
        axes.plot(grid, density, color=REFERENCE, linewidth=1.2, linestyle=dashes, label="reference")
        top = max(top, density.max())
    hide_density_axis(axes)
    return top


def _bandwidth(values: np.ndarray) -> str:
    """Choose the bandwidth rule.

    The improved Sheather-Jones rule resolves narrow, well separated modes, which other rules oversmooth. It would
    produce spikes for integers.
    """
    return "experimental" if np.array_equal(values, np.round(values)) else "isj"


def leftover_note(shown: int, total: int) -> str | None:
    """Return a note for a figure that omits components, or None."""
    return f"{shown} of {total} components; choose others with var_names=[...]." if total > shown else None
