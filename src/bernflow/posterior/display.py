"""How a posterior shows itself in a terminal and in a notebook."""

from html import escape
from typing import Any, NamedTuple

import numpy as np

from bernflow.diagnostics.verdict import Diagnostics

MAX_ROWS = 10
COLUMNS = ("mean", "sd", "5%", "95%")
# The colours of the plots (Okabe and Ito's palette), which stay apart without colour vision.
COLORS = {"good": "#0072B2", "usable": "#B37700", "poor": "#D55E00"}


class Row(NamedTuple):
    """One scalar component; a row without values says how many were left out."""

    name: str
    values: tuple[float, ...]


def rows(draws: dict[str, np.ndarray]) -> list[Row]:
    """Summarise the first scalar components."""
    result: list[Row] = []
    total = sum(int(np.prod(value.shape[1:])) for value in draws.values())
    for name, value in draws.items():
        for index in np.ndindex(value.shape[1:]):
            if len(result) == MAX_ROWS:
                return [*result, Row(f"... and {total - MAX_ROWS} more", ())]
            x = value[(slice(None), *index)].astype(np.float64)
            label = name + (f"[{', '.join(map(str, index))}]" if index else "")
            result.append(Row(label, (x.mean(), x.std(ddof=1), *np.quantile(x, (0.05, 0.95)))))
    return result


def text(diagnostics: Diagnostics, table: list[Row], settings: dict[str, Any], dim: int) -> str:
    """Show verdict, figures and table as text."""
    width = max(len(row.name) for row in table)
    lines = [
        f"Posterior ({_describe(settings, dim)})",
        f"  {diagnostics.status}",
        "  " + ", ".join(f"{name} {value}" for name, value in _figures(diagnostics)),
        "",
        "  " + " " * width + "".join(f"{column:>11}" for column in COLUMNS),
    ]
    lines += [f"  {row.name:<{width}}" + "".join(f"{_number(v):>11}" for v in row.values) for row in table]
    return "\n".join(line.rstrip() for line in lines)


def html(diagnostics: Diagnostics, table: list[Row], settings: dict[str, Any], dim: int) -> str:
    """Show verdict, figures and table as HTML; every name is escaped."""
    figures = " &middot; ".join(f"{escape(name)} <b>{escape(value)}</b>" for name, value in _figures(diagnostics))
    head = "".join(f"<th>{column}</th>" for column in ("", *COLUMNS))
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(row.name)}</th>"
        + "".join(f"<td style='text-align:right'>{_number(v)}</td>" for v in row.values)
        + "</tr>"
        for row in table
    )
    color = COLORS[diagnostics.verdict]
    return (
        f"<div style='border-left:4px solid {color};padding-left:12px'>"
        f"<div><b>Posterior</b> ({escape(_describe(settings, dim))})</div>"
        f"<div style='color:{color}'>{escape(diagnostics.status)}</div><div>{figures}</div>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


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
        ("ELBO", f"{d.elbo:.4f} ± {d.elbo_se:.4f}"),
        ("log evidence", f"{d.log_evidence:.4f} ± {d.log_evidence_se:.4f}"),
    ]


def _number(value: float) -> str:
    return f"{value:.4g}"
