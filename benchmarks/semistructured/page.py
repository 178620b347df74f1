"""The page and the figure of the coverage study: `python -m benchmarks.semistructured.page FOLDER`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from benchmarks.study.stamp import sentence

# Limits of the coverage of a cell.
LOW, HIGH = 0.85, 0.95
NOMINAL = 0.9
TITLE = "# Coverage of effects alongside a network"
INTRODUCTION = """\
How often do 90 % intervals of `bf.SemiStructured` contain the true effect? Each cell has {repeats} simulated data sets
with 8x8 images, a table (age, sex, two doses), and an outcome that depends on both. Images are "shared" if they show
the age (correlation 0.8) and "separate" if they do not. Age has mean 60 and sd 15 ("uncentered") or is standardized.
Networks are small and convolutional; two are cross-fitted for each data set, with few or many epochs. The posterior is
the normal approximation from which the flow starts, in double precision, computed by the functions of the library,
vectorized over data sets. A cell is right if {low:.0%} to {high:.0%} of the intervals of each effect contain the truth.
"Warned" is the fraction of fits with a finding, whose verdict is therefore not "good". As a control, a regression is
given what the images contribute ("known f"): its intervals are right, so what it misses is the chance of {repeats} data
sets. By that chance alone, a right cell fails with probability {chance:.2g}.
"""


def load(folder: Path) -> list[dict[str, Any]]:
    """Return the cells, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def is_right(coverage: Sequence[float]) -> bool:
    """Tell whether the coverage of every effect is within the limits."""
    return all(LOW - 1e-9 <= value <= HIGH + 1e-9 for value in coverage)


def chance_of_failing(repeats: int, num_effects: int) -> float:
    """Return the probability that a cell of exact 90 % intervals is outside of the limits.

    Example:
        >>> round(chance_of_failing(100, 4), 2), round(chance_of_failing(400, 4), 3)
        (0.23, 0.003)
    """
    counts = binom(repeats, NOMINAL)
    inside = counts.cdf(np.floor(HIGH * repeats + 1e-9)) - counts.cdf(np.ceil(LOW * repeats - 1e-9) - 1)
    return float(1 - inside**num_effects)


def write_page(folder: Path, cells: list[dict[str, Any]]) -> Path:
    """Write README.md beside the results."""
    right = [is_right(cell["coverage"]) for cell in cells]
    control = [is_right(cell["coverage_of_the_oracle"]) for cell in cells]
    warned = [cell["warned"] >= 0.5 for cell in cells]
    every = np.concatenate([cell["coverage"] for cell in cells])
    unwarned = np.concatenate([cell["coverage"] for cell, w in zip(cells, warned, strict=True) if not w] or [[np.nan]])
    failing = [_name(cell) for cell, r, w in zip(cells, right, warned, strict=True) if not (r or w)]
    repeats, columns = cells[0]["repeats"], cells[0]["columns"]
    chance = chance_of_failing(repeats, len(columns))
    lines = [
        TITLE,
        "",
        INTRODUCTION.format(repeats=repeats, low=LOW, high=HIGH, chance=chance),
        f"- {sum(right)} of {len(cells)} cells are right; of the {len(cells) - sum(right)} others, "
        f"{sum(w and not r for r, w in zip(right, warned, strict=True))} warn in at least half of their fits.",
        f"- Neither right nor warned: {'; '.join(failing) or 'none'}.",
        f"- With known f, {sum(control)} of {len(cells)} cells are right.",
        f"- Mean coverage over all cells and effects: {every.mean():.3f}; over cells that mostly do not warn: "
        f"{unwarned.mean():.3f}. Lowest: {every.min():.2f}.",
        f"- {sentence([{'machine': cell.get('device'), **cell} for cell in cells])}",
        "",
        "![Coverage by cell](coverage.png)",
        "",
        "| outcome | rows | epochs | images | age | " + " | ".join(columns) + " | with known f | bias of age / sd | "
        "sd / sd with known f | warned |",
        "|---|---|---|---|---|" + "---|" * (len(columns) + 4),
    ]
    for cell in cells:
        bias = (cell["mean"][0] - cell["truth"][0]) / cell["sd"][0]
        wider = cell["sd"][0] / cell["sd_of_the_oracle"][0]
        known = ", ".join(f"{value:.2f}" for value in cell["coverage_of_the_oracle"])
        covered = " | ".join(f"{value:.2f}" for value in cell["coverage"])
        lines.append(
            f"| {cell['outcome']} | {cell['num_rows']:,} | {cell['epochs']} | {cell['pictures']} | {cell['age']} "
            f"| {covered} | {known} | {bias:+.2f} | {wider:.2f} | {cell['warned']:.2f} |"
        )
    path = folder / "README.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def _name(cell: dict[str, Any]) -> str:
    return f"{cell['outcome']}, {cell['num_rows']:,} rows, {cell['epochs']} epochs, {cell['pictures']}, {cell['age']}"


def draw(folder: Path, cells: list[dict[str, Any]]) -> Path:
    """Draw the coverage of every effect by cell."""
    from matplotlib.figure import Figure

    from bernflow.plots.style import ACCENT, FIT, house_style

    with house_style():
        figure = Figure(figsize=(9.0, 0.24 * len(cells) + 1.4), layout="constrained")
        axes = figure.subplots()
        axes.axvspan(LOW, HIGH, color=FIT, alpha=0.12, linewidth=0)
        axes.axvline(NOMINAL, color=FIT, linewidth=0.9)
        for row, cell in enumerate(cells):
            color = ACCENT if cell["warned"] >= 0.5 else FIT
            axes.plot(cell["coverage"], [row] * len(cell["coverage"]), "o", color=color, markersize=4, alpha=0.8)
        axes.set_yticks(range(len(cells)), [_name(cell) for cell in cells], fontsize=7)
        axes.invert_yaxis()
        axes.set_xlabel("share of 90 % intervals that contain the truth; orange: most fits warn")
        path = folder / "coverage.png"
        figure.savefig(path, dpi=130)
    return path


def main(folder: Path) -> None:
    """Make both."""
    cells = load(folder)
    if not cells:
        raise SystemExit(f"{folder} has no results: run `python -m benchmarks.semistructured.coverage {folder}` first.")
    print(draw(folder, cells))
    print(write_page(folder, cells))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
