"""The result of a calibration: distribution of the ranks, z-scores and contraction."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bernflow.calibrate.result import DOUBTFUL_P, Calibration, Quantity
from bernflow.diagnostics.uniformity import Band, rank_band, rank_ecdf
from bernflow.errors import ArgumentError
from bernflow.plots.backends import stay_static
from bernflow.plots.components import leftover_note
from bernflow.plots.style import ACCENT, FIT, LITERAL, MUTED, VERDICT_COLORS, HouseFigure, house_style

MAX_PANELS = 11
NUM_COLUMNS = 4
# z-scores are clipped to this range.
MAX_Z = 4.5


def plot_calibration(
    calibration: Calibration, var_names: Sequence[str] | str | None = None, prob: float = 0.95
) -> Figure:
    """Plot the ECDF differences of the ranks from uniformity, and z-scores against contraction.

    The line of every quantity should stay inside its band. A line that first rises and then falls below zero indicates
    a posterior that is too narrow, the mirror image one that is too wide, and an arch a biased posterior. In the last
    panel every point is one simulation and parameter: points on the right belong to informative data, points beyond
    +-2 to posteriors that miss the truth.

    Args:
        calibration: the result of `bernflow.calibrate`.
        var_names: parameters to plot, or single components like "b[2]"; at most 11, those with the smallest p-values
            if None.
        prob: probability that a line of uniform ranks stays inside its band.

    Returns:
        The figure, not managed by pyplot: show it in a notebook or call its `savefig`.

    Example:
        >>> from bernflow.plots import plot_calibration
        >>> found = bf.calibrate(model, y, num_simulations=40, steps=100, progress=False)
        >>> plot_calibration(found).savefig("ranks.png")
    """
    stay_static("plot_calibration")
    chosen = _choose(calibration, var_names)
    shown = chosen[:MAX_PANELS]
    adjusted = calibration.table()["p_holm"]
    band = rank_band(calibration.num_simulations, calibration.num_draws, prob)
    columns = min(NUM_COLUMNS, len(shown) + 1)
    rows = math.ceil((len(shown) + 1) / columns)
    with house_style():
        figure = HouseFigure(figsize=(max(2.5 * columns, 5.2), 2.1 * rows + 0.55), layout="constrained")
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, quantity in zip(grid, shown, strict=False):
            _draw_ranks(axes, quantity, calibration.num_draws, band, bool(adjusted[quantity.label] < DOUBTFUL_P))
        _draw_scores(grid[len(shown)], [q for q in chosen if q.z_scores is not None])
        for axes in grid[len(shown) + 1 :]:
            axes.remove()
        title = f"{calibration.verdict.capitalize()} calibration:  p-value {calibration.p_value:.2g}"
        figure.set_heading(title, VERDICT_COLORS[calibration.verdict])
        figure.set_note(leftover_note(len(shown), len(chosen)))
    return figure


def _choose(calibration: Calibration, var_names: Sequence[str] | str | None) -> list[Quantity]:
    """Return the chosen quantities, or all of them, sorted by p-value if there are too many."""
    quantities = calibration.quantities
    if var_names is None:
        if len(quantities) <= MAX_PANELS:
            return quantities
        order = np.argsort(calibration.table()["p_value"].to_numpy(), kind="stable")
        return [quantities[i] for i in order]
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    found = [q for name in names for q in quantities if name in (q.label, q.label.partition("[")[0])]
    unknown = [name for name in names if not any(name in (q.label, q.label.partition("[")[0]) for q in quantities)]
    if unknown or not found:
        raise ArgumentError(
            f"var_names: {', '.join(map(repr, unknown)) or 'nothing'} is unknown; expected some of "
            f"{', '.join(calibration.ranks)}."
        )
    return found


def _draw_ranks(axes: Axes, quantity: Quantity, num_draws: int, band: Band, is_off: bool) -> None:
    """Draw the difference of the ECDF of the ranks from uniformity, with its band."""
    points, ecdf = rank_ecdf(quantity.ranks, num_draws)
    # The difference is zero at both ends.
    at = np.concatenate([[0.0], points, [1.0]])
    lower, upper, line = (np.pad(values - points, 1) for values in (band.lower, band.upper, ecdf))
    axes.fill_between(at, lower, upper, color=MUTED, alpha=0.18, linewidth=0, label="band of uniform ranks")
    axes.axhline(0.0, color=MUTED, linewidth=0.8)
    axes.plot(at, line, color=ACCENT if is_off else FIT, linewidth=1.5, drawstyle="steps-post", label="ranks")
    limit = 1.15 * max(np.abs(lower).max(), np.abs(upper).max(), np.abs(line).max())
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(-limit, limit)
    axes.set_title(quantity.label, **LITERAL)
    axes.set_xlabel("fractional rank")
    axes.set_ylabel("ECDF difference")
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_locator(MaxNLocator(3))


def _draw_scores(axes: Axes, quantities: list[Quantity]) -> None:
    """Draw z-scores against contraction, one point per simulation and parameter."""
    pairs = [(q.contraction, q.z_scores) for q in quantities if q.contraction is not None and q.z_scores is not None]
    contraction, z = (
        np.concatenate([np.zeros(0), *values]) for values in (zip(*pairs, strict=True) if pairs else ((), ()))
    )
    usable = np.isfinite(contraction) & np.isfinite(z)
    contraction, z = np.clip(contraction[usable], -0.5, 1.0), np.clip(z[usable], -MAX_Z, MAX_Z)
    axes.axhspan(-2.0, 2.0, color=MUTED, alpha=0.12, linewidth=0)
    axes.axhline(0.0, color=MUTED, linewidth=0.8)
    alpha = float(np.clip(60.0 / np.sqrt(max(z.size, 1)) / 10.0, 0.12, 0.7))
    axes.plot(contraction, z, "o", color=FIT, markersize=3.2, markeredgewidth=0, alpha=alpha)
    axes.set_xlim(min(0.0, contraction.min(initial=0.0)) - 0.04, 1.04)
    axes.set_ylim(-MAX_Z - 0.3, MAX_Z + 0.3)
    axes.set_title("all parameters")
    axes.set_xlabel("contraction")
    axes.set_ylabel("z-score")
    axes.xaxis.set_major_locator(MaxNLocator(3))
