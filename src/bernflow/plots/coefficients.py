"""Coefficients of a semi-structured model beside the curves of its training."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bernflow.plots.backends import stay_static
from bernflow.plots.densities import estimate_density
from bernflow.plots.style import ACCENT, FIT, LITERAL, MUTED, REFERENCE, HouseFigure, hide_density_axis, house_style

MAX_ROWS = 20


def plot_coefficients(
    draws: Mapping[str, np.ndarray],
    histories: Sequence[Mapping[str, np.ndarray]],
    best_epochs: Sequence[int],
    title: str,
) -> Figure:
    """Plot one density per coefficient, and the ELBO and the validation score by epoch.

    Args:
        draws: draws (num,) by coefficient; the first 20 are shown.
        histories: "epoch", "loss" and, where there was validation, "valid_score", for every network.
        best_epochs: the epoch whose weights were kept, for every network; 0 where it was the last one.
        title: line above the figure.
    """
    stay_static("The figure of coefficients")
    shown = dict(list(draws.items())[:MAX_ROWS])
    has_scores = all("valid_score" in history for history in histories)
    with house_style():
        height = max(2.9, 0.55 * len(shown) + 1.0)
        figure = HouseFigure(figsize=(9.0, height), layout="constrained")
        grid = figure.add_gridspec(2 if has_scores else 1, 2, width_ratios=(1.35, 1.0))
        _draw_ridges(figure.add_subplot(grid[:, 0]), shown, len(draws))
        curves = [("loss", "loss")] + ([("valid_score", "validation log score")] if has_scores else [])
        for i, (name, label) in enumerate(curves):
            axes = figure.add_subplot(grid[i, 1])
            _draw_curves(axes, name, histories, best_epochs)
            axes.set_ylabel(label)
        axes.set_xlabel("epoch")
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11, **LITERAL)
    return figure


def _draw_ridges(axes: Axes, draws: Mapping[str, np.ndarray], total: int) -> None:
    """Draw the first coefficient at the top, with median and 90 % interval below every density."""
    for row, values in enumerate(draws.values()):
        base = len(draws) - 1 - row
        curve = estimate_density(np.asarray(values, np.float64))
        grid, density = curve.on(curve.low, curve.high)
        heights = base + 0.72 * density / density.max()
        axes.fill_between(grid, base, heights, color=FIT, alpha=0.16, linewidth=0)
        axes.plot(grid, heights, color=FIT, linewidth=1.4)
        low, median, high = np.quantile(values, (0.05, 0.5, 0.95))
        axes.plot([low, high], [base - 0.08] * 2, color=FIT, linewidth=2.6, solid_capstyle="butt")
        axes.plot([median], [base - 0.08], "o", color="white", markeredgecolor=FIT, markersize=5)
    axes.axvline(0.0, color=REFERENCE, linewidth=0.9, linestyle=(0, (4, 2)), zorder=0)
    hide_density_axis(axes)
    axes.set_yticks(np.arange(len(draws))[::-1] + 0.15, list(draws), **LITERAL)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.3, len(draws))
    note = f" ({len(draws)} of {total})" if total > len(draws) else ""
    axes.set_xlabel(f"coefficient{note}: median and 90 % interval")


def _draw_curves(
    axes: Axes, name: str, histories: Sequence[Mapping[str, np.ndarray]], best_epochs: Sequence[int]
) -> None:
    values = np.concatenate([history[name] for history in histories])
    for history, best in zip(histories, best_epochs, strict=True):
        marker = "o" if len(history["epoch"]) < 3 else None
        axes.plot(history["epoch"], history[name], color=FIT, linewidth=1.4, marker=marker, alpha=0.9)
        if best:
            axes.axvline(best, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
            axes.plot([best], [history[name][best - 1]], "o", color=ACCENT, markersize=4.5)
    finite = values[np.isfinite(values)]
    if len(finite) > 4:
        # The first epochs lie far below; what matters is the approach to the end.
        bottom, top = np.quantile(finite, 0.05), finite.max()
        axes.set_ylim(bottom - 0.08 * (top - bottom) - 1e-9, top + 0.08 * (top - bottom) + 1e-9)
