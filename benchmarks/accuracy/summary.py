"""Summarize all runs: medians over the keys, and how often the goals are met."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.accuracy.cases import POSTERIORDB, Case, held_out, in_development
from benchmarks.accuracy.measure import OK
from benchmarks.accuracy.methods import METHODS
from benchmarks.accuracy.methods.ours import CHOICES, DEFAULTS, FULL_RANK, OURS, THOROUGH
from benchmarks.accuracy.processes import OUT_OF_TIME
from benchmarks.study.records import Record

FIGURES = (
    "elbo",
    "elbo_se",
    "largest_share",
    "khat",
    "ess_fraction",
    "mean_error",
    "mean_error_se",
    "sd_error",
    "sd_error_se",
    "wasserstein",
    "wasserstein_floor",
    "region_error",
    "seconds",
    "gradients",
)
FULL_RANK_NORMALS = ("AutoMultivariateNormal", "pymc-fullrank", FULL_RANK)
# What tells the start from the flow, in the order of the sentence.
FROM_START = ("start", FULL_RANK, "start-IAF", "start-BNAF", "start-spline", DEFAULTS, THOROUGH)
# A target of which every method's weights have a longer tail has no estimate of its evidence.
MAX_KHAT = 0.7
NUM_ERRORS = 2.0
GOAL_ESS = 0.98
LABELS = {
    DEFAULTS: "bernflow with its defaults",
    THOROUGH: "bernflow with tolerance=0",
    CHOICES: "bernflow with options tuned where applicable",
}
# Names in the sentences about verdicts. Chains have no verdict: R-hat and the ESS take its place.
JUDGED = {
    THOROUGH: LABELS[THOROUGH],
    CHOICES: LABELS[CHOICES],
    "bernstein-paper": "the paper's recipe",
    "blackjax-pathfinder": "Pathfinder",
    "pathfinder-psis": "Pathfinder, resampled",
    "nuts": "NUTS (R-hat and ESS of its chains)",
}


@dataclass(frozen=True)
class Row:
    """One method on one target.

    Attributes:
        records: the runs, one per key.
        status: why there are no figures, or None.
        kl: exact or estimated log evidence less the median ELBO.
        figures: medians of `FIGURES`, None where unknown.
    """

    records: tuple[Record, ...]
    status: str | None
    kl: float | None
    figures: Mapping[str, float | None]

    @property
    def verdicts(self) -> str:
        """The verdicts given, with their number where keys differ."""
        given = [r["verdict"] for r in self.records if r.get("verdict")]
        counts = {verdict: given.count(verdict) for verdict in dict.fromkeys(given)}
        return ", ".join(f"{v} {n}" if len(counts) > 1 else v for v, n in counts.items())

    @property
    def truth(self) -> str:
        """Whether the fits are truly good, and whether a verdict was wrong."""
        done = [r for r in self.records if r.get("truly_good") is not None]
        if not done:
            return ""
        good = sum(r["truly_good"] for r in done)
        words = "yes" if good == len(done) else "no" if good == 0 else f"{good} of {len(done)}"
        wrong = [name for name in ("false_good", "false_bad") if any(r[name] for r in done)]
        return ", ".join([words, *(name.replace("_", " ") for name in wrong)])


def rows(records: Sequence[Record], cases: Mapping[str, Case], matched: bool) -> dict[str, dict[str, Row]]:
    """Return the rows of one of the two tables, by target and method.

    Args:
        records: all runs.
        cases: all targets.
        matched: the second table: methods that were given the budget of ours, beside ours.
    """
    found: dict[str, dict[str, Row]] = {}
    for target in (name for name in cases if any(r["target"] == name for r in records)):
        here = [r for r in records if r["target"] == target]
        known = cases[target].benchmark.log_evidence
        evidence = known if known is not None else estimated_evidence(here)
        shown = [r for r in here if r["matched"] == matched or (matched and r["method"] in OURS)]
        by_method = {m: [r for r in shown if r["method"] == m] for m in dict.fromkeys(r["method"] for r in shown)}
        found[target] = {method: _row(runs, evidence) for method, runs in by_method.items()}
    return found


def estimated_evidence(records: Iterable[Record]) -> float | None:
    """Return the most certain estimate of a log evidence by importance sampling, if there is one to be trusted.

    A fit that misses a mode has even weights, too: one that is known to be wrong does not count, nor does an estimate
    below the ELBO of another method, which no evidence can be.
    """
    done = [r for r in records if r["status"] == OK and r.get("truly_good") is not False]
    usable = [r for r in done if "khat" in r and float(r["khat"]) < MAX_KHAT]
    best = min(usable, key=lambda r: float(r["log_evidence_estimate_se"]), default=None)
    if best is None:
        return None
    estimate, error = float(best["log_evidence_estimate"]), float(best["log_evidence_estimate_se"])
    bounds = [float(r["elbo"]) - NUM_ERRORS * float(r["elbo_se"]) for r in done if r.get("elbo") is not None]
    return estimate if estimate + NUM_ERRORS * error > max(bounds) else None


def _row(records: list[Record], evidence: float | None) -> Row:
    done = [r for r in records if r["status"] == OK]
    if not done:
        reasons = "; ".join(dict.fromkeys(r["status"] for r in records))
        return Row(tuple(records), reasons, None, dict.fromkeys(FIGURES))
    figures = {name: _median(done, name) for name in FIGURES}
    elbo = figures["elbo"]
    kl = None if evidence is None or elbo is None else evidence - elbo
    return Row(tuple(records), None, kl, figures)


def _median(records: list[Record], name: str) -> float | None:
    values = [float(r[name]) for r in records if r.get(name) is not None]
    if not values:
        return None
    # Errors have signs; the median of their sizes is what tables show.
    values = [abs(v) for v in values] if name.endswith("_error") else values
    return float("nan") if any(map(math.isnan, values)) else statistics.median(values)


def best_method(row: Mapping[str, Row], methods: Iterable[str] | None = None) -> str | None:
    """Return the method of the highest ELBO, which is that of the smallest KL."""
    elbos = {m: r.figures["elbo"] for m, r in row.items() if methods is None or m in methods}
    finite = {m: e for m, e in elbos.items() if e is not None and not math.isnan(e)}
    return max(finite, key=lambda m: finite[m], default=None)


def as_good(row: Mapping[str, Row], method: str, other: str) -> bool:
    """Tell whether a method's KL is not above another's by more than two combined standard errors."""
    ours, theirs = row[method].figures, row[other].figures
    if ours["elbo"] is None:
        return False
    error = math.hypot(ours["elbo_se"] or 0.0, theirs["elbo_se"] or 0.0)
    difference = (theirs["elbo"] or 0.0) - ours["elbo"]
    return not difference > NUM_ERRORS * error


def goals(records: Sequence[Record], cases: Mapping[str, Case]) -> list[str]:
    """Return the summary, one sentence per goal."""
    lines = []
    for name, split in (("Test set", held_out(cases)), ("Targets of development", in_development(cases))):
        here = [r for r in records if r["target"] in split]
        if not here:
            lines.append(f"{name}: not measured.")
            continue
        found = _best(here, split) + _full_rank(rows(here, split, matched=False)) + _start_or_flow(here, split)
        lines += [f"{name}: {line}" for line in [*found, *_without_result(here)]]
    return [*lines, *_real(records, cases), *_verdicts(records)]


def _best(records: Sequence[Record], cases: Mapping[str, Case]) -> list[str]:
    """Count the targets on which ours are not beaten; a fit of ours without a result is one that is."""
    lines = []
    ways = {False: "with the defaults of the other methods", True: "with equal numbers of gradients"}
    for matched, words in ways.items():
        table = rows(records, cases, matched)
        for method, label in LABELS.items():
            rivals = {t: best_method(r, set(r) - set(OURS)) for t, r in table.items()}
            judged = {t: r for t, r in table.items() if rivals[t] and method in r}
            if judged:
                behind = [t for t, r in judged.items() if not as_good(r, method, str(rivals[t]))]
                lines.append(
                    f"{words}, {label} has the best KL, or one within {NUM_ERRORS:g} standard errors of it, on "
                    f"{len(judged) - len(behind)} of {len(judged)} targets{_named(behind)}."
                )
    return lines


def _start_or_flow(records: Sequence[Record], cases: Mapping[str, Case]) -> list[str]:
    """Say how much of the KL is owed to bernflow's start, and how much to its flow."""
    table = rows(records, cases, matched=False)
    methods = [m for m in FROM_START if any(m in r for r in table.values())]
    known = [r for r in table.values() if all(m in r and r[m].kl is not None for m in methods)]
    if len(methods) < 3 or not known:
        return []
    medians = [(m, statistics.median(max(float(r[m].kl or 0.0), 0.0) for r in known)) for m in methods]
    listed = ", ".join(f"{METHODS[m].label} {kl:.2g}" for m, kl in medians)
    return [f"start or flow, median KL over the {len(known)} targets where all of these have one: {listed}."]


def _without_result(records: Sequence[Record]) -> list[str]:
    """Count the runs of other methods that cannot be compared."""
    others = [r for r in records if r["method"] not in OURS]
    why: Counter[str] = Counter(
        "exceeded the time limit" if r["status"].startswith(OUT_OF_TIME) else r["status"].split(":")[0]
        for r in others
        if r["status"] != OK
    )
    if not why and all(r["status"] == OK for r in records):
        return []
    counts = ", ".join(f"{reason} {num}" for reason, num in why.most_common())
    own = [r for r in records if r["method"] in OURS and r["status"] != OK]
    ours = f"; of bernflow {len(own)}{_named(dict.fromkeys(r['target'] for r in own))}"
    return [f"{sum(why.values())} of {len(others)} runs of other methods gave no result ({counts}){ours}."]


def _full_rank(table: Mapping[str, Mapping[str, Row]]) -> list[str]:
    pairs = [(t, r, m) for t, r in table.items() for m in FULL_RANK_NORMALS if DEFAULTS in r and m in r]
    pairs = [(t, r, m) for t, r, m in pairs if r[m].figures["elbo"] is not None]
    worse = dict.fromkeys(t for t, r, m in pairs if not as_good(r, DEFAULTS, m))
    num = len(dict.fromkeys(t for t, _, _ in pairs))
    return (
        [f"bernflow is worse than a full-rank normal on {len(worse)} of {num} targets{_named(worse)}."] if num else []
    )


def _real(records: Sequence[Record], cases: Mapping[str, Case]) -> list[str]:
    table = rows(records, cases, matched=False)
    real = {t: r[DEFAULTS] for t, r in table.items() if cases[t].group == POSTERIORDB and DEFAULTS in r}
    low = [t for t, row in real.items() if not (row.figures["ess_fraction"] or 0.0) >= GOAL_ESS]
    if not real:
        return []
    return [
        f"posteriordb: the ESS fraction is at least {GOAL_ESS:g} on {len(real) - len(low)} of {len(real)} targets"
        f"{_named(low)}."
    ]


def _verdicts(records: Sequence[Record]) -> list[str]:
    lines = []
    for method in dict.fromkeys(r["method"] for r in records):
        judged = [r for r in records if r["method"] == method and r.get("verdict_is_right") is not None]
        if judged:
            good, bad = ([r["target"] for r in judged if r[name]] for name in ("false_good", "false_bad"))
            lines.append(
                f"Verdicts of {JUDGED.get(method, method)}: {len(good)} false good{_named(dict.fromkeys(good))} and "
                f"{len(bad)} false bad{_named(dict.fromkeys(bad))} in {len(judged)} runs."
            )
    return lines


def _named(names: Iterable[Any]) -> str:
    names = list(names)
    return f" ({', '.join(names)})" if names else ""
