"""Tables that become CSV for programs and Markdown or HTML for people."""

import csv
import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows under named columns; a cell is text, a number, or None where there is nothing to say.

    Attributes:
        columns: the headings.
        rows: the cells.
        digits: significant digits of numbers for people; the CSV file keeps them all.
        best: marks, by (row, column), the cells shown in bold.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    digits: int = 3
    best: frozenset[tuple[int, int]] = frozenset()

    def to_csv(self) -> str:
        """Write comma-separated values."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([["" if cell is None else cell for cell in row] for row in self.rows])
        return out.getvalue()

    def to_markdown(self) -> str:
        """Write a Markdown table."""
        lines = [[_markdown_cell(name) for name in self.columns], ["---"] * len(self.columns)]
        for i, row in enumerate(self.rows):
            cells = [_markdown_cell(self._text(cell)) for cell in row]
            lines.append([f"**{text}**" if (i, j) in self.best and text else text for j, text in enumerate(cells)])
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"

    def to_html(self) -> str:
        """Write an HTML table."""
        kinds = [_kind([row[j] for row in self.rows]) for j in range(len(self.columns))]
        head = "".join(
            f"<th scope='col'{kind}>{html.escape(name)}</th>" for name, kind in zip(self.columns, kinds, strict=True)
        )
        body = []
        for i, row in enumerate(self.rows):
            cells = []
            for j, cell in enumerate(row):
                text = html.escape(self._text(cell))
                text = f"<strong>{text}</strong>" if (i, j) in self.best and text else text
                cells.append(f"<td{_kind([cell])}>{text}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"

    def _text(self, cell: Any) -> str:
        if isinstance(cell, float):
            return number(cell, self.digits)
        return "" if cell is None else str(cell)


def _markdown_cell(text: str) -> str:
    """Return a text on one line that begins neither a column nor a tag, as messages of errors may."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(text.split())).replace("|", "\\|")


def _kind(cells: Sequence[Any]) -> str:
    """Return the class of cells that hold numbers, or nothing."""
    given = [cell for cell in cells if cell is not None]
    return " class='number'" if given and all(isinstance(cell, int | float) for cell in given) else ""


def number(value: float, digits: int = 3) -> str:
    """Write a number for people: significant digits, no more than needed, infinity as a sign."""
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.{digits - 1}e}"
    if abs(value) < 1e-3:
        return f"{value:.{max(digits - 2, 0)}e}"
    return f"{value:.{max(digits - 1 - math.floor(math.log10(abs(value))), 0)}f}"


@dataclass(frozen=True)
class Claim:
    """A figure of the paper beside ours.

    Attributes:
        quantity: what was measured.
        paper: the paper's value; None where it gives none.
        ours: bernflow's value.
        unit_better: "smaller" or "larger" values are better.
        recipe: the value of the paper's own recipe as we ran it, where it was run.
        tolerance: differences up to this are no difference.
        note: what a reader has to know.
    """

    quantity: str
    paper: float | None
    ours: float
    recipe: float | None = None
    unit_better: str = "smaller"
    tolerance: float = 0.0
    note: str = ""

    def winner(self) -> str:
        """Say which of the paper's value and ours is better."""
        reference = self.paper if self.paper is not None else self.recipe
        if reference is None:
            return ""
        name = "paper" if self.paper is not None else "paper's recipe"
        gain = reference - self.ours if self.unit_better == "smaller" else self.ours - reference
        if math.isnan(gain) or abs(gain) <= self.tolerance:
            return "equal"
        return "bernflow" if gain > 0 else name


def claims_table(claims: Sequence[Claim]) -> Table:
    """Put claims into a table."""
    columns = ("quantity", "paper", "paper's recipe, run here", "bernflow", "better", "note")
    rows = [(c.quantity, c.paper, c.recipe, c.ours, c.winner(), c.note) for c in claims]
    return Table(columns, rows)
