"""Steps per second, growth, rows and restarts in one picture."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.speed import growth, rows, steps
from benchmarks.speed.clock import median_of
from benchmarks.study.records import Record

# Ours and others' (Okabe and Ito).
OURS, OTHERS, GRID = "#0072B2", "#D55E00", "#BBBBBB"
# By part and case: title and name of the axis.
PANELS = {
    ("growth", "p"): ("Parameters", "parameters p"),
    ("growth", "M"): ("Order of the polynomials", "order M"),
    ("growth", "S"): ("Draws per step", "draws S"),
    ("rows", rows.MEMORY): ("Data in memory", "rows N"),
    ("rows", rows.STREAMED): ("Data streamed in batches", "rows N"),
    ("restarts", growth.RESTARTS): ("Starts trained at once", "starts"),
}
MAX_COLUMNS = 3
# The vertical axes span at least this factor, so that differences of a few percent look small.
LEAST_SPAN = 30.0


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
    # Four panels are two rows of two, so that no place is empty.
    columns = next((n for n in range(min(num, MAX_COLUMNS), 1, -1) if num % n == 0), min(num, MAX_COLUMNS))
    num_rows = -(-num // columns)
    figure = Figure(figsize=(3.4 * columns, 2.8 * num_rows), layout="constrained")
    panels = list(figure.subplots(num_rows, columns, squeeze=False).ravel())
    if by_part["steps"]:
        _draw_steps(panels.pop(0), by_part["steps"])
    for (title, label), (sizes, seconds) in curves.items():
        _draw_curve(panels.pop(0), title, label, sizes, seconds)
    for axes in panels:
        axes.remove()
    return figure


def _draw_steps(axes: Axes, records: Sequence[Record]) -> None:
    found = {subject: 1.0 / seconds for (_, subject), seconds in median_of(records, "seconds").items()}
    names = [name for name in steps.LABELS if name in found]
    for place, name in enumerate(names):
        color = OTHERS if name in steps.RIVALS else OURS
        axes.plot([found[name]], [place], "o", color=color, markersize=6)
        axes.annotate(
            f"{found[name]:,.0f}", (found[name], place), (0, 6), textcoords="offset points", ha="center", fontsize=7.5
        )
        axes.axhline(place, color="#E3E3E3", linewidth=0.7, zorder=0)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.7)
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("log")
    axes.set_xlim(min(found.values()) / 2.5, max(found.values()) * 2.5)
    _set_ticks(axes.xaxis)
    axes.set_xlabel("steps per second")
    axes.set_title("Speed of training")


def _draw_curve(axes: Axes, title: str, label: str, sizes: Sequence[float], seconds: Sequence[float]) -> None:
    cost = [1e3 * value for value in seconds]
    axes.plot(sizes, cost, marker="o", color=OURS, markersize=4, linewidth=1.4)
    # A line of slope one through the last point tells linear growth from other; the data choose what is seen of it.
    proportional = [cost[-1] * size / sizes[-1] for size in sizes]
    axes.plot(sizes, proportional, color=GRID, linestyle="--", linewidth=1.1, zorder=0, label="in proportion")
    axes.legend(loc="upper left", frameon=False, fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    middle = math.sqrt(min(cost) * max(cost))
    span = max(math.sqrt(LEAST_SPAN), 2.0 * max(cost) / middle)
    axes.set_ylim(middle / span, middle * span)
    _set_ticks(axes.xaxis)
    _set_ticks(axes.yaxis)
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.set_ylabel("ms per step")


def _set_ticks(axis: Axis) -> None:
    """Label powers of ten and, on short axes, numbers between them, as plain numbers."""
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low)
    inner = (1.0, 2.0, 5.0) if decades < 2.0 else (1.0, 3.0) if decades < 2.8 else (1.0,)
    axis.set_major_locator(LogLocator(base=10.0, subs=inner, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _write(value)))
    axis.set_minor_formatter(NullFormatter())


def _write(value: float) -> str:
    """Write a number in full, but large powers of ten as such."""
    power = round(math.log10(value))
    return f"$10^{{{power}}}$" if value >= 1e4 and math.isclose(value, 10.0**power) else f"{value:,g}"
