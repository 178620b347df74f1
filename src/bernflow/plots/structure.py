"""Which parameters a fit lets depend on one another: a matrix of the globals and of the blocks of locals."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from bernflow.plots.backends import stay_static
from bernflow.plots.style import ACCENT, FIT, LITERAL, MUTED, HouseFigure, house_style
from bernflow.posterior import Posterior
from bernflow.posterior.structure import NamedStructure, count

# Rows of the picture: so many of the globals, of one block, and of all blocks but the last.
MAX_GLOBALS, MAX_MEMBERS, MAX_LOCALS = 10, 6, 12
# Without other blocks there is room for more rows.
MAX_ALONE = 14
# Letters of a label; inches of a row; part of a cell that stays empty.
MAX_LABEL, ROW, INSET = 26, 0.2, 0.07
GLOBAL = -1


class Row(NamedTuple):
    """A row of the picture: a parameter, or those left out in its place.

    Attributes:
        label: its name, or how many are left out.
        group: number of its block, `GLOBAL` for globals; of blocks that are left out, that of the first.
        last: number of the last block that is left out here; `group` for all other rows.
        num: number of parameters that are left out; 0 for a parameter.
    """

    label: str
    group: int
    last: int
    num: int = 0

    @property
    def stands_for_blocks(self) -> bool:
        """Whether whole blocks are left out here."""
        return self.last > self.group


def plot_structure(posterior_or_structure: Posterior | NamedStructure) -> Figure:
    """Plot which parameters may depend on one another: globals first, then the locals block by block.

    Of many globals, blocks or members of a block, the first ones and the last one are shown.

    Args:
        posterior_or_structure: a posterior, or its `structure`.

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
        figure.suptitle(_heading(structure), x=0.01, ha="left", fontweight="bold", fontsize=10.5)
    return figure


def _heading(structure: NamedStructure) -> str:
    if not structure.blocks:
        return f"{count(len(structure.globals), 'parameter')}, all fitted together"
    chain = ", in a chain" if structure.chained else ""
    return f"{count(len(structure.globals), 'global')} and {structure.sizes}{chain}"


def _rows(structure: NamedStructure) -> list[Row]:
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
            rows.append(Row(f"{count(last - number + 1, 'more block')}", number, last, left_out))
            break
        rows += own
        shown += len(own)
    return rows + (_members(blocks[-1], len(blocks) - 1, MAX_MEMBERS) if blocks else [])


def _members(names: Sequence[str], group: int, most: int) -> list[Row]:
    """Return a row for every name or, of too many, for the first ones and the last one."""
    if len(names) <= most:
        return [Row(_short(name), group, group) for name in names]
    num = len(names) - most + 1
    first, last = names[: most - 2], names[-1]
    return [
        *(Row(_short(name), group, group) for name in first),
        Row(f"{num:,} more", group, group, num),
        Row(_short(last), group, group),
    ]


def _short(name: str) -> str:
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"


def _draw(axes: Axes, rows: Sequence[Row], structure: NamedStructure) -> None:
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


def _look(first: Row, second: Row, chained: bool) -> dict[str, Any] | None:
    """Return how a cell looks; None where two rows are independent given the globals."""
    if GLOBAL in (first.group, second.group):
        return {"facecolor": FIT, "alpha": 1.0 if first.group == second.group else 0.3}
    if first.group == second.group and not first.stands_for_blocks:
        return {"facecolor": ACCENT, "alpha": 0.85}
    early, late = (first, second) if first.group <= second.group else (second, first)
    if chained and late.group - early.last == 1:
        return {"facecolor": ACCENT, "alpha": 0.35}
    return None


def _brackets(axes: Axes, rows: Sequence[Row], structure: NamedStructure) -> None:
    """Say at the right which rows are globals and which are locals."""
    num = sum(row.group == GLOBAL for row in rows)
    spans = [(0, num, count(len(structure.globals), "global"))]
    if structure.blocks:
        spans.append((num, len(rows), structure.sizes.replace(" of ", "\nof ", 1)))
    where = len(rows) + 0.35
    for begin, end, text in spans:
        axes.plot([where, where], [begin + 0.15, end - 0.15], color=MUTED, linewidth=1.0, clip_on=False)
        axes.text(where + 0.35, (begin + end) / 2, text, va="center", fontsize=8.5, color="#333333")
