"""Comparison of posteriors: intervals of every component, relative to the reference."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bernflow.compare.entries import Component
from bernflow.compare.result import Comparison
from bernflow.errors import ArgumentError
from bernflow.plots import interactive
from bernflow.plots.backends import STATIC, choose_backend
from bernflow.plots.components import leftover_note
from bernflow.plots.style import ACCENT, FIT, LITERAL, REFERENCE, HouseFigure, house_style

MAX_COMPONENTS = 16
COLORS = (FIT, ACCENT, "#009E73", "#CC79A7", "#B37700", "#56B4E9")
# Quantiles at the ends of the thin and the thick lines.
OUTER, INNER = (0.05, 0.95), (0.25, 0.75)


def plot_comparison(
    comparison: Comparison, var_names: Sequence[str] | str | None = None, backend: str | None = None
) -> Any:
    """Plot median, 50 % and 90 % intervals of every component and entry.

    Draws are standardized by mean and sd of the reference, so that parameters with different units can share an axis.
    The reference comes first in every group, in black.

    Args:
        comparison: the result of `bernflow.compare`.
        var_names: parameters to plot, or single components like "b[2]"; all if None, but at most 16.
        backend: "matplotlib", "plotly" or "bokeh"; the default set by `bernflow.plots.use` if None.

    Returns:
        The figure. A matplotlib figure is not managed by pyplot: show it in a notebook or call its `savefig`. A plotly
        figure has `write_html`; pass a bokeh figure to `bokeh.plotting.show`.

    Example:
        >>> from bernflow.plots import plot_comparison
        >>> exact = np.random.default_rng(0).normal(0.525, 0.5, size=4000)
        >>> plot_comparison(bf.compare({"exact": {"mu": exact}, "flow": post})).savefig("comparison.png")
    """
    backend = choose_backend(backend)
    names = None if var_names is None else [var_names] if isinstance(var_names, str) else list(var_names)
    chosen = [c for c in comparison.components if names is None or c.name in names or c.label in names]
    if not chosen:
        raise ArgumentError(
            f"plot_comparison has no component to draw for var_names={var_names!r}; expected some of "
            f"{', '.join(dict.fromkeys(c.name for c in comparison.components)) or 'those compared, which are none'}."
        )
    shown = chosen[:MAX_COMPONENTS]
    order = [comparison.reference, *(name for name in comparison.entries if name != comparison.reference)]
    colors = dict(zip(order, [REFERENCE, *(COLORS[i % len(COLORS)] for i in range(len(order) - 1))], strict=True))
    unit = f"sd of {comparison.reference}, from its mean"
    relative = {name: {c.label: _relative(comparison, name, c) for c in shown} for name in order}
    if backend != STATIC:
        return interactive.comparison(relative, list(colors.values()), unit, backend)
    step = 0.72 / len(order)
    with house_style():
        figure = HouseFigure(figsize=(6.4, 0.9 + len(shown) * max(0.34, 0.15 * len(order))), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0.0, color="#9A9A9A", linewidth=0.8)
        for row, component in enumerate(shown):
            for i, name in enumerate(order):
                values = relative[name][component.label]
                at = row + (i - 0.5 * (len(order) - 1)) * step
                style: dict[str, Any] = {"color": colors[name], "solid_capstyle": "butt"}
                axes.plot(np.quantile(values, OUTER), [at, at], linewidth=1.2, **style)
                axes.plot(np.quantile(values, INNER), [at, at], linewidth=3.4, **style)
                label = name if row == 0 else f"_{name}"
                axes.plot(
                    [np.median(values)], [at], "o", color="white", markeredgecolor=colors[name], ms=4.5, label=label
                )
        axes.set_yticks(range(len(shown)), [c.label for c in shown], **LITERAL)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(unit, **LITERAL)
        legend = figure.legend(loc="outside upper left", ncols=min(4, len(order)))
        for text in legend.get_texts():
            text.set_parse_math(False)
        figure.set_note(leftover_note(len(shown), len(chosen)))
    return figure


def _relative(comparison: Comparison, name: str, component: Component) -> np.ndarray:
    """Return draws standardized by mean and sd of the reference."""
    base = comparison.entries[comparison.reference].column(component)
    return (comparison.entries[name].column(component).ravel() - base.mean()) / (base.std() or 1.0)
