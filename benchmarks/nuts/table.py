"""Results on disk and as a Markdown table. One record per run; one row per target and method."""

import statistics

from benchmarks import records as kept
from benchmarks.nuts.methods import METHODS, TRUTHS
from benchmarks.targets import BENCHMARKS

COLUMNS = {
    "gradients": ("gradients", "{:,.0f}"),
    "ESS bulk": ("ess_bulk", "{:.0f}"),
    "ESS tail": ("ess_tail", "{:.0f}"),
    "bulk per 1,000": ("bulk_per_1000", "{:.1f}"),
    "tail per 1,000": ("tail_per_1000", "{:.1f}"),
    "divergences": ("divergences", "{:.0f}"),
    "R-hat": ("rhat", "{:.3f}"),
    "mean": ("mean", "{:.3f}"),
    "sd": ("sd", "{:.3f}"),
    "P(neck)": ("neck_probability", "{:.4f}"),
    "seconds": ("seconds", "{:.1f}"),
    "with compilation": ("seconds_first", "{:.0f}"),
    "fit: gradients": ("gradients_fit", "{:,.0f}"),
    "fit: seconds": ("seconds_fit", "{:.0f}"),
}
# What is compiled for one key serves the next, so that the longest time is the one that tells.
LONGEST = ("seconds_first", "seconds_fit")


def save(path, records, notes):
    """Write the records and their table."""
    kept.save(path, records, notes, markdown(records, notes))


def markdown(records, notes):
    """Return one table per target: medians over the keys, the exact values first."""
    lines = ["# NUTS with and without a fitted flow", "", *(f"* {note}" for note in notes)]
    for target, truth in TRUTHS.items():
        found = {m: [r for r in records if (r["target"], r["method"]) == (target, m)] for m in METHODS}
        if not any(found.values()):
            continue
        lines += ["", f"## {BENCHMARKS[target].title}", "", f"Mean, sd and neck are those of {truth.quantity}.", ""]
        lines += [f"| method | {' | '.join(COLUMNS)} | keys |", "|---" * (len(COLUMNS) + 2) + "|"]
        exact = {"mean": truth.mean, "sd": truth.sd, "neck_probability": truth.neck_probability}
        cells = [form.format(exact[name]) if name in exact else "" for name, form in COLUMNS.values()]
        lines.append(f"| exact | {' | '.join(cells)} | |")
        for method, runs in found.items():
            if runs:
                cells = [form.format(_typical(name, runs)) for name, form in COLUMNS.values()]
                lines.append(f"| {method} | {' | '.join(cells)} | {len(runs)} |")
    return "\n".join(lines) + "\n"


def _typical(name, runs):
    return (max if name in LONGEST else statistics.median)(r[name] for r in runs)
