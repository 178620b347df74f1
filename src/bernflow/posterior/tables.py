"""Tables of named draws, with one row per scalar component."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.summaries import errors, summarize
from bernflow.errors import ArgumentError
from bernflow.nearest import nearest

if TYPE_CHECKING:
    import pandas as pd

Draws = Mapping[str, np.ndarray]
# Significant digits of the standard deviation in a table; all statistics of a row have the same number of decimals.
DIGITS = 4
MAX_DECIMALS, MAX_WRITTEN = 8, 1e9


class Axes(NamedTuple):
    """Names and labels of the axes of a model's quantities.

    Attributes:
        dims: names of axes by quantity; None for an unnamed axis.
        coords: labels along named axes.
        first: index of the first element along an axis without labels: 1 for Stan programs.
    """

    dims: Mapping[str, Sequence[str | None]] = {}
    coords: Mapping[str, Any] = {}
    first: int = 0

    def marks(self, name: str, shape: Sequence[int]) -> list[list[str]]:
        """Return the labels, or else indices, along every axis of a quantity."""
        dims, marks = self.dims.get(name, ()), []
        for axis, size in enumerate(shape):
            dim = dims[axis] if len(dims) == len(shape) else None
            labels = self.coords.get(dim) if dim is not None else None
            if labels is None or len(labels) != size:
                labels = range(self.first, self.first + size)
            marks.append([str(label) for label in labels])
        return marks

    def labels(self, name: str, shape: Sequence[int]) -> Iterator[tuple[tuple[int, ...], str]]:
        """Yield the index and the label of every scalar component, for example `beta[age]`."""
        marks = self.marks(name, shape)
        for index in np.ndindex(*shape):
            inside = ", ".join(axis[i] for axis, i in zip(marks, index, strict=True))
            yield index, f"{name}[{inside}]" if index else name


class Row(NamedTuple):
    """One scalar component: its label, its statistics, and the standard errors of mean and sd."""

    label: str
    figures: tuple[float, ...]
    mcse: tuple[float, float]


def rows(
    draws: Draws, quantiles: Sequence[float], axes: Axes, num_effective: float | None = None, limit: int | None = None
) -> tuple[list[Row], int]:
    """Summarize scalar components, in the order of the draws.

    Args:
        draws: arrays of shape (num, *shape) by name.
        quantiles: the columns after mean and sd.
        axes: names and labels of axes.
        num_effective: effective sample size; None for independent draws.
        limit: the largest number of rows.

    Returns:
        The rows, and the total number of components.
    """
    total = sum(math.prod(value.shape[1:]) for value in draws.values())
    found: list[Row] = []
    for name in draws:
        for index, label in axes.labels(name, draws[name].shape[1:]):
            if len(found) == limit:
                return found, total
            at: Any = (slice(None), *index)
            values = np.asarray(draws[name][at], np.float64)
            found.append(Row(label, summarize(values, quantiles), errors(values, num_effective)))
    return found, total


def in_order(draws: Draws, parameters: Sequence[str], roles: Sequence[Sequence[str]] = ()) -> dict[str, np.ndarray]:
    """Sort quantities by what a reader looks for first.

    Scalars come first, then arrays, small ones before large ones: fitted values of all data would hide the rest. Of two
    arrays of one size the derived one comes first, because it is usually what raw parameters are made into. Predictions
    and log likelihoods come last.

    Args:
        draws: arrays of shape (num, *shape) by name.
        parameters: which of them are not derived.
        roles: names of the predictions, and of the pointwise log likelihoods.
    """
    last = {name for names in roles for name in names}

    def rank(name: str) -> tuple[bool, bool, int, bool]:
        is_array = draws[name].ndim > 1
        return is_array, name in last, math.prod(draws[name].shape[1:]), is_array and name in parameters

    return {name: draws[name] for name in sorted(draws, key=rank)}


def select(draws: Draws, var_names: Sequence[str] | str | None, filter_vars: str | None) -> dict[str, np.ndarray]:
    """Select quantities by name, as in ArviZ.

    Args:
        draws: arrays by name.
        var_names: names to include, or to exclude if prefixed by `~`; None for all.
        filter_vars: None (whole names), "like" (parts of names) or "regex" (regular expressions).
    """
    if filter_vars not in (None, "like", "regex"):
        raise ArgumentError(f"filter_vars={filter_vars!r}: expected None, 'like' or 'regex'.")
    if var_names is None:
        return dict(draws)
    patterns = [var_names] if isinstance(var_names, str) else list(var_names)
    taken: dict[str, None] = {}
    for pattern in patterns:
        wanted = pattern if pattern in draws else pattern.removeprefix("~")
        matches = [name for name in draws if _matches(wanted, name, filter_vars)]
        if not matches:
            raise ArgumentError(
                f"var_names has {pattern!r}, which matches none of {', '.join(draws)}.{nearest(wanted, draws)}"
            )
        taken |= dict.fromkeys(matches)
    if all(pattern not in draws and pattern.startswith("~") for pattern in patterns):
        return {name: value for name, value in draws.items() if name not in taken}
    return {name: draws[name] for name in taken}


def _matches(pattern: str, name: str, filter_vars: str | None) -> bool:
    if filter_vars == "regex":
        return re.search(pattern, name) is not None
    return pattern in name if filter_vars == "like" else pattern == name


def frame(found: Sequence[Row], ci_prob: float, round_to: int | str | None) -> "pd.DataFrame":
    """Return rows of mean, sd and one interval as a data frame with the column names of ArviZ."""
    import pandas as pd

    ends = (f"eti{100 * ci_prob:g}_lb", f"eti{100 * ci_prob:g}_ub")
    table = pd.DataFrame(
        [(*row.figures, *row.mcse) for row in found],
        index=[row.label for row in found],
        columns=["mean", "sd", *ends, "mcse_mean", "mcse_sd"],
        dtype=float,
    )
    if round_to in (None, "none"):
        return table
    if isinstance(round_to, int):
        return table.round(round_to)
    if round_to != "auto":
        raise ArgumentError(f"round_to={round_to!r}: expected 'auto', a number of decimals, or 'none'.")
    for place, row in enumerate(found):
        table.iloc[place] = rounded((*row.figures, *row.mcse))
    return table


def rounded(values: Sequence[float]) -> list[float]:
    """Round mean, sd and other statistics of one quantity to the decimals at which the sd has four digits."""
    places = _decimals(values[1])
    return [float(v) for v in values] if places is None else [round(float(v), places) + 0.0 for v in values]


def written(values: Sequence[float], digits: int = DIGITS) -> list[str]:
    """Format mean, sd and other statistics of one quantity with the decimals at which the sd has so many digits.

    Example:
        >>> written([1234.56789, 0.0123456, 1234.5, 1234.6])
        ['1234.56789', '0.01235', '1234.50000', '1234.60000']
    """
    places = _decimals(values[1], digits)
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if places is None:
        return [f"{v:.4g}" for v in values]
    if places > MAX_DECIMALS or largest >= MAX_WRITTEN:
        digits = min(max(math.floor(math.log10(max(largest, values[1]) / values[1])) + digits, digits), 15)
        return [f"{v:.{digits}g}" for v in values]
    # Adding zero converts negative zero to zero.
    return [f"{round(v, places) + 0.0:.{max(places, 0)}f}" for v in values]


def _decimals(sd: float, digits: int = DIGITS) -> int | None:
    """Return the decimals at which a standard deviation has so many digits; None if it is zero or not finite."""
    if not math.isfinite(sd) or sd <= 0.0:
        return None
    return digits - 1 - math.floor(math.log10(sd))


def components(draws: Draws, axes: Axes) -> tuple[list[str], Float[np.ndarray, "d s"]]:
    """Return all scalar components with their labels."""
    labels: list[str] = []
    values = []
    for name, value in draws.items():
        for index, label in axes.labels(name, value.shape[1:]):
            at: Any = (slice(None), *index)
            labels.append(label)
            values.append(value[at])
    return labels, np.stack(values)
