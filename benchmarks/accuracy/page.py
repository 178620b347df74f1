"""The page of the results: goals on top, KL by target and method, then every figure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.accuracy.cases import GROUPS, Case
from benchmarks.accuracy.methods import METHODS
from benchmarks.accuracy.picture import draw
from benchmarks.accuracy.processes import OUT_OF_TIME
from benchmarks.accuracy.summary import Row, best_method, goals, rows
from benchmarks.study.figures import write_figure
from benchmarks.study.records import Record
from benchmarks.study.stamp import sentence
from benchmarks.study.tables import Table, number
from benchmarks.study.writing import write_whole
from bernflow.plots.style import house_style

PICTURE = "accuracy"
# Below the Monte Carlo error of tens of thousands of draws a KL is no number to quote.
SMALLEST, LARGEST = 1e-4, 1e7
TITLES = {
    False: "Every method with its defaults",
    True: "Every method with as many gradient evaluations as bernflow took",
}
PANELS = {False: "each method with its defaults", True: "as many gradients as bernflow"}
DETAILS = (
    "method",
    "KL",
    "error (largest draw)",
    "ELBO",
    "k-hat",
    "ESS",
    "mean error (MCSE)",
    "sd error (MCSE)",
    "distance (floor)",
    "mode weights",
    "seconds",
    "gradients",
    "verdict",
    "truly good",
)
SPLIT = (
    "The targets of the paper, of posteriordb and the stress targets are those of development: constants of bernflow "
    "were chosen on them. The test set was drawn from a written recipe (`benchmarks/heldout.py`) with seeds fixed in "
    "advance, and no constant was chosen on it."
)
EXPLANATION = (
    "KL is the exact log evidence minus the ELBO, in nats; ≈ marks an evidence that was estimated by importance "
    "sampling, from the most certain fit with a k-hat below 0.7; without one, the ELBO is shown. Medians over the "
    "keys; every run is in [accuracy.json](accuracy.json). The smallest KL is bold. Error: the standard error of the "
    "KL, and the share of the largest draw in the spread of the log weights: a KL that rests on one draw says little. "
    "All fits in double precision on a CPU, each in a process of its own; seconds include compilation, and fits that "
    "ran beside others took longer than alone.",
    "Errors are those of the worst quantity against exact or reference draws, in units of its standard deviation, with "
    "their combined Monte Carlo standard error. Distance: sliced Wasserstein of standardized quantities, and beside it "
    "that between two halves of the reference, which a perfect fit would have. Mode weights: the largest error of the "
    "share of draws near a mode.",
    "Truly good: every mean within 4 MCSE + 0.2 sd, and every sd within 4 MCSE + 20 %. A false good is a verdict good "
    "on a fit that is not; a false bad the verdict poor on one whose means and sds are within 4 MCSE + 0.01 sd.",
)


def write(out: Path, records: Sequence[Record], cases: Mapping[str, Case], command: str) -> Path:
    """Write README.md and the picture; return the page."""
    tables = _tables(records, cases)
    with house_style():
        figure = draw({PANELS[matched]: table for matched, table in tables.items()}, cases)
        if figure is not None:
            write_figure(figure, out, PICTURE)
    text = markdown(records, cases, command, figure is not None)
    return write_whole(out / "README.md", lambda file: file.write(text.encode()))


def _tables(records: Sequence[Record], cases: Mapping[str, Case]) -> dict[bool, dict[str, dict[str, Row]]]:
    """Return both tables; the second says something only where a rival was given the budget."""
    shown = [matched for matched in TITLES if any(r["matched"] == matched for r in records)]
    return {matched: rows(records, cases, matched) for matched in shown}


def markdown(records: Sequence[Record], cases: Mapping[str, Case], command: str, with_picture: bool) -> str:
    """Return the page as Markdown."""
    tables = _tables(records, cases)
    parts = ["# Accuracy", "\n".join(f"- {line}" for line in goals(records, cases)), SPLIT, limits(records)]
    if with_picture:
        parts.append(f"![KL by target and method]({PICTURE}.png)")
    parts += EXPLANATION
    for matched, table in tables.items():
        parts += [f"## {TITLES[matched]}", _overview(table, cases).to_markdown()]
    for matched, table in tables.items():
        parts.append(f"## All figures: {TITLES[matched][0].lower()}{TITLES[matched][1:]}")
        for group, title in GROUPS.items():
            here = {t: r for t, r in table.items() if cases[t].group == group}
            parts += [f"### {title}"] if here else []
            for target, row in here.items():
                parts += [f"**{cases[target].benchmark.title}**", _details(row, cases[target]).to_markdown()]
    used = dict.fromkeys(r["method"] for r in records)
    parts += ["## The methods", "\n".join(f"- **{METHODS[m].label}**: {METHODS[m].described}" for m in used)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + f"\n\nMade by `{command}`. {sentence(records)}\n"


def limits(records: Sequence[Record]) -> str:
    """Say which time limit and how many keys the methods had; equal ones, where nothing says otherwise."""
    by_limit = Counter(r.get("time_limit") for r in records)
    names = {s: "an unknown one" if s is None else f"{s:g} s" for s in by_limit}
    told = ", ".join(f"{num} under {names[s]}" for s, num in by_limit.items())
    keys: dict[str, set[int]] = {}
    for record in records:
        keys.setdefault(record["method"], set()).add(record["key"])
    most = max(map(len, keys.values()), default=0)
    fewer = [f"{METHODS[m].label} {len(found)}" for m, found in keys.items() if len(found) < most]
    time = (
        f"One time limit of {next(iter(by_limit)):g} s for every measurement"
        if len(by_limit) == 1 and None not in by_limit
        else f"The limits of the measurements differ ({told})"
    )
    return (
        f"{time}, from the start of the process to the last figure, bernflow's as well: runs that hit it are shown as "
        f"such. {most} keys for every method{'' if not fewer else ', but ' + ', '.join(fewer)}."
    )


def _overview(table: Mapping[str, Mapping[str, Row]], cases: Mapping[str, Case]) -> Table:
    """Return KL by target and method, targets in their groups."""
    methods = [m for m in METHODS if any(m in row and row[m].figures["elbo"] is not None for row in table.values())]
    lines: list[list[str]] = []
    best = set()
    for group, title in GROUPS.items():
        here = {t: row for t, row in table.items() if cases[t].group == group}
        if here:
            lines.append([f"*{title}*", *[""] * len(methods)])
        for target, row in here.items():
            winner = best_method(row)
            if winner is not None:
                best.add((len(lines), 1 + methods.index(winner)))
            exact = cases[target].benchmark.log_evidence is not None
            lines.append([cases[target].benchmark.title, *(_kl(row.get(m), exact) for m in methods)])
    return Table(["target", *(METHODS[m].label for m in methods)], lines, best=frozenset(best))


def _kl(row: Row | None, exact: bool) -> str:
    """Write a KL, or the ELBO where there is none, or why there is neither."""
    if row is None:
        return ""
    if row.status is not None:
        return short_status(row.status)
    if row.kl is None:
        elbo = row.figures["elbo"]
        return "" if elbo is None else f"ELBO {elbo:.2f}"
    return _small(row.kl) if exact else f"≈ {_small(row.kl)}".replace("≈ <", "≲")


def short_status(status: str) -> str:
    """Say in a cell of a table why there is no figure.

    Example:
        >>> short_status("exceeded the time limit of 400 s"), short_status("failed: ValueError: what is this")
        ('> 400 s', 'failed')
    """
    if status.startswith(OUT_OF_TIME):
        return status.replace(f"{OUT_OF_TIME} of", ">")
    return status.split(":")[0]


def _error(standard_error: float | None, share: float | None) -> str:
    """Write the standard error of a KL, and the share that one draw has in it."""
    if standard_error is None:
        return ""
    return number(standard_error, 2) + ("" if share is None else f" ({share:.1%})")


def _small(kl: float) -> str:
    if math.isnan(kl) or math.isinf(kl):
        return number(kl)
    if kl < SMALLEST:
        return "< 0.0001"
    return f"{kl:.4f}" if kl < 10 else f"{kl:,.1f}" if kl < LARGEST else f"{kl:.1e}"


def _details(row: Mapping[str, Row], case: Case) -> Table:
    exact = case.benchmark.log_evidence is not None
    return Table(DETAILS, [_line(m, row[m], exact) for m in METHODS if m in row])


def _line(method: str, row: Row, exact: bool) -> list[str]:
    if row.status is not None:
        return [METHODS[method].label, row.status, *[""] * (len(DETAILS) - 2)]
    f = row.figures

    def text(name: str, form: str) -> str:
        value = f[name]
        return "" if value is None else number(value) if not math.isfinite(value) else format(value, form)

    def with_error(name: str, other: str) -> str:
        return f"{text(name, '.3f')} ({text(other, '.3f')})" if f[name] is not None else ""

    failed = sum(r["status"] != "ok" for r in row.records)
    return [
        METHODS[method].label + (f" ({failed} of {len(row.records)} failed)" if failed else ""),
        _kl(row, exact) if row.kl is not None else "",
        _error(f["elbo_se"], f["largest_share"]),
        text("elbo", ".4f"),
        text("khat", ".2f"),
        text("ess_fraction", ".3f"),
        with_error("mean_error", "mean_error_se"),
        with_error("sd_error", "sd_error_se"),
        with_error("wasserstein", "wasserstein_floor"),
        text("region_error", ".3f"),
        text("seconds", ".0f"),
        text("gradients", ".2g"),
        row.verdicts,
        row.truth,
    ]
