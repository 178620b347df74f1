"""Drawing shared by the experiments."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bernflow.experiments.study.plan import Result

# Neighbouring orders of the polynomial get neighbouring colours; dark enough at the light end for a white page.
ORDER_MAP = "viridis"


def new_figure(width: float, height: float) -> Figure:
    """Open a figure (inches)."""
    return Figure(figsize=(width, height), layout="constrained")


def new_axes(figure: Figure, *shape: int, **sharing) -> np.ndarray:
    """Open panels, always a grid of two dimensions."""
    return figure.subplots(*shape, squeeze=False, **sharing)


def order_colors(orders: Sequence[int]) -> dict[int, tuple]:
    """Give every order a colour."""
    places = np.linspace(0.0, 0.85, len(orders))
    return {order: mpl.colormaps[ORDER_MAP](place) for order, place in zip(orders, places, strict=True)}


def draw_loss(axes: Axes, result: Result, label: str, **look) -> None:
    """Draw the loss, -ELBO, over the steps."""
    axes.plot(result["history/step"], -result["history/elbo"], label=label, linewidth=1.3, **look)


def draw_spread(
    axes: Axes, x: Sequence[float], samples: Sequence[np.ndarray], label: str, color, marker: str = "o"
) -> None:
    """Draw the median of repetitions with a bar from the least to the greatest, and every repetition as a faint dot."""
    medians = [float(np.median(values)) for values in samples]
    for place, values in zip(x, samples, strict=True):
        axes.plot(np.full(len(values), place), values, ".", color=color, alpha=0.25, markersize=4, markeredgewidth=0)
    axes.plot(x, medians, marker=marker, color=color, markersize=4.5, linewidth=1.4, label=label)


def label_panels(grid: np.ndarray) -> None:
    """Write A, B, ... above the panels."""
    for axes, letter in zip(grid.flat, "ABCDEFGH", strict=False):
        axes.set_title(letter, loc="left", fontweight="bold")
