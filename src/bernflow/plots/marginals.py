"""Marginal densities of a posterior, one panel per scalar component."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bernflow.errors import ArgumentError
from bernflow.plots.style import FIT, MUTED, REFERENCE, hide_density_axis, house_style, verdict_title
from bernflow.posterior import Posterior

MAX_PANELS = 20
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


def plot_posterior(
    posterior: Posterior,
    var_names: Sequence[str] | str | None = None,
    reference: Mapping[str, Any] | None = None,
    num: int = 4000,
    weighted: bool = False,
    key: Any = 1,
    backend: str = "matplotlib",
) -> Figure:
    """Plot marginal densities with median and 90 % interval, at most 20 panels.

    Args:
        posterior: what to plot.
        var_names: the quantities to plot; all parameters (without derived quantities) if None.
        reference: trusted draws by name, (num', *shape), laid over as a dashed line (for example from NUTS).
        num: number of draws.
        weighted: plot the draws that are corrected by their importance weights.
        key: integer seed or `jax.random.key`.
        backend: only "matplotlib"; for others use `arviz_plots.plot_dist(posterior.to_arviz(), backend=...)`.

    Returns:
        The figure, outside of pyplot's list of open figures: show it in a notebook or call its `savefig`.
    """
    if backend != "matplotlib":
        raise ArgumentError(
            f"backend={backend!r}: only 'matplotlib' is drawn here; use "
            f"arviz_plots.plot_dist(posterior.to_arviz(), backend={backend!r})."
        )
    panels, total = _components(posterior.draws(num, key, weighted), var_names or posterior.names)
    references = [_trusted(reference or {}, panel) for panel in panels]
    if reference and all(trusted is None for trusted in references):
        raise ArgumentError(
            f"reference has {', '.join(reference)}: expected draws of a plotted {', '.join(p.name for p in panels)}."
        )
    columns = _num_columns(len(panels))
    rows = math.ceil(len(panels) / columns)
    with house_style():
        # One panel alone is made wider, so that the line above it has room.
        width, height = (5.2, 2.9) if len(panels) == 1 else (max(2.35 * columns, 5.2), 1.9 * rows)
        figure = Figure(figsize=(width, height + 0.55), layout="constrained")
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel, trusted in zip(grid, panels, references, strict=False):
            _draw_panel(axes, panel, trusted)
        for axes in grid[len(panels) :]:
            axes.remove()
        title, color = verdict_title(posterior.diagnostics)
        figure.suptitle(title, x=0.01, ha="left", color=color, fontweight="bold", fontsize=11)
        if reference:
            first = grid[next(i for i, trusted in enumerate(references) if trusted is not None)]
            figure.legend(handles=first.get_legend_handles_labels()[0], loc="outside upper right", ncols=2)
        if total > len(panels):
            note = f"{len(panels)} of {total} components; choose others with var_names=[...]."
            figure.supxlabel(note, x=0.01, ha="left", fontsize=8.5, color=MUTED)
    return figure


def _num_columns(num: int) -> int:
    """Return the number of columns that leaves the fewest gaps, four if in doubt."""
    if num <= 4:
        return 2 if num == 4 else num
    return min((4, 5, 3), key=lambda columns: -num % columns)


def _draw_panel(axes: Axes, panel: Panel, reference: np.ndarray | None) -> None:
    grid, density = _density(panel.values)
    axes.fill_between(grid, density, color=FIT, alpha=0.16, linewidth=0)
    axes.plot(grid, density, color=FIT, linewidth=1.6, label="bernflow")
    top = density.max()
    if reference is not None:
        grid, density = _density(reference)
        axes.plot(grid, density, color=REFERENCE, linewidth=1.2, linestyle=(0, (4, 2)), label="reference")
        top = max(top, density.max())
    low, median, high = np.quantile(panel.values, (0.05, 0.5, 0.95))
    # The interval lies just below the density, like a rug.
    axes.plot([low, high], [-0.07 * top] * 2, color=FIT, linewidth=2.6, solid_capstyle="butt", label="_interval")
    axes.plot([median], [-0.07 * top], "o", color="white", markeredgecolor=FIT, markersize=5, label="_median")
    axes.set_ylim(-0.14 * top, 1.08 * top)
    axes.set_title(panel.label)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    hide_density_axis(axes)


def _density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def _components(draws: dict[str, np.ndarray], var_names: Sequence[str] | str) -> tuple[list[Panel], int]:
    """Return the first scalar components, and the number of all of them."""
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    for name in names:
        if name not in draws:
            raise ArgumentError(f"var_names: {name!r} is unknown; expected some of {', '.join(draws)}.")
    everything = ((name, index) for name in names for index in np.ndindex(draws[name].shape[1:]))
    panels = [
        Panel(name, index, np.asarray(draws[name][(slice(None), *index)], dtype=np.float64))
        for name, index in itertools.islice(everything, MAX_PANELS)
    ]
    return panels, sum(math.prod(draws[name].shape[1:]) for name in names)


def _trusted(reference: Mapping[str, Any], panel: Panel) -> np.ndarray | None:
    """Return the reference draws of one component, if there are any."""
    if panel.name not in reference:
        return None
    value = np.asarray(reference[panel.name])
    fits = value.ndim == len(panel.where) + 1 and all(i < n for i, n in zip(panel.where, value.shape[1:], strict=True))
    if not fits or len(value) < 2:
        raise ArgumentError(
            f"reference[{panel.name!r}] has shape {value.shape}: expected at least two draws, (num, *shape), "
            f"with {panel.label}."
        )
    at: Any = (slice(None), *panel.where)
    return np.asarray(value[at], dtype=np.float64)
