"""Drawing shared by the experiments."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.study.methods import METHODS, TRUTH
from benchmarks.study.plan import Result
from benchmarks.study.writing import write_whole

# Neighboring orders of the polynomial get neighboring colors; dark enough at the light end for a white page.
ORDER_MAP = "viridis"
PICTURE_DPI = 130


def new_figure(width: float, height: float) -> Figure:
    """Open a figure (inches)."""
    return Figure(figsize=(width, height), layout="constrained")


def write_figure(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as PNG and as SVG, each whole."""
    # A white ground and no date: pictures read on a dark page and do not change from run to run.
    look: dict[str, Any] = {"facecolor": "white", "dpi": PICTURE_DPI}
    for ending, metadata in (("png", None), ("svg", {"Date": None})):
        save = partial(figure.savefig, format=ending, metadata=metadata, **look)
        write_whole(folder / f"{name}.{ending}", save)


def new_axes(figure: Figure, *shape: int, **sharing) -> np.ndarray:
    """Open panels, always a grid of two dimensions."""
    return figure.subplots(*shape, squeeze=False, **sharing)


def order_colors(orders: Sequence[int]) -> dict[int, tuple]:
    """Give every order a color."""
    places = np.linspace(0.0, 0.85, len(orders))
    return {order: mpl.colormaps[ORDER_MAP](place) for order, place in zip(orders, places, strict=True)}


def draw_losses(
    curves: Mapping[str, Mapping[int, Result]], gaussian: Result, log_evidence: float, height: float
) -> Figure:
    """Draw the loss, -ELBO, over the steps: the paper's recipe, and beside it bernflow, ten times closer.

    Args:
        curves: by method and order of the polynomial.
        gaussian: the Gaussian fit.
        log_evidence: what the ELBO approaches.
        height: how far above the end the first panel reaches.
    """
    figure = new_figure(7.0, 2.9)
    grid = new_axes(figure, 1, 2)[0]
    for axes, (method, by_order), reach in zip(grid, curves.items(), (height, height / 10.0), strict=True):
        colors = order_colors(list(by_order))
        for order, result in by_order.items():
            _draw_loss(axes, result, f"M = {order}", color=colors[order])
        _draw_loss(axes, gaussian, "Gaussian-VI", color=METHODS["gaussian"].color, linestyle="--")
        axes.axhline(-log_evidence, color=TRUTH, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.set_title(METHODS[method].label)
        axes.set_xlabel("epoch" if method == "paper" else "step")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_ylim(-log_evidence - reach / 20.0, -log_evidence + reach)
    grid[0].set_ylabel("loss (-ELBO)")
    grid[0].legend(fontsize=8)
    return figure


def _draw_loss(axes: Axes, result: Result, label: str, **look: Any) -> None:
    axes.plot(result["history/step"], -result["history/elbo"], label=label, linewidth=1.3, **look)


def draw_spread(
    axes: Axes, x: Sequence[float], samples: Sequence[np.ndarray], label: str, color, marker: str = "o"
) -> None:
    """Draw the median of repetitions with a bar from the least to the greatest, and every repetition as a faint dot."""
    medians = [float(np.median(values)) for values in samples]
    for place, values in zip(x, samples, strict=True):
        axes.plot(np.full(len(values), place), values, ".", color=color, alpha=0.25, markersize=4, markeredgewidth=0)
    axes.plot(x, medians, marker=marker, color=color, markersize=4.5, linewidth=1.4, label=label)
