"""Marginal densities of a posterior, one panel per scalar component."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bernflow.plots import interactive
from bernflow.plots.backends import STATIC, choose_backend
from bernflow.plots.components import Panel, components, leftover_note, named_axes, trusted_draws
from bernflow.plots.densities import draw_curve, estimate_density
from bernflow.plots.draws import figure_draws, scalar_names
from bernflow.plots.exact import with_exact
from bernflow.plots.style import (
    FIT,
    LITERAL,
    HouseFigure,
    house_style,
    verdict_title,
)
from bernflow.posterior import Posterior
from bernflow.posterior.weighting import AUTO, Weighted

MAX_PANELS = 20


def plot_posterior(
    posterior: Posterior,
    var_names: Sequence[str] | str | None = None,
    reference: Mapping[str, Any] | None = None,
    num: int | None = None,
    weighted: Weighted = AUTO,
    key: Any = 1,
    backend: str | None = None,
) -> Any:
    """Plot marginal densities with median and 90 % interval, at most 20 panels.

    Args:
        posterior: the posterior.
        var_names: the quantities to plot, or single components like "b[2]" (or "b[park]", if the model has
            coordinates); all parameters and scalar derived quantities if None.
        reference: reference draws by name, (num', *shape), for example from NUTS, shown by dashed lines.
        num: number of draws; if None, 40,000, or 10,000 if they need the model.
        weighted: plot importance-resampled draws; "auto" if this corrects the fit.
        key: integer seed or `jax.random.key`.
        backend: "matplotlib", "plotly" or "bokeh"; the default set by `bernflow.plots.use` if None.

    Returns:
        The figure. A matplotlib figure is not managed by pyplot: show it in a notebook or call its `savefig`. A plotly
        figure has `write_html`; pass a bokeh figure to `bokeh.plotting.show`.

    Example:
        >>> from bernflow.plots import plot_posterior
        >>> plot_posterior(post, "mu").savefig("posterior.png")
    """
    backend = choose_backend(backend)
    # Derived arrays may be as long as the data; they are drawn on request.
    names = [var_names] if isinstance(var_names, str) else list(var_names or scalar_names(posterior))
    draws, is_resampled = figure_draws(posterior, names, num, key, weighted)
    panels, total = components(draws, names, MAX_PANELS, named_axes(posterior))
    if not is_resampled:
        panels = [with_exact(posterior, panel) for panel in panels]
    references = trusted_draws(reference, panels)
    if backend != STATIC:
        entries = interactive.label_columns(panels, references, "bernflow", "reference")
        return interactive.marginals(entries, verdict_title(posterior.diagnostics), backend)
    columns = _num_columns(len(panels))
    rows = math.ceil(len(panels) / columns)
    with house_style():
        # Wide enough for the heading and a legend beside it.
        least = 6.4 if reference else 5.2
        width, height = (least, 2.9) if len(panels) == 1 else (max(2.35 * columns, least), 1.9 * rows)
        figure = HouseFigure(figsize=(width, height + 0.55), layout="constrained")
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel, trusted in zip(grid, panels, references, strict=False):
            draw_marginal(axes, panel, trusted)
        for axes in grid[len(panels) :]:
            axes.remove()
        title, color = verdict_title(posterior.diagnostics)
        figure.set_heading(title, color)
        if reference:
            first = grid[next(i for i, trusted in enumerate(references) if trusted is not None)]
            figure.legend(handles=first.get_legend_handles_labels()[0], loc="outside upper right", ncols=2)
        figure.set_note(leftover_note(len(panels), total))
    return figure


def _num_columns(num: int) -> int:
    """Return the number of columns that leaves the fewest empty panels, preferably four."""
    if num <= 4:
        return 2 if num == 4 else num
    return min((4, 5, 3), key=lambda columns: -num % columns)


def draw_marginal(axes: Axes, panel: Panel, reference: np.ndarray | None = None) -> None:
    """Draw the density of one component, with median and 90 % interval, and that of a reference."""
    curve = panel.exact or estimate_density(panel.values)
    top = draw_curve(axes, curve, None if reference is None else estimate_density(reference))
    low, median, high = np.quantile(panel.values, (0.05, 0.5, 0.95))
    # The interval is just below the density, like a rug.
    axes.plot([low, high], [-0.07 * top] * 2, color=FIT, linewidth=2.6, solid_capstyle="butt", label="_interval")
    axes.plot([median], [-0.07 * top], "o", color="white", markeredgecolor=FIT, markersize=5, label="_median")
    axes.set_ylim(-0.14 * top, 1.08 * top)
    axes.set_title(panel.label, **LITERAL)
    axes.xaxis.set_major_locator(MaxNLocator(4))
