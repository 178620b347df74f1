"""Steps per second, growth, rows and restarts in one picture."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.speed import growth, rows, steps
from benchmarks.speed.clock import median_of
from benchmarks.study.records import Record

# Ours and others' (Okabe and Ito).
OURS, OTHERS, GRID = "#0072B2", "#D55E00", "#BBBBBB"
PANELS = {
    ("growth", "p"): "parameters p",
    ("growth", "M"): "order M",
    ("growth", "S"): "particles S",
    ("rows", rows.MEMORY): "rows N, in memory",
    ("rows", rows.STREAMED): "rows N, streamed",
    ("restarts", growth.RESTARTS): "restarts",
}
NUM_COLUMNS = 3


def draw(records: Sequence[Record]) -> Figure | None:
    """Draw a panel per curve and one of steps per second; None where there is nothing to draw."""
    by_part = {part: [r for r in records if r["part"] == part] for part in ("steps", "growth", "rows", "restarts")}
    curves = {
        label: found
        for (part, case), label in PANELS.items()
        if len((found := growth.curve(by_part[part], case))[0]) > 1
    }
    num = len(curves) + bool(by_part["steps"])
    if num == 0:
        return None
    num_rows = -(-num // NUM_COLUMNS)
    figure = Figure(figsize=(3.4 * min(num, NUM_COLUMNS), 2.9 * num_rows), layout="constrained")
    panels = list(figure.subplots(num_rows, min(num, NUM_COLUMNS), squeeze=False).ravel())
    if by_part["steps"]:
        _draw_steps(panels.pop(0), by_part["steps"])
    for label, (sizes, seconds) in curves.items():
        _draw_curve(panels.pop(0), label, sizes, seconds)
    for axes in panels:
        axes.set_visible(False)
    return figure


def _draw_steps(axes: Axes, records: Sequence[Record]) -> None:
    found = {subject: 1.0 / seconds for (_, subject), seconds in median_of(records, "seconds").items()}
    names = [name for name in steps.LABELS if name in found]
    colors = [OTHERS if name in steps.RIVALS else OURS for name in names]
    axes.barh(range(len(names)), [found[name] for name in names], color=colors)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(left=10.0 ** math.floor(math.log10(min(found.values())) - 0.5))
    axes.set_xlabel("steps per second")


def _draw_curve(axes: Axes, label: str, sizes: Sequence[float], seconds: Sequence[float]) -> None:
    cost = [1e3 * value for value in seconds]
    axes.plot(sizes, cost, marker="o", color=OURS, markersize=4, linewidth=1.4)
    # A line of slope one through the last point tells linear growth from other; the data choose what is seen of it.
    proportional = [cost[-1] * size / sizes[-1] for size in sizes]
    axes.plot(sizes, proportional, color=GRID, linestyle="--", linewidth=1.1, zorder=0, label="in proportion")
    axes.legend(loc="upper left", frameon=False, fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(min(cost) / 3.0, max(cost) * 3.0)
    # Between two powers of ten numbers would run into each other.
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)
    axes.set_ylabel("ms per step")
