"""Formatting of the results of a fit: a table of parameters, statistics, and the verdict."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from bernflow.posterior import Posterior
from bernflow.posterior.display import write_error, write_evidence_error
from bernflow.report.wording import say_khat
from bernflow.text import printable

WIDTH = 79
COLUMNS = ("mean", "sd", "5%", "95%")
NAME_WIDTH = 12


def table_lines(
    rows: Sequence[tuple[str, Iterable[float | str]]], number: str = ".2f", max_rows: int | None = None, rest: str = ""
) -> Iterator[str]:
    """Yield a table of mean, sd and a central interval.

    Args:
        rows: name and values of each parameter.
        number: format of numbers; empty if the values are strings.
        max_rows: the largest number of rows.
        rest: text that says where to find further rows.
    """
    shown = [(printable(name), values) for name, values in rows[:max_rows]]
    width = max([NAME_WIDTH, *(len(name) + 2 for name, _ in shown)])
    yield f"{'':<{width}}" + "".join(f"{column:>10}" for column in COLUMNS)
    for name, values in shown:
        yield f"{name:<{width}}" + "".join(f"{value:>10{number}}" for value in values)
    if len(shown) < len(rows):
        yield f"... and {len(rows) - len(shown)} more{rest}"


def figure_lines(posterior: Posterior, exact: float | None = None) -> Iterator[str]:
    """Yield the statistics of a fit; `exact` is the exact log evidence, if known."""
    d = posterior.diagnostics
    known = "" if exact is None else f"   (exact: {exact:.4f})"
    yield f"{'ESS':<14}{100 * d.ess_fraction:>9.1f} %          of the draws, after weighting"
    yield f"{'k-hat':<14}{d.khat:>9.2f} ± {d.khat_se:.2f}     ({say_khat(d)})"
    yield f"{'ELBO':<14}{d.elbo:>9.4f} ± {write_error(d.elbo_se)}"
    yield f"{'log evidence':<14}{d.log_evidence:>9.4f} ± {write_evidence_error(d)}{known}"
    yield f"{'time':<14}{posterior.settings['wall_seconds']:>9.1f} s,  {posterior.settings['steps']} steps"


def wrapped(text: str) -> list[str]:
    """Wrap a sentence; continuation lines of a list item are indented."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.wrap(printable(text, keep="\n\t"), WIDTH, subsequent_indent=indent, break_on_hyphens=False)
