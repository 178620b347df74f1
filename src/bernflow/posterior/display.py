"""How a posterior shows itself in a terminal and in a notebook."""

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from bernflow.diagnostics.summaries import summarize
from bernflow.diagnostics.verdict import USABLE_KHAT, Diagnostics
from bernflow.text import printable

MAX_ROWS = 10
COLUMNS, QUANTILES = ("mean", "sd", "5%", "95%"), (0.05, 0.95)
# Those of the plots, dark enough for white letters on them, and so for light and dark pages; a sign tells them apart
# without color.
COLORS = {"good": "#0072B2", "usable": "#8A5C00", "poor": "#B34700"}
SIGNS = {"good": "✔", "usable": "▲", "poor": "✖"}


class Row(NamedTuple):
    """One scalar component; a row without values says how many were left out."""

    name: str
    values: tuple[float | str, ...]


def rows(draws: dict[str, np.ndarray]) -> list[Row]:
    """Summarise the first scalar components."""
    result: list[Row] = []
    total = sum(int(np.prod(value.shape[1:])) for value in draws.values())
    for name, value in draws.items():
        for index in np.ndindex(value.shape[1:]):
            if len(result) == MAX_ROWS:
                return [*result, Row(f"... and {total - MAX_ROWS} more", ())]
            label = name + (f"[{', '.join(map(str, index))}]" if index else "")
            result.append(Row(label, summarize(value[(slice(None), *index)], QUANTILES)))
    return result


def text(diagnostics: Diagnostics, table: list[Row], settings: dict[str, Any], dim: int) -> str:
    """Show verdict, figures and table as text."""
    return plain(f"Posterior ({_describe(settings, dim)})", diagnostics.status, _figures(diagnostics), COLUMNS, table)


def html(diagnostics: Diagnostics, table: list[Row], settings: dict[str, Any], dim: int) -> str:
    """Show verdict, figures and table as HTML; every name is escaped."""
    what = ("Posterior", _describe(settings, dim))
    return card(what, diagnostics.verdict, diagnostics.status, _figures(diagnostics), COLUMNS, table)


def plain(
    title: str, status: str, figures: Sequence[tuple[str, str]], columns: Sequence[str], table: Sequence[Row]
) -> str:
    """Show a title, a sentence, named figures and a table as text."""
    width = max(len(row.name) for row in table)
    widths = [max(11, len(column) + 2) for column in columns]
    lines = [
        title,
        f"  {status}",
        "  " + ", ".join(f"{name} {value}" for name, value in figures),
        "",
        "  " + " " * width + "".join(f"{column:>{w}}" for column, w in zip(columns, widths, strict=True)),
    ]
    for row in table:
        cells = "".join(f"{_number(v):>{w}}" for v, w in zip(row.values, widths, strict=False))
        lines.append(f"  {row.name:<{width}}{cells}")
    return "\n".join(printable(line.rstrip()) for line in lines)


def card(
    what: tuple[str, str],
    verdict: str,
    status: str,
    figures: Sequence[tuple[str, str]],
    columns: Sequence[str],
    table: Sequence[Row],
    word: str | None = None,
) -> str:
    """Show what it is, a sentence, named figures and a table as HTML; all is escaped.

    The sentence begins with the verdict, or with another word that stands for it.
    """
    shown = " &middot; ".join(f"{escape(name)} <b>{escape(value)}</b>" for name, value in figures)
    head = "<td></td>" + "".join(f"<th scope='col' style='text-align:right'>{escape(c)}</th>" for c in columns)
    body = "".join(_html_row(row, len(columns)) for row in table)
    color, sign = COLORS[verdict], SIGNS[verdict]
    # The word that the sentence begins with is shown as a badge.
    word = word or verdict.capitalize()
    why = status.removeprefix(word)
    badge = f"background:{color};color:#fff;padding:1px 8px;border-radius:4px;white-space:nowrap"
    # Notebooks center tables and cut them off at the edge.
    return (
        f"<div style='border-left:4px solid {color};padding-left:12px;line-height:1.6'>"
        f"<div><b>{escape(what[0])}</b> ({escape(what[1])})</div>"
        f"<div style='max-width:60em'><b style='{badge}'>{sign} {escape(word)}</b> {escape(why)}</div>"
        f"<div>{shown}</div>"
        f"<div style='overflow-x:auto'><table style='margin:6px 0'><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        "</table></div></div>"
    )


def _html_row(row: Row, num_columns: int) -> str:
    if not row.values:
        return f"<tr><td colspan='{num_columns + 1}' style='text-align:left'>{escape(row.name)}</td></tr>"
    cells = "".join(f"<td style='text-align:right'>{escape(_number(v))}</td>" for v in row.values)
    return f"<tr><th scope='row' style='text-align:left'>{escape(row.name)}</th>{cells}</tr>"


def _describe(settings: dict[str, Any], dim: int) -> str:
    parts = [str(settings["family"])] if "family" in settings else []
    if settings.get("order"):
        parts.append(f"order {settings['order']}")
    return ", ".join([*parts, f"{dim} dimension{'s' if dim != 1 else ''}"])


def _figures(diagnostics: Diagnostics) -> list[tuple[str, str]]:
    d = diagnostics
    return [
        ("k-hat", f"{d.khat:.2f}"),
        ("ESS", f"{100 * d.ess_fraction:.1f} %"),
        ("ELBO", f"{d.elbo:.4f} ± {write_error(d.elbo_se)}"),
        ("log evidence", f"{d.log_evidence:.4f} ± {write_evidence_error(d)}"),
    ]


def write_error(error: float) -> str:
    """Write a standard error with four digits after the point, or its size where they would all be zero.

    Example:
        >>> write_error(0.00123), write_error(2.3e-6)
        ('0.0012', '2e-06')
    """
    return f"{error:.4f}" if not 0.0 < error < 5e-5 else f"{error:.0e}"


def write_evidence_error(diagnostics: Diagnostics) -> str:
    """Write the standard error of the log evidence, and say where no more than a lower bound of it is known."""
    # A good fit has a high k-hat only where all weights are nearly equal.
    bounded = diagnostics.khat > USABLE_KHAT and diagnostics.verdict != "good"
    return f"{write_error(diagnostics.log_evidence_se)}{' or more' if bounded else ''}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
