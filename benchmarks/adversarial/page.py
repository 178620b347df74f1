"""The page of the results: how often the verdict was wrong, by family, and which fits those were."""

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.adversarial.catalogue import CASES, FAMILIES, NAMED
from benchmarks.adversarial.suite import FILE
from benchmarks.study.records import Record
from benchmarks.study.tables import Table
from benchmarks.study.writing import write_whole
from bernflow.diagnostics import VERDICTS

INTRODUCTION = (
    "Posteriors of known answer, many of them with mass where a fit may not look, fitted with the defaults. A fit is "
    "wrong if a mean is off by more than 0.1 posterior standard deviations or a standard deviation by more than 10 %, "
    "beyond three Monte Carlo standard errors; every fit of a posterior that is not proper is. False good: wrong, and "
    "called good. False poor: right, and called poor. Parameters of the posteriors are drawn with fixed seeds. Every "
    f"fit is in [{FILE}]({FILE})."
)
# Normal quantile of a 95 % interval.
QUANTILE = 1.959964


def wilson(count: int, num: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share.

    Example:
        >>> low, high = wilson(0, 100)
        >>> low, round(high, 3)
        (0.0, 0.037)
    """
    if num == 0:
        return 0.0, 1.0
    share, z = count / num, QUANTILE
    middle = share + z**2 / (2 * num)
    width = z * math.sqrt(share * (1.0 - share) / num + z**2 / (4 * num**2))
    low, high = ((middle + sign * width) / (1.0 + z**2 / num) for sign in (-1.0, 1.0))
    return max(0.0, low if count else 0.0), min(1.0, high)


def write(out: Path, records: Sequence[Record], command: str) -> Path:
    """Write README.md and return its path."""
    text = markdown(records, command)
    return write_whole(out / "README.md", lambda file: file.write(text.encode()))


def markdown(records: Sequence[Record], command: str) -> str:
    """Return the page as Markdown."""
    false_good, false_poor = false_ones(records, "good"), false_ones(records, "poor")
    right = [record for record in records if not record["wrong"]]
    planned = sum(case.num_keys for case in CASES.values())
    totals = (
        f"- Fits: {len(records)} of the {planned} of a whole run\n"
        f"- False good: {_rate(len(false_good), len(records))}\n"
        f"- False poor, of the fits that are right: {_rate(len(false_poor), len(right))}"
    )
    named = [record for record in records if record["family"] in NAMED]
    if named:
        totals += (
            f"\n- False good in the families {', '.join(NAMED)}: {_rate(len(false_ones(named, 'good')), len(named))}"
        )
    parts = ["# Adversarial posteriors", INTRODUCTION, totals, "## By family", _families(records).to_markdown()]
    for title, chosen in (("False good", false_good), ("False poor", false_poor)):
        if chosen:
            parts += [f"## {title}", _fits(chosen).to_markdown()]
    stamps = sorted({f"{record['date']} ({record['commit'] or 'unknown commit'})" for record in records})
    parts.append(f"Made by `{command}`. Measured on {', '.join(stamps)}.")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def false_ones(records: Sequence[Record], verdict: str) -> list[Record]:
    """Return the fits that are wrong and called good, or right and called poor."""
    return [record for record in records if record["verdict"] == verdict and record["wrong"] == (verdict == "good")]


def _rate(count: int, num: int) -> str:
    low, high = wilson(count, num)
    return f"{count} of {num} ({100 * low:.1f} to {100 * high:.1f} %, Wilson's 95 % interval)"


def _families(records: Sequence[Record]) -> Table:
    columns = ("family", "fits", *VERDICTS, "wrong", "false good", "false poor", "named improper", "CPU seconds")
    rows = []
    for family in FAMILIES:
        chosen = [record for record in records if record["family"] == family]
        if not chosen:
            continue
        counts = [sum(record["verdict"] == verdict for record in chosen) for verdict in VERDICTS]
        rows.append(
            [
                family,
                len(chosen),
                *counts,
                sum(record["wrong"] for record in chosen),
                len(false_ones(chosen, "good")),
                len(false_ones(chosen, "poor")),
                sum(record["improper"] is not None for record in chosen),
                sum(record["cpu_seconds"] for record in chosen) / len(chosen),
            ]
        )
    return Table(columns, rows)


def _fits(records: Sequence[Record]) -> Table:
    columns = ("posterior", "key", "k-hat", "ESS", "mean (sd)", "sd (relative)")
    rows = [
        [
            record["case"],
            record["key"],
            float(record["khat"]),
            f"{record['ess_fraction']:.1%}",
            record["mean_error"],
            record["sd_error"],
        ]
        for record in records
    ]
    return Table(columns, rows)
