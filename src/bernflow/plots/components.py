"""Scalar components of named draws, for figures of marginals and pairs."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bernflow.diagnostics.summaries import ROUNDING, is_constant
from bernflow.errors import ArgumentError
from bernflow.nearest import nearest
from bernflow.plots.densities import Curve
from bernflow.posterior.tables import Axes

# Draws that tell whether a component may be constant, before all of its draws are looked at.
FIRST_DRAWS = 64


class Panel(NamedTuple):
    """One scalar component of a named quantity, with its draws.

    Attributes:
        name: name of the quantity.
        where: its index.
        values: its draws, (num,).
        marks: its coordinate labels along each axis; the index itself if None.
        exact: its exact density, if the flow knows it.
    """

    name: str
    where: tuple[int, ...]
    values: np.ndarray
    marks: tuple[str, ...] | None = None
    exact: Curve | None = None

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
    """Return the first `limit` scalar components that vary, and the number of all that do.

    Constants, like the corner of a Cholesky factor, are left out unless a component is chosen by its own name.

    Args:
        draws: arrays of shape (num, *shape) by name.
        var_names: names of quantities, or single components like "b[2]" or "b[park]".
        limit: the largest number of components to return.
        axes: names and labels of the axes.
    """
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    marks = {name: (axes or Axes()).marks(name, value.shape[1:]) for name, value in draws.items()}
    chosen = [_find(draws, marks, name) for name in names]
    chosen = [(name, _varying(draws[name], indices) if name in names else indices) for name, indices in chosen]
    everything = ((name, index) for name, indices in chosen for index in indices)
    panels: list[Panel] = []
    for name, index in itertools.islice(everything, limit):
        words = tuple(axis[i] for axis, i in zip(marks[name], index, strict=True))
        panels.append(Panel(name, index, component_draws(draws[name], index), words))
    if not panels:
        raise ArgumentError(f"var_names: all components of {', '.join(names)} are constant: nothing can be plotted.")
    return panels, sum(len(indices) for _, indices in chosen)


def named_axes(posterior: Any) -> Axes:
    """Return names and labels of the axes of a posterior, with indices from 0; empty for plain draws."""
    return getattr(posterior, "axes", Axes())._replace(first=0)


def component_draws(draws: np.ndarray, where: tuple[int, ...]) -> np.ndarray:
    """Return the draws of one component in double precision."""
    at: Any = (slice(None), *where)
    return np.asarray(draws[at], dtype=np.float64)


def _varying(draws: np.ndarray, indices: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the indices of the components that are not constant."""
    spread = np.ptp(np.asarray(draws[:FIRST_DRAWS], np.float64), axis=0)
    return [i for i in indices if spread[i] > ROUNDING or not is_constant(component_draws(draws, i))]


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
    raise _unknown(wanted, list(draws))


def check_names(var_names: Sequence[str], known: Sequence[str]) -> None:
    """Raise an error for a string that names no quantity and no component of one."""
    for wanted in var_names:
        called = re.fullmatch(r"(.+?)\[(.+)\]", str(wanted))
        if wanted not in known and (called is None or not any(str(wanted).startswith(f"{name}[") for name in known)):
            raise _unknown(wanted, known)


def _unknown(wanted: str, known: Sequence[str]) -> ArgumentError:
    return ArgumentError(
        f"var_names: {wanted!r} is unknown; expected some of {', '.join(known)}.{nearest(str(wanted), known)}"
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


def leftover_note(shown: int, total: int) -> str | None:
    """Return a note for a figure that omits components, or None."""
    return f"{shown} of {total} components; choose others with var_names=[...]." if total > shown else None
