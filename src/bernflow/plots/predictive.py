"""Posterior predictive checks: observed data and data simulated from the fitted model."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from arviz_stats.base import array_stats
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bernflow.errors import ArgumentError
from bernflow.plots import interactive
from bernflow.plots.backends import STATIC, choose_backend
from bernflow.plots.densities import estimate_density
from bernflow.plots.style import FIT, LITERAL, REFERENCE, HouseFigure, hide_density_axis, house_style
from bernflow.posterior import Posterior
from bernflow.precision import use_precision

MAX_PANELS = 6
# Larger data sets are thinned to this many evenly spaced values.
MAX_VALUES = 2000
# Integers with at most this many distinct values are shown as frequencies instead of densities.
MAX_COUNTED = 25
# Up to this many values are shown individually.
MAX_EACH = 30
MAX_LINES = 50
# Grid points of a density.
GRID = 160
# Suffixes of replicates in Stan programs.
SUFFIXES = ("_rep", "_pred", "_sim")


def plot_predictive(
    posterior_or_draws: Posterior | Mapping[str, Any],
    observed: Mapping[str, Any] | None = None,
    num: int = 200,
    key: Any = 2,
    backend: str | None = None,
) -> Any:
    """Plot observed data and replicates from the posterior predictive distribution.

    Up to 30 values are shown individually, with 50 and 90 % intervals of their replicates. More values are shown as
    densities, with one line per replicate (of the first 50), or as frequencies with 90 % intervals if they are integers
    with few distinct values.

    Args:
        posterior_or_draws: a posterior with its model, or replicates by name, (num, *shape).
        observed: the observed data by name; those of the posterior's model if None.
        num: number of replicates of a posterior.
        key: integer seed or `jax.random.key` of a posterior's replicates.
        backend: "matplotlib", "plotly" or "bokeh"; the default set by `bernflow.plots.use` if None.
            Interactive figures show densities, or distribution functions of integers.

    Returns:
        The figure. A matplotlib figure is not managed by pyplot: show it in a notebook or call its `savefig`. A plotly
        figure has `write_html`; pass a bokeh figure to `bokeh.plotting.show`.

    Example:
        >>> from bernflow.plots import plot_predictive
        >>> plot_predictive(post).savefig("predictive.png")
    """
    backend = choose_backend(backend)
    if isinstance(posterior_or_draws, Posterior):
        draws = posterior_or_draws.predict(num=num, key=key)
        model = posterior_or_draws.model
        if not observed and model is not None:
            with use_precision(posterior_or_draws.precision):
                observed = model.observed()
    else:
        draws = {name: np.asarray(value) for name, value in posterior_or_draws.items()}
    pairs = match_replicates(observed or {}, draws)
    if not pairs:
        raise ArgumentError(
            f"plot_predictive: no replicate has the name (or with one of {', '.join(SUFFIXES)}) and the shape of "
            f"observed data. Observed: {_shapes(observed or {}, 0)}; replicated: {_shapes(draws, 1)}."
        )
    shown = list(pairs.items())[:MAX_PANELS]
    if backend != STATIC:
        is_counted = any(_is_counted(*pair) for _, pair in shown)
        return interactive.predictive(dict(shown), is_counted, backend)
    columns = min(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    with house_style():
        figure = HouseFigure(figsize=(max(2.9 * columns, 5.2), 2.4 * rows + 0.4), layout="constrained")
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, (name, (values, replicates)) in zip(grid, shown, strict=False):
            _draw_panel(axes, name, values, replicates)
        for axes in grid[len(shown) :]:
            axes.remove()
        figure.legend(handles=_handles([pair for _, pair in shown]), loc="outside upper right", ncols=2)
    return figure


def _draw_panel(axes: Axes, name: str, values: np.ndarray, replicates: np.ndarray) -> None:
    if len(values) <= MAX_EACH:
        _draw_each(axes, values, replicates, name)
    elif _is_counted(values, replicates):
        _draw_counts(axes, values, replicates, name)
    else:
        _draw_densities(axes, values, replicates[:MAX_LINES], name)


def _handles(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Line2D]:
    """Return legend handles that match the kinds of panels: dots and intervals, lines, or both."""
    are_lines = [len(values) > MAX_EACH and not _is_counted(values, replicates) for values, replicates in pairs]
    each = all(len(values) <= MAX_EACH for values, _ in pairs)
    look: dict[str, Any] = {"linewidth": 1.6} if any(are_lines) else {"linestyle": "none"}
    marker = None if all(are_lines) else "o"
    return [
        Line2D([], [], color=FIT, linewidth=1.6, label="replicated: 50 and 90 %" if each else "replicated"),
        Line2D([], [], color=REFERENCE, marker=marker, markersize=4, label="observed", **look),
    ]


def match_replicates(
    observed: Mapping[str, Any], draws: Mapping[str, np.ndarray]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return observed values, (n,), with their replicates, (num, n), matched by name and shape.

    Non-finite (missing) values are excluded, and large data sets are thinned.
    """
    pairs = {}
    for name, value in observed.items():
        values = np.asarray(value)
        found = next((draws[name + s] for s in ("", *SUFFIXES) if name + s in draws), None)
        if found is None or values.dtype.kind not in "biuf" or values.size == 0 or found.shape[1:] != values.shape:
            continue
        flat, replicates = values.ravel().astype(np.float64), found.reshape(len(found), -1).astype(np.float64)
        kept = np.flatnonzero(np.isfinite(flat) & np.all(np.isfinite(replicates), axis=0))
        kept = kept[np.unique(np.linspace(0, len(kept) - 1, min(len(kept), MAX_VALUES)).astype(int))]
        if len(kept):
            pairs[name] = (flat[kept], replicates[:, kept])
    return pairs


def _shapes(values: Mapping[str, Any], skip: int) -> str:
    return ", ".join(f"{name} {np.shape(value)[skip:]}" for name, value in values.items()) or "none"


def _is_counted(values: np.ndarray, replicates: np.ndarray) -> bool:
    """Tell whether values are integers with few distinct values; replicates of rounded continuous data are not."""
    whole = np.all(values == np.round(values)) and np.all(replicates == np.round(replicates))
    return bool(whole) and len(np.unique(values)) <= MAX_COUNTED


def _draw_each(axes: Axes, values: np.ndarray, replicates: np.ndarray, name: str) -> None:
    places = np.arange(len(values))
    for low, high, width in ((0.05, 0.95, 1.2), (0.25, 0.75, 4.0)):
        axes.vlines(places, *np.quantile(replicates, (low, high), axis=0), color=FIT, linewidth=width, alpha=0.6)
    axes.plot(places, values, "o", color=REFERENCE, markersize=4)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlim(-0.7, len(values) - 0.3)
    axes.set_xlabel("observation")
    axes.set_ylabel(name, **LITERAL)


def _draw_counts(axes: Axes, values: np.ndarray, replicates: np.ndarray, name: str) -> None:
    low, high = np.quantile(np.concatenate([values, replicates.ravel()]), (0.001, 0.999))
    low, high = min(low, values.min()), max(high, values.max())
    cells = np.arange(np.floor(low), np.ceil(high) + 1)
    if len(cells) > 4 * MAX_COUNTED:  # a few values far apart
        cells = np.unique(values)
    frequencies = np.array([(replicates == cell).mean(axis=1) for cell in cells])
    bottom, top = np.quantile(frequencies, (0.05, 0.95), axis=1)
    axes.bar(cells, frequencies.mean(axis=1), width=0.8, color=FIT, alpha=0.2)
    axes.vlines(cells, bottom, top, color=FIT, linewidth=2.4)
    axes.plot(cells, [(values == cell).mean() for cell in cells], "o", color=REFERENCE, markersize=4)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(name, **LITERAL)
    axes.set_ylabel("fraction of observations")


def _draw_densities(axes: Axes, values: np.ndarray, replicates: np.ndarray, name: str) -> None:
    alpha = min(0.5, max(0.1, 8.0 / len(replicates)))
    curves = [_smooth(replicate) for replicate in replicates]
    for grid, density in curves:
        axes.plot(grid, density, color=FIT, alpha=alpha, linewidth=0.8)
    grid, density = _smooth(values)
    axes.plot(grid, density, color=REFERENCE, linewidth=1.6)
    # Robust limits, so that a single extreme replicate does not dominate.
    low, high = np.quantile(replicates, (0.002, 0.998))
    low, high = min(low, values.min()), max(high, values.max())
    margin = 0.05 * (high - low) or 1.0
    axes.set_xlim(low - margin, high + margin)
    peak = np.quantile([curve.max() for _, curve in curves], 0.9)
    axes.set_ylim(0.0, 1.15 * max(peak, density.max()))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    hide_density_axis(axes)
    axes.set_xlabel(name, **LITERAL)
    axes.set_ylabel("density")


def _smooth(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimate a density that extends beyond the data, because few values do not reveal a bound."""
    if np.ptp(values) <= 0.0:
        curve = estimate_density(values)
        return curve.grid, curve.density
    grid, density, _ = array_stats.kde(values, bound_correction=False, extend=True, extend_fct=0.5, grid_len=GRID)
    return grid, density
