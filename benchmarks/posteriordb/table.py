"""Results on disk and as a Markdown table: one record and one row per front end, posterior and key."""

import dataclasses

from benchmarks import records as kept
from benchmarks.posteriordb.catalogue import FRONT_ENDS, POSTERIORS

HEADINGS = (
    "posterior",
    "p",
    "k-hat",
    "ESS",
    "verdict",
    "seconds",
    "steps",
    "mean error",
    "sd error",
    "agrees",
    "mean error, weighted",
    "sd error, weighted",
    "agrees, weighted",
)


def identity(record):
    """Return what two records of the same run have in common."""
    return record["front"], record["name"], record["key"]


def describe(agreement):
    """Return an agreement as JSON-able values: the worst columns, those that fail, and all of them."""
    mean, sd = agreement.worst_mean, agreement.worst_sd
    return {
        "agrees": agreement.agrees,
        "failing": [c.name for c in agreement.columns if not c.agrees],
        "worst_mean": {"name": mean.name, "error": mean.mean_error, "se": mean.mean_se},
        "worst_sd": {"name": sd.name, "error": sd.sd_error, "se": sd.sd_se},
        "columns": [dataclasses.asdict(c) for c in agreement.columns],
    }


def line(record):
    """Put one record into a line."""
    found = record["unweighted"]
    mean, sd = found["worst_mean"], found["worst_sd"]
    outcome = "agrees" if found["agrees"] else "fails in " + ", ".join(found["failing"])
    return (
        f"{record['verdict']}, k-hat {record['khat']:.2f}, ESS {record['ess_fraction']:.4f}, worst mean "
        f"{mean['error']:+.3f} ({mean['name']}), worst sd {sd['error']:+.3f} ({sd['name']}), {outcome}, "
        f"{record['seconds']:.0f} s ({record['cpu_seconds']:.0f} s of processor)"
    )


def save(path, records, notes):
    """Write the records and their table."""
    records = sorted(records, key=_order)
    kept.save(path, records, notes, markdown(records, notes))


def markdown(records, notes):
    """Return one table per front end, posteriors in the order of the catalogue."""
    lines = ["# Real posteriors", "", *(f"* {note}" for note in notes)]
    for front in FRONT_ENDS:
        chosen = sorted((r for r in records if r["front"] == front), key=_order)
        if chosen:
            lines += ["", f"## {front}", "", _cells(HEADINGS), _cells(["---"] * len(HEADINGS)), *map(_row, chosen)]
            for label in ("unweighted", "weighted"):
                count = sum(r[label]["agrees"] for r in chosen)
                lines += ["", f"{count} of {len(chosen)} agree, {label}."]
    return "\n".join(lines) + "\n"


def _row(record):
    errors = []
    for label in ("unweighted", "weighted"):
        found = record[label]
        errors += [_error(found["worst_mean"]), _error(found["worst_sd"])]
        errors += ["yes" if found["agrees"] else "no: " + ", ".join(found["failing"])]
    key = "" if record["key"] == 0 else f", key {record['key']}"
    return _cells(
        [
            record["name"] + key,
            record["num_parameters"],
            f"{float(record['khat']):.2f}",
            f"{float(record['ess_fraction']):.4f}",
            record["verdict"],
            f"{record['seconds']:.0f}, {record['cpu_seconds']:.0f}",
            record["settings"].get("steps", ""),
            *errors,
        ]
    )


def _error(worst):
    return f"{float(worst['error']):+.3f} ({worst['name']})"


def _cells(values):
    return "| " + " | ".join(str(value) for value in values) + " |"


def _order(record):
    return FRONT_ENDS.index(record["front"]), list(POSTERIORS).index(record["name"]), record["key"]
