"""A calibration in one figure: are the ranks uniform, and how much do the data tell?"""

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
# z-scores beyond this are drawn at the edge.
MAX_Z = 4.5


def plot_calibration(
    calibration: Calibration, var_names: Sequence[str] | str | None = None, prob: float = 0.95
) -> Figure:
    """Plot the distribution of the ranks less that of uniform ones, and z-scores against contraction.

    The line of every quantity should stay inside of its band. A line that rises first and falls below zero then is that
    of a posterior that is too narrow, the mirror image that of one too wide, and an arch that of a posterior off to one
    side. In the last panel every point is one simulation and parameter: points at the right belong to data that tell
    much, points beyond two above or below to posteriors that miss the truth.

    Args:
        calibration: what `bernflow.calibrate` returned.
        var_names: parameters to plot, or single components like "b[2]"; at most 11 in any case, those of the least
            p-values if None.
        prob: probability that a line of uniform ranks stays inside of its band.

    Returns:
        The figure, outside of pyplot's list of open figures: show it in a notebook or call its `savefig`.

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
        figure.suptitle(
            title, x=0.01, ha="left", color=VERDICT_COLORS[calibration.verdict], fontweight="bold", fontsize=11
        )
        if note := leftover_note(len(shown), len(chosen)):
            figure.supxlabel(note, x=0.01, ha="left", fontsize=8.5, color=MUTED)
    return figure


def _choose(calibration: Calibration, var_names: Sequence[str] | str | None) -> list[Quantity]:
    """Return the quantities asked for; all of them, those with the least p-values first where they are too many."""
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
    """Draw the distribution function of the ranks less that of uniform ones, over its band."""
    points, shares = rank_ecdf(quantity.ranks, num_draws)
    # Zero at both ends, where every distribution function is known.
    at = np.concatenate([[0.0], points, [1.0]])
    lower, upper, line = (np.pad(values - points, 1) for values in (band.lower, band.upper, shares))
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
    """Draw one point per simulation and parameter."""
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
