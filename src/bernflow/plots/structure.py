"""The dependence structure of a fit: a matrix of the globals and of the blocks of locals."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from bernflow.plots.backends import stay_static
from bernflow.plots.style import ACCENT, FIT, LITERAL, MUTED, HouseFigure, house_style
from bernflow.posterior import Posterior
from bernflow.posterior.structure import NamedStructure, count

# Largest numbers of rows for the globals, for one block, and for all blocks except the last.
MAX_GLOBALS, MAX_MEMBERS, MAX_LOCALS = 10, 6, 12
# Largest number of rows for globals without blocks.
MAX_ALONE = 14
# Characters of a label; height of a row in inches; margin of a cell.
MAX_LABEL, ROW, INSET = 26, 0.2, 0.07
GLOBAL = -1


class MatrixRow(NamedTuple):
    """A row of the figure: a parameter, or a placeholder for omitted ones.

    Attributes:
        label: name of the parameter, or the number of omitted ones.
        group: number of its block, or of the first omitted block; `GLOBAL` for globals.
        last: number of the last omitted block; `group` for all other rows.
        num: number of omitted parameters; 0 for a parameter.
    """

    label: str
    group: int
    last: int
    num: int = 0

    @property
    def stands_for_blocks(self) -> bool:
        """Whether the row is a placeholder for whole blocks."""
        return self.last > self.group


def plot_structure(posterior_or_structure: Posterior | NamedStructure) -> Figure:
    """Plot the dependence structure: globals first, then the locals by block.

    If there are many globals, blocks or members of a block, the first ones and the last one are shown.

    Args:
        posterior_or_structure: a posterior, or its `structure`.

    Returns:
        The figure.

    Example:
        >>> from bernflow.plots import plot_structure
        >>> plot_structure(post).savefig("structure.png")
    """
    stay_static("plot_structure")
    given = posterior_or_structure
    structure = given.structure if isinstance(given, Posterior) else given
    rows = _rows(structure)
    with house_style():
        height = ROW * len(rows)
        figure = HouseFigure(figsize=(height + 3.6, height + 0.9), layout="constrained")
        axes = figure.subplots()
        _draw(axes, rows, structure)
        handles = [Patch(color=FIT, label="globals" if structure.blocks else "dependent on one another")]
        if structure.blocks:
            handles += [Patch(color=FIT, alpha=0.3, label="locals given globals")]
            handles += [Patch(color=ACCENT, alpha=0.85, label="block of locals")]
        if structure.chained:
            handles += [Patch(color=ACCENT, alpha=0.35, label="neighboring blocks")]
        figure.legend(handles=handles, loc="outside lower left", ncols=2, fontsize=8.5, handlelength=1.0)
        figure.set_heading(_heading(structure), size=10.5)
    return figure


def _heading(structure: NamedStructure) -> str:
    if not structure.blocks:
        return f"{count(len(structure.globals), 'parameter')}, all fitted together"
    chain = ", in a chain" if structure.chained else ""
    return f"{count(len(structure.globals), 'global')} and {structure.sizes}{chain}"


def _rows(structure: NamedStructure) -> list[MatrixRow]:
    blocks = structure.blocks
    rows = _members(structure.globals, GLOBAL, MAX_GLOBALS if blocks else MAX_ALONE)
    if len(blocks) == 1:
        return rows + _members(blocks[0], 0, MAX_LOCALS)
    shown = 0
    for number, block in enumerate(blocks[:-1]):
        own = _members(block, number, MAX_MEMBERS)
        if shown + len(own) > MAX_LOCALS and number:
            last = len(blocks) - 2
            left_out = sum(map(len, blocks[number:-1]))
            rows.append(MatrixRow(f"{count(last - number + 1, 'more block')}", number, last, left_out))
            break
        rows += own
        shown += len(own)
    return rows + (_members(blocks[-1], len(blocks) - 1, MAX_MEMBERS) if blocks else [])


def _members(names: Sequence[str], group: int, most: int) -> list[MatrixRow]:
    """Return a row for every name or, if there are too many, for the first ones and the last one."""
    if len(names) <= most:
        return [MatrixRow(_short(name), group, group) for name in names]
    num = len(names) - most + 1
    first, last = names[: most - 2], names[-1]
    return [
        *(MatrixRow(_short(name), group, group) for name in first),
        MatrixRow(f"{num:,} more", group, group, num),
        MatrixRow(_short(last), group, group),
    ]


def _short(name: str) -> str:
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"


def _draw(axes: Axes, rows: Sequence[MatrixRow], structure: NamedStructure) -> None:
    for i, first in enumerate(rows):
        for j, second in enumerate(rows):
            look = _look(first, second, structure.chained)
            if look is not None:
                size = 1 - 2 * INSET
                axes.add_patch(Rectangle((j + INSET, i + INSET), size, size, linewidth=0, **look))
        if first.num:
            dots = [i + 0.25, i + 0.5, i + 0.75]
            color = "white" if not first.stands_for_blocks else MUTED
            axes.plot(dots, dots, "o", color=color, markersize=1.8, markeredgewidth=0)
    axes.set_xlim(0, len(rows))
    axes.set_ylim(len(rows), 0)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [row.label for row in rows], fontsize=8, **LITERAL)
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        if row.num:
            label.set_color(MUTED)
            label.set_fontstyle("italic")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _brackets(axes, rows, structure)


def _look(first: MatrixRow, second: MatrixRow, chained: bool) -> dict[str, Any] | None:
    """Return the style of a cell; None if two rows are independent given the globals."""
    if GLOBAL in (first.group, second.group):
        return {"facecolor": FIT, "alpha": 1.0 if first.group == second.group else 0.3}
    if first.group == second.group and not first.stands_for_blocks:
        return {"facecolor": ACCENT, "alpha": 0.85}
    early, late = (first, second) if first.group <= second.group else (second, first)
    if chained and late.group - early.last == 1:
        return {"facecolor": ACCENT, "alpha": 0.35}
    return None


def _brackets(axes: Axes, rows: Sequence[MatrixRow], structure: NamedStructure) -> None:
    """Label globals and locals at the right."""
    num = sum(row.group == GLOBAL for row in rows)
    spans = [(0, num, count(len(structure.globals), "global"))]
    if structure.blocks:
        spans.append((num, len(rows), structure.sizes.replace(" of ", "\nof ", 1)))
    where = len(rows) + 0.35
    for begin, end, text in spans:
        axes.plot([where, where], [begin + 0.15, end - 0.15], color=MUTED, linewidth=1.0, clip_on=False)
        axes.text(where + 0.35, (begin + end) / 2, text, va="center", fontsize=8.5, color="#333333")
