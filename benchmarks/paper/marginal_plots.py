"""Marginal posteriors side by side: boxes of several methods for every parameter."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

QUANTILES = (0.025, 0.25, 0.5, 0.75, 0.975)


def draw_boxes(
    axes: Axes, columns: Sequence[str], groups: Mapping[str, tuple[Sequence[np.ndarray], str]], width: float = 0.8
) -> list[Line2D]:
    """Draw, for every column, one box per group: median, middle half (thick), middle 95 % (thin).

    Args:
        axes: where to draw.
        columns: the names below the columns.
        groups: by label, the draws of every column and the colour.
        width: share of a column that the boxes take.

    Returns:
        Handles for a legend.
    """
    handles = []
    offsets = (np.arange(len(groups)) + 0.5) / len(groups) * width - width / 2
    for offset, (label, (samples, color)) in zip(offsets, groups.items(), strict=True):
        x = np.arange(len(columns)) + offset
        low, q1, median, q3, high = np.array([np.quantile(values, QUANTILES) for values in samples]).T
        axes.vlines(x, low, high, color=color, linewidth=0.9)
        axes.vlines(x, q1, q3, color=color, linewidth=3.6)
        axes.plot(x, median, "o", color="white", markeredgecolor=color, markersize=3.4)
        handles.append(Line2D([], [], color=color, linewidth=3.6, label=label))
    axes.set_xticks(np.arange(len(columns)), columns)
    axes.set_xlim(-0.6, len(columns) - 0.4)
    return handles
