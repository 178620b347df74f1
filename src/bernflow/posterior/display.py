"""Text and HTML representations of a posterior, for terminals and notebooks."""

import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from bernflow.diagnostics.findings import USABLE_KHAT, Diagnostics
from bernflow.posterior import tables
from bernflow.posterior.drawing import KEY, derived_sizes, draw, small_derived
from bernflow.posterior.weighting import AUTO, num_effective
from bernflow.text import printable

if TYPE_CHECKING:
    from bernflow.posterior.parts import PosteriorParts

# Text is wrapped at this width.
LINE_WIDTH = 100
# Largest number of rows of a printed table.
MAX_ROWS = 20
# Number of draws behind the table: as in `summary`, but fewer above WIDE dimensions.
NUM_DRAWS, NUM_DRAWS_WIDE, WIDE = 4000, 1000, 2000
COLUMNS, QUANTILES = ("mean", "sd", "5%", "95%"), (0.05, 0.95)
# The colors of the plots, dark enough for white text on light and dark pages; signs distinguish them without color.
COLORS = {"good": "#0072B2", "usable": "#8A5C00", "poor": "#B34700"}
SIGNS = {"good": "✔", "usable": "▲", "poor": "✖"}


class Row(NamedTuple):
    """One scalar component; a row without values states how many are omitted."""

    name: str
    values: tuple[float | str, ...]


class Table(NamedTuple):
    """Rows of mean, sd, interval and Monte Carlo error, and a note about the draws."""

    rows: list[Row]
    note: str


def tabulate(posterior: "PosteriorParts") -> Table:
    """Summarize the first scalar components of the default draws."""
    num = NUM_DRAWS if posterior.layout.dim <= WIDE else NUM_DRAWS_WIDE
    derived = small_derived(posterior)
    sample = draw(posterior, num, KEY, AUTO, derived)
    num = len(next(iter(sample.theta.values())))
    worth = num_effective(posterior, num, sample.weighted)
    shown = tables.in_order(sample.theta, posterior.names, posterior.roles)
    found, total = tables.rows(shown, QUANTILES, posterior.axes, worth, MAX_ROWS)
    rows = [Row(row.label, (*tables.written(row.figures), _two_digits(row.mcse[0]))) for row in found]
    hidden = total - len(rows) + sum(size for name, size in derived_sizes(posterior).items() if name not in derived)
    if hidden:
        rows.append(Row(f"... and {hidden:,} more rows: post.summary() has all", ()))
    return Table(rows, f"{num:,} draws" + (", resampled by their importance weights" if sample.weighted else ""))


def text(diagnostics: Diagnostics, table: Table, settings: dict[str, Any], dim: int, advice: Sequence[str]) -> str:
    """Format verdict, statistics, table and, unless the fit is good, advice as text."""
    title = f"Posterior ({_describe(settings, dim)}; {table.note})"
    shown = plain(title, diagnostics.status, _figures(diagnostics), (*COLUMNS, "MCSE"), table.rows)
    if diagnostics.verdict == "good":
        return shown
    steps = [
        line
        for number, sentence in enumerate(advice, 1)
        for line in _wrapped(f"{number}. {sentence.replace('`', '')}", "  ", "     ")
    ]
    return "\n".join([shown, "", "  What to do next:", *steps])


def html(diagnostics: Diagnostics, table: Table, settings: dict[str, Any], dim: int, advice: Sequence[str]) -> str:
    """Format verdict, statistics, table and, unless the fit is good, advice as HTML; all text is escaped."""
    what = ("Posterior", f"{_describe(settings, dim)}; {table.note}")
    figures = _figures(diagnostics)
    shown = card(what, diagnostics.verdict, diagnostics.status, figures, (*COLUMNS, "MCSE"), table.rows)
    if diagnostics.verdict == "good":
        return shown
    steps = "".join(f"<li>{escape(sentence.replace('`', ''))}</li>" for sentence in advice)
    return f"{shown}<div style='max-width:60em'>What to do next:<ol>{steps}</ol></div>"


def plain(
    title: str, status: str, figures: Sequence[tuple[str, str]], columns: Sequence[str], table: Sequence[Row]
) -> str:
    """Format a title, a sentence, named statistics and a table as text."""
    width = max(len(row.name) for row in table if row.values)
    widths = [max(11, len(column) + 2) for column in columns]
    lines = [
        title,
        *_wrapped(status, "  ", "  "),
        *(["  " + ", ".join(f"{name} {value}" for name, value in figures)] if figures else []),
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
    """Format a title, a sentence, named statistics and a table as HTML; all text is escaped.

    The sentence begins with the verdict, or with `word`.
    """
    shown = " &middot; ".join(f"{escape(name)} <b>{escape(value)}</b>" for name, value in figures)
    head = "<td></td>" + "".join(f"<th scope='col' style='text-align:right'>{escape(c)}</th>" for c in columns)
    body = "".join(_html_row(row, len(columns)) for row in table)
    color, sign = COLORS[verdict], SIGNS[verdict]
    # The first word of the sentence is shown as a badge.
    word = word or verdict.capitalize()
    why = status.removeprefix(word)
    badge = f"background:{color};color:#fff;padding:1px 8px;border-radius:4px;white-space:nowrap"
    # By default, notebooks center tables and clip them.
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
    # Polynomials of order 1 are straight lines: such a flow has none.
    if (settings.get("order") or 0) > 1:
        parts.append(f"order {settings['order']}")
    return ", ".join([*parts, f"{dim} dimension{'s' if dim != 1 else ''}"])


def _figures(diagnostics: Diagnostics) -> list[tuple[str, str]]:
    """Return the statistics that are not part of the status."""
    d = diagnostics
    return [
        ("ELBO", f"{d.elbo:.4f} ± {write_error(d.elbo_se)}"),
        ("log evidence", f"{d.log_evidence:.4f} ± {write_evidence_error(d)}"),
    ]


def write_error(error: float) -> str:
    """Format a standard error with four decimals, or with one digit if they would all be zero.

    Example:
        >>> write_error(0.00123), write_error(2.3e-6)
        ('0.0012', '2e-06')
    """
    return f"{error:.4f}" if not 0.0 < error < 5e-5 else f"{error:.0e}"


def write_evidence_error(diagnostics: Diagnostics) -> str:
    """Format the standard error of the log evidence, and mark it if only a lower bound is known."""
    # A good fit has a high k-hat only if all weights are nearly equal.
    bounded = diagnostics.khat > USABLE_KHAT and diagnostics.verdict != "good"
    return f"{write_error(diagnostics.log_evidence_se)}{' or more' if bounded else ''}"


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, LINE_WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _two_digits(value: float) -> str:
    """Format a standard error with two digits.

    Example:
        >>> _two_digits(0.0104), _two_digits(123.4)
        ('0.010', '123')
    """
    return f"{value:#.2g}" if abs(value) < 9.5 or not abs(value) < 1e9 else f"{value:.0f}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
