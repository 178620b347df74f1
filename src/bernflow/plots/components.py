"""What the figures of marginals and pairs share: scalar components of named draws, and their densities."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from arviz_stats.base import array_stats

from bernflow.errors import ArgumentError

# What lies outside of these quantiles is not drawn: a single far draw would squeeze the rest.
VIEW = (0.0025, 0.9975)


class Panel(NamedTuple):
    """One scalar component of a named quantity, with its draws."""

    name: str
    where: tuple[int, ...]
    values: np.ndarray

    @property
    def label(self) -> str:
        """Name with index, for example `b[2]`."""
        return self.name + (f"[{', '.join(map(str, self.where))}]" if self.where else "")


def components(draws: Mapping[str, np.ndarray], var_names: Sequence[str] | str, limit: int) -> tuple[list[Panel], int]:
    """Return the first `limit` scalar components, and the number of all of them.

    Args:
        draws: arrays of shape (num, *shape) by name.
        var_names: names, each for all of its components, or single components like "b[2]".
        limit: the largest number of components to return.
    """
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    chosen = [_find(draws, name) for name in names]
    everything = ((name, index) for name, indices in chosen for index in indices)
    panels = [
        Panel(name, index, component_draws(draws[name], index)) for name, index in itertools.islice(everything, limit)
    ]
    return panels, sum(len(indices) for _, indices in chosen)


def component_draws(draws: np.ndarray, where: tuple[int, ...]) -> np.ndarray:
    """Return the draws of one component in double precision."""
    at: Any = (slice(None), *where)
    return np.asarray(draws[at], dtype=np.float64)


def _find(draws: Mapping[str, np.ndarray], wanted: str) -> tuple[str, Sequence[tuple[int, ...]]]:
    """Return the name and the indices that a string like "b" or "b[2]" stands for."""
    if wanted in draws:
        return wanted, list(np.ndindex(draws[wanted].shape[1:]))
    match = re.fullmatch(r"(.+)\[(\d+(?:, *\d+)*)\]", str(wanted))
    if match and match[1] in draws:
        shape = draws[match[1]].shape[1:]
        index = tuple(int(number) for number in match[2].split(","))
        if len(index) == len(shape) and all(i < size for i, size in zip(index, shape, strict=True)):
            return match[1], [index]
        raise ArgumentError(f"var_names: {wanted!r} does not exist; {match[1]!r} has the shape {shape}.")
    raise ArgumentError(f"var_names: {wanted!r} is unknown; expected some of {', '.join(draws)}.")


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
    if not high > low:  # a constant: a spike of arbitrary width
        width = 1e-3 * max(abs(low), 1.0)
        return np.array([low - width, low, low + width]), np.array([0.0, 1.0, 0.0])
    grid, density, _ = array_stats.kde(inside)
    if max(density[0], density[-1]) > 0.05 * density.max():
        # Down to zero at the ends, so that a density that is cut by a bound is drawn as one.
        grid, density = np.pad(grid, 1, mode="edge"), np.pad(density, 1)
    return grid, density * len(inside) / len(values)


def leftover_note(shown: int, total: int) -> str | None:
    """Return the line below a figure that leaves components out, and how to choose them."""
    return f"{shown} of {total} components; choose others with var_names=[...]." if total > shown else None
