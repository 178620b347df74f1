"""Parts `growth` and `restarts`: what a step costs when the problem grows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.speed.clock import median_of, ratios, spread, time_calls
from benchmarks.speed.part import Case, Part, Scale, Section
from benchmarks.speed.training import Training, schools
from benchmarks.study.plan import Result
from benchmarks.study.records import Record
from benchmarks.study.tables import Table

DIM = 10
# Where a curve is fitted from for its exponent: the larger values, where calls and loops no longer count.
TAIL = 3
AXES = ("p", "M", "S")
EXPECTED = {
    "p": "up to 64 dimensions 3 (the score of a full conditioner); above, 2 (the outer map) with 1 (all else) below it",
    "M": "1 (basis and increments) to 2 (the map from increments to coefficients, a matrix product)",
    "S": "1; less until the processor is busy",
}


def cases(scale: Scale) -> list[Case]:
    """Return one case per axis."""
    values = {
        "p": scale.pick(tiny=(4, 6), quick=(10, 30, 100), normal=(10, 30, 64, 100, 300, 1000)),
        "M": scale.pick(tiny=(5, 10), quick=(5, 20, 50), normal=(5, 10, 20, 50, 100, 200)),
        "S": scale.pick(tiny=(1, 4), quick=(1, 32, 256), normal=(1, 4, 16, 32, 64, 256, 1024)),
    }
    chosen = {
        "p": lambda value: {"dim": value},
        "M": lambda value: {"dim": DIM, "order": value},
        "S": lambda value: {"dim": DIM, "num_particles": value},
    }
    return [
        Case(axis, {str(v): {**chosen[axis](v), **_length(scale)} for v in values[axis]}, scale.rounds) for axis in AXES
    ]


def _length(scale: Scale) -> dict[str, Any]:
    # Chunks shorter than those of a fit: a step of a thousand dimensions takes its time.
    return {"seconds": scale.seconds, "chunk": scale.pick(tiny=3, quick=50, normal=50)}


def measure(case: str, subject: str, settings: Mapping[str, Any]) -> Result:
    """Time the steps of one size."""
    training = Training(lambda: schools(settings["dim"]), settings, settings["chunk"])
    return {**time_calls(training.run, settings["chunk"], settings["seconds"]), **training.described()}


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of log seconds over log sizes, by least squares.

    Example:
        >>> round(exponent([1, 10, 100], [2.0, 200.0, 20_000.0]), 3)
        2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def curve(records: Sequence[Record], case: str, name: str = "seconds") -> tuple[list[float], list[float]]:
    """Return the sizes of a case in ascending order, and what each took."""
    found = {float(subject): value for (c, subject), value in median_of(records, name).items() if c == case}
    return sorted(found), [found[size] for size in sorted(found)]


def exponents(records: Sequence[Record], case: str) -> tuple[str, str]:
    """Return the measured exponent over all sizes, and over the largest ones."""
    sizes, seconds = curve(records, case)
    if len(sizes) < 2:
        return "", ""
    last = f"{exponent(sizes[-TAIL:], seconds[-TAIL:]):.2f}" if len(sizes) > TAIL else ""
    return f"{exponent(sizes, seconds):.2f}", last


def cost_table(records: Sequence[Record], case: str, what: str) -> Table:
    """Return the time of a step by size, and its ratio to the smallest, within a round."""
    sizes, seconds = curve(records, case)
    names = [next(r["subject"] for r in records if r["case"] == case and float(r["subject"]) == s) for s in sizes]
    mine = [r for r in records if r["case"] == case]
    rows = [
        [name, 1e3 * value, spread(ratios(mine, "seconds", name, names[0]))]
        for name, value in zip(names, seconds, strict=True)
    ]
    return Table((what, "ms per step", f"ratio to {names[0] if names else 'the first'}"), rows)


def present(records: Sequence[Record]) -> Section:
    """Show measured and expected exponents, then every curve."""
    rows = [[axis, *exponents(records, axis), EXPECTED[axis]] for axis in AXES if curve(records, axis)[0]]
    columns = ("axis", "measured exponent", f"of the {TAIL} largest", "expected")
    text = (
        "Time of a training step of the default flow by the number of parameters p, the order M and the number of "
        f"particles S, with the others at their defaults (p = {DIM}, M = 20, S = 32). The target is the non-centered "
        "hierarchy of eight schools with p - 2 schools. The exponent is the slope of log time over log size."
    )
    tables = [cost_table(records, axis, axis) for axis in AXES if curve(records, axis)[0]]
    return Section([text, Table(columns, rows), *tables])


RESTARTS = "restarts"


def restart_cases(scale: Scale) -> list[Case]:
    """Return one case over the number of restarts."""
    values = scale.pick(tiny=(1, 2), quick=(1, 4, 16), normal=(1, 4, 16, 64))
    return [Case(RESTARTS, {str(v): {"dim": DIM, "restarts": v, **_length(scale)} for v in values}, scale.rounds)]


def present_restarts(records: Sequence[Record]) -> Section:
    """Show the cost of restarts in units of one."""
    text = (
        "Restarts are trained simultaneously. Time of a step of all of them together, for eight schools and the "
        "default flow; if they were trained one after the other, the ratio to one restart would equal their number."
    )
    return Section([text, cost_table(records, RESTARTS, RESTARTS)])


PART = Part("growth", "How a step grows", cases, measure, present)
RESTARTS_PART = Part("restarts", "Restarts", restart_cases, measure, present_restarts)
