"""The paper's drawing of its networks (Figure "nn"), and beside it the Bernstein flow of this package."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Polygon

from bernflow.plots.style import ACCENT, FIT, MUTED, REFERENCE, house_style

# The drawing is laid out in inches, at the width of a page.
WIDTH, HEIGHT = 7.0, 6.15
RADIUS = 0.17
TEXT = 8.0
INPUT_FILL, HIDDEN_FILL, OUTPUT_FILL = "#EDEDED", "#D6E6F2", "#F8DFCE"

# The convolutional network of the paper's melanoma experiment: 419,489 trainable weights.
IMAGE_SIZE = 128
CHANNELS = (32, 32, 64, 64, 128)
DENSE_UNITS = (128, 128)

Point = tuple[float, float]


def draw_architectures() -> Figure:
    """Draw the networks of the paper's experiments and the Bernstein flow as block diagrams.

    a) the network with one hidden layer of the non-linear regression, b) the one without for tabular data, c) the
    convolutional network of the melanoma experiment, d) the flow of this package for dimension j.

    Example:
        >>> draw_architectures().get_size_inches().tolist()
        [7.0, 6.15]
    """
    with house_style():
        figure = Figure(figsize=(WIDTH, HEIGHT))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(0.0, WIDTH), ylim=(0.0, HEIGHT))
        axes.axis("off")
        _draw_hidden(axes, (0.1, 4.32))
        _draw_linear(axes, (3.75, 4.32))
        _draw_convolutional(axes, (0.1, 2.12))
        _draw_flow(axes, (0.1, 0.1))
    return figure


def _draw_hidden(axes: Axes, origin: Point) -> None:
    """Draw a): one input, three sigmoid units, one output."""
    left, bottom = origin
    _title(axes, left, bottom + 1.68, "a", "Dense network, one hidden layer")
    middle = bottom + 0.82
    first = [(left + 0.55, middle)]
    hidden = [(left + 1.6, middle + offset) for offset in (0.47, 0.0, -0.47)]
    last = [(left + 2.65, middle)]
    _connect(axes, first, hidden)
    _connect(axes, hidden, last)
    _unit(axes, first[0], "$x$", INPUT_FILL)
    for place in hidden:
        _unit(axes, place, r"$\sigma$", HIDDEN_FILL)
    _unit(axes, last[0], r"$\mu$", OUTPUT_FILL)
    for (across, _), text in zip((*first, hidden[0], *last), ("input", "3 sigmoid units", "output"), strict=True):
        _write(axes, (across, bottom + 0.03), text, color=MUTED)


def _draw_linear(axes: Axes, origin: Point) -> None:
    """Draw b): tabular inputs, no hidden layer, one output."""
    left, bottom = origin
    _title(axes, left, bottom + 1.68, "b", "Dense network, no hidden layer")
    middle = bottom + 0.82
    inputs = [(left + 0.75, middle + 0.47), (left + 0.75, middle + 0.05), (left + 0.75, middle - 0.47)]
    output = (left + 2.15, middle)
    _connect(axes, inputs, [output])
    for place, text in zip(inputs, ("$x_1$", "$x_2$", "$x_k$"), strict=True):
        _unit(axes, place, text, INPUT_FILL)
    _write(axes, (left + 0.75, middle - 0.2), "\N{VERTICAL ELLIPSIS}")
    _unit(axes, output, "$h$", OUTPUT_FILL)
    _write(axes, (left + 1.5, middle + 0.42), r"$\beta_1$")
    _write(axes, (left + 1.5, middle - 0.42), r"$\beta_k$")
    _write(axes, (left + 0.75, bottom + 0.03), "tabular data", color=MUTED)
    _write(axes, (left + 2.15, bottom + 0.03), r"$h = \mu_0 + \beta^\top x$", color=MUTED)


def _draw_convolutional(axes: Axes, origin: Point) -> None:
    """Draw c): five blocks of convolution and pooling, two dense layers, one output."""
    left, bottom = origin
    _title(axes, left, bottom + 1.82, "c", "Convolutional network for images")
    middle = bottom + 0.82
    sizes = [IMAGE_SIZE, *(IMAGE_SIZE // 2 ** (i + 1) for i in range(len(CHANNELS)))]
    across = left + 0.12
    edges: list[tuple[float, float]] = []
    for size, channels in zip(sizes, (3, *CHANNELS), strict=True):
        # Heights follow the logarithm of the size, so that 4 x 4 can still be seen.
        height, width = 0.16 * np.log2(size) - 0.08, 0.05 + 0.0032 * channels
        fill = INPUT_FILL if size == IMAGE_SIZE else HIDDEN_FILL
        end = _cuboid(axes, (across, middle), width, height, fill)
        text = f"{size}\N{MULTIPLICATION SIGN}{size}\n\N{MULTIPLICATION SIGN}{channels}"
        _write(axes, ((across + end) / 2, bottom + 0.03), text, color=MUTED, size=7.0)
        edges.append((across, end))
        across = end + 0.36
    flat = across
    _bar(axes, (flat, middle), 0.09, 1.16, HIDDEN_FILL)
    dense = [flat + 0.62, flat + 1.16]
    for place in dense:
        _bar(axes, (place, middle), 0.12, 0.82, HIDDEN_FILL)
    output = (dense[-1] + 0.62, middle)
    _unit(axes, output, "$h$", OUTPUT_FILL)
    texts = [f"flatten\n{sizes[-1] ** 2 * CHANNELS[-1]}", *(f"dense\n{units}" for units in DENSE_UNITS), "output"]
    for place, text in zip((flat, *dense, output[0]), texts, strict=True):
        _write(axes, (place, bottom + 0.03), text, color=MUTED, size=7.0)
    for (_, end), (start, _) in pairwise(edges):
        _arrow(axes, (end - 0.05, middle), (start - 0.01, middle))
    _arrow(axes, (edges[-1][1], middle), (flat - 0.06, middle))
    _arrow(axes, (flat + 0.06, middle), (dense[0] - 0.07, middle))
    _arrow(axes, (dense[0] + 0.07, middle), (dense[1] - 0.07, middle))
    _arrow(axes, (dense[1] + 0.07, middle), (output[0] - RADIUS, middle))
    times = "\N{MULTIPLICATION SIGN}"
    block = f"five blocks: 3{times}3 convolution, tanh, batch norm, 2{times}2 max pooling"
    _bracket(axes, edges[1][0], edges[-1][1], bottom + 1.5, block)
    _bracket(axes, dense[0] - 0.12, dense[1] + 0.12, bottom + 1.5, "tanh, batch\nnorm, dropout")


def _draw_flow(axes: Axes, origin: Point) -> None:
    """Draw d): the Bernstein flow for dimension j."""
    left, bottom = origin
    _title(axes, left, bottom + 1.7, "d", "Bernstein flow, dimension $j$")
    row, width, height = bottom + 1.1, 1.2, 0.62
    starts = [left + 0.68 + i * 1.46 for i in range(4)]
    blocks = (
        ("inner affine", r"$2c\,t_j = \mathrm{e}^{a_j} z_j + b_j + c$"),
        ("polynomial", r"$e_j = s_j + \sum \vartheta_i B_{i,M}(t_j)$"),
        ("linear terms", r"$y_j = \mathrm{e}^{r_j + (Re)_j}(e + Se)_j$"),
        ("outer affine", r"$x = \mu + L\,y$"),
    )
    source, sink = (left + 0.2, row), (left + 6.6, row)
    _unit(axes, source, "$z_j$", INPUT_FILL)
    _unit(axes, sink, "$x_j$", OUTPUT_FILL)
    for start, (name, formula) in zip(starts, blocks, strict=True):
        _block(axes, (start + width / 2, row), width, height, name, formula)
    stops = [source[0] + RADIUS, *(value for start in starts for value in (start, start + width)), sink[0] - RADIUS]
    for start, end in zip(stops[::2], stops[1::2], strict=True):
        _arrow(axes, (start, row), (end, row))
    # The network below sees the earlier dimensions alone.
    low = bottom + 0.2
    earlier = (left + 0.2 + 0.3, low)
    network = (starts[1] + width / 2, low)
    _write(axes, earlier, r"$z_1, \ldots, z_{j-1}$", size=9.0)
    _block(axes, network, 1.5, 0.4, "masked network", "two tanh layers", fill="white", edge=ACCENT)
    _arrow(axes, (earlier[0] + 0.42, low), (network[0] - 0.75, low), ACCENT)
    _arrow(axes, (network[0], low + 0.2), (network[0], row - height / 2), ACCENT)
    _write(axes, (network[0] - 0.08, low + 0.4), r"shift $s_j$, coefficients $\vartheta_i$", color=ACCENT, ha="right")
    linear = starts[2] + width / 2
    scale = linear - 0.38
    axes.plot([network[0] + 0.75, scale], [low, low], color=ACCENT, linewidth=0.9, solid_capstyle="butt")
    _arrow(axes, (scale, low), (scale, row - height / 2), ACCENT)
    _write(axes, (scale - 0.08, low + 0.4), "log-scale $r_j$", color=ACCENT, ha="right")
    _write(axes, (linear + 0.2, low), r"$e_1, \ldots, e_{j-1}$", size=9.0)
    _arrow(axes, (linear + 0.2, low + 0.12), (linear + 0.2, row - height / 2), ACCENT)
    outer = starts[3] + width / 2
    _write(axes, (outer, low), r"$y_1, \ldots, y_{j-1}$", size=9.0)
    _arrow(axes, (outer, low + 0.12), (outer, row - height / 2), ACCENT)


def _title(axes: Axes, x: float, y: float, letter: str, text: str) -> None:
    axes.text(x, y, letter, fontweight="bold", fontsize=11, va="center")
    axes.text(x + 0.2, y, text, fontsize=9.5, va="center")


def _write(axes: Axes, place: Point, text: str, color: str = REFERENCE, size: float = TEXT, ha: str = "center") -> None:
    axes.text(*place, text, color=color, fontsize=size, ha=ha, va="center", linespacing=1.15)


def _unit(axes: Axes, place: Point, text: str, fill: str) -> None:
    axes.add_patch(Circle(place, RADIUS, facecolor=fill, edgecolor=REFERENCE, linewidth=0.9, zorder=3))
    axes.text(*place, text, fontsize=9.5, ha="center", va="center", zorder=4)


def _connect(axes: Axes, starts: Sequence[Point], ends: Sequence[Point]) -> None:
    """Draw the weights between two layers."""
    for start in starts:
        for end in ends:
            step = RADIUS * np.subtract(end, start) / np.linalg.norm(np.subtract(end, start))
            _arrow(axes, tuple(np.add(start, step)), tuple(np.subtract(end, step)), MUTED)


def _arrow(axes: Axes, start: Any, end: Any, color: str = REFERENCE) -> None:
    style = "-|>,head_length=3.2,head_width=1.5"
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle=style, color=color, linewidth=0.9, shrinkA=0, shrinkB=0, zorder=2)
    )


def _block(
    axes: Axes, middle: Point, width: float, height: float, name: str, below: str, fill: str = HIDDEN_FILL, edge=FIT
) -> None:
    """Draw a rounded box with a name and a smaller line below it."""
    corner = (middle[0] - width / 2, middle[1] - height / 2)
    look: dict[str, Any] = {"facecolor": fill, "edgecolor": edge, "linewidth": 1.0, "zorder": 3}
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle="round,pad=0,rounding_size=0.06", **look))
    axes.text(middle[0], middle[1] + 0.22 * height, name, fontsize=8.5, ha="center", va="center", zorder=4)
    axes.text(middle[0], middle[1] - 0.22 * height, below, fontsize=TEXT, ha="center", va="center", zorder=4)


def _bar(axes: Axes, middle: Point, width: float, height: float, fill: str) -> None:
    corner = (middle[0] - width / 2, middle[1] - height / 2)
    look: dict[str, Any] = {"facecolor": fill, "edgecolor": REFERENCE, "linewidth": 0.9, "zorder": 3}
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle="round,pad=0,rounding_size=0.03", **look))


def _cuboid(axes: Axes, place: Point, width: float, height: float, fill: str) -> float:
    """Draw feature maps as a box seen from the side: its width are the channels; return its right end."""
    across, up = 0.22 * height, 0.16 * height
    x, y = place[0], place[1] - (height + up) / 2
    front = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
    top = [
        (x, y + height),
        (x + width, y + height),
        (x + width + across, y + height + up),
        (x + across, y + height + up),
    ]
    side = [
        (x + width, y),
        (x + width + across, y + up),
        (x + width + across, y + height + up),
        (x + width, y + height),
    ]
    for face, alpha in ((front, 1.0), (top, 0.75), (side, 0.5)):
        axes.add_patch(Polygon(face, facecolor="white", edgecolor="none", zorder=2.5))
        axes.add_patch(Polygon(face, facecolor=(fill, alpha), edgecolor=REFERENCE, linewidth=0.8, zorder=3))
    return x + width + across


def _bracket(axes: Axes, start: float, end: float, y: float, text: str) -> None:
    """Draw a brace over several parts, with a text above it."""
    axes.plot([start, start, end, end], [y - 0.06, y, y, y - 0.06], color=MUTED, linewidth=0.8)
    axes.text((start + end) / 2, y + 0.05, text, fontsize=TEXT, color=MUTED, ha="center", va="bottom", linespacing=1.1)
