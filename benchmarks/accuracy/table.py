"""Results on disk and as a Markdown table. One record per fit; one row per target and method."""

import json
import math
import os
import statistics
from pathlib import Path

from bernflow.experiments.targets import BENCHMARKS, FUNNEL_SD


def load(path):
    """Read the records kept so far."""
    path = Path(path)
    return json.loads(path.read_text(encoding="utf-8"))["records"] if path.exists() else []


def save(path, records, notes):
    """Write JSON and Markdown side by side; a reader never sees half a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, json.dumps({"notes": notes, "records": _strict(records)}, indent=1, allow_nan=False) + "\n")
    _replace(path.with_suffix(".md"), markdown(records, notes))


def markdown(records, notes):
    """Return the table: medians over keys, in the order of the registry of targets."""
    lines = [
        "# Accuracy",
        "",
        *(f"* {note}" for note in notes),
        "",
        "| target | method | KL (nats) | ELBO | k-hat | ESS fraction | seconds | gradients | keys |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups = {}
    for record in records:
        groups.setdefault((record["target"], record["method"]), []).append(record)
    order = list(BENCHMARKS)
    for target, method in sorted(groups, key=lambda group: order.index(group[0])):
        lines.append(_row(target, method, groups[target, method]))
    spread = [r for r in records if r.get("sd_of_v") is not None]
    if spread:
        lines += [
            "",
            f"Neal's funnel, sd of v (exactly {FUNNEL_SD:g}):",
            "",
            "| method | sd of v |",
            "|---|---|",
        ]
        methods = dict.fromkeys(r["method"] for r in spread)
        lines += [f"| {m} | {_median(_of(spread, m), 'sd_of_v', '{:.3f}')} |" for m in methods]
    return "\n".join(lines) + "\n"


def _row(target, method, records):
    title = BENCHMARKS[target].title
    done = [r for r in records if r["status"] == "ok"]
    if not done:
        reasons = ", ".join(dict.fromkeys(r["status"] for r in records))
        return f"| {title} | {method} | {reasons} | | | | | | {len(records)} |"
    cells = [
        _median(done, "kl", "{:.4f}"),
        _median(done, "elbo", "{:.4f}"),
        _median(done, "khat", "{:.2f}"),
        _median(done, "ess_fraction", "{:.3f}"),
        _median(done, "seconds", "{:.0f}"),
        _median(done, "gradients", "{:.2g}"),
    ]
    failed = len(records) - len(done)
    keys = f"{len(done)}" + (f" ({failed} failed)" if failed else "")
    return f"| {title} | {method} | {' | '.join(cells)} | {keys} |"


def _median(records, name, form):
    values = [r[name] for r in records if r.get(name) is not None]
    # JSON has no infinity; it is kept as a string.
    return form.format(statistics.median(float(v) for v in values)) if values else ""


def _of(records, method):
    return [r for r in records if r["method"] == method]


def _strict(records):
    def plain(value):
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return [{k: plain(v) for k, v in record.items()} for record in records]


def _replace(path, text):
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
