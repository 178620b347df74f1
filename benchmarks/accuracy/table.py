"""Results on disk and as a Markdown table. One record per fit; one row per target and method."""

import statistics

from benchmarks import records as kept
from bernflow.experiments.targets import BENCHMARKS, FUNNEL_SD


def save(path, records, notes):
    """Write the records and their table."""
    kept.save(path, records, notes, markdown(records, notes))


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
