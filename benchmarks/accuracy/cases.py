"""The targets of the suite, in groups: a test set, and those of development, on which constants were chosen."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from benchmarks import heldout
from benchmarks.posteriordb.catalogue import POSTERIORS, Entry
from benchmarks.posteriordb.reference import find_folder, load_data
from benchmarks.targets import BENCHMARKS, Benchmark
from bernflow import ArgumentError

HELD_OUT, PAPER, POSTERIORDB, STRESS = "held-out", "paper", "posteriordb", "stress"
GROUPS = {
    HELD_OUT: "Test set: posteriors drawn from a recipe",
    PAPER: "The paper's posteriors",
    POSTERIORDB: "Real posteriors of posteriordb",
    STRESS: "Stress targets",
}


@dataclass(frozen=True)
class Case:
    """One target of the suite.

    Attributes:
        benchmark: the target.
        group: one of `GROUPS`.
        entry: its place in posteriordb, for the columns of the reference draws.
    """

    benchmark: Benchmark
    group: str
    entry: Entry | None = None


def all_cases(folder: str | PathLike | None = None) -> dict[str, Case]:
    """Return every target by its name.

    Args:
        folder: the folder of posteriordb; nothing is read from it before a target's data are needed.
    """
    # The funnel is among the stress targets, in three sizes.
    cases = {name: Case(benchmark, HELD_OUT) for name, benchmark in heldout.HELD_OUT.items()}
    cases |= {name: Case(benchmark, PAPER) for name, benchmark in BENCHMARKS.items() if name != "funnel"}
    cases |= {name: Case(_benchmark(entry, folder), POSTERIORDB, entry) for name, entry in POSTERIORS.items()}
    cases |= {name: Case(benchmark, STRESS) for name, benchmark in _stress().items()}
    return cases


def in_development(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return the targets on which the constants of bernflow were chosen."""
    return {name: case for name, case in cases.items() if case.group != HELD_OUT}


def held_out(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return the targets of the test set, which nothing was chosen on."""
    return {name: case for name, case in cases.items() if case.group == HELD_OUT}


def choose(cases: dict[str, Case], names: list[str]) -> dict[str, Case]:
    """Return the targets of these names or groups, in the order of the suite."""
    unknown = [name for name in names if name not in cases and name not in GROUPS]
    if unknown:
        raise ArgumentError(
            f"There is no target {', '.join(unknown)}: expected a group ({', '.join(GROUPS)}) or some of "
            f"{', '.join(cases)}."
        )
    return {name: case for name, case in cases.items() if name in names or case.group in names}


def without_missing(cases: dict[str, Case], folder: str | PathLike | None) -> tuple[dict[str, Case], str | None]:
    """Leave out the targets whose data are not there, and say so."""
    if all(case.group != POSTERIORDB for case in cases.values()):
        return cases, None
    try:
        find_folder(folder)
    except ArgumentError as error:
        kept = {name: case for name, case in cases.items() if case.group != POSTERIORDB}
        return kept, f"The {len(cases) - len(kept)} posteriors of posteriordb are left out. {error}"
    return cases, None


def _benchmark(entry: Entry, folder: str | PathLike | None) -> Benchmark:
    def load() -> tuple[Any, ...]:
        return (load_data(entry, folder),)

    return Benchmark(entry.name, entry.name, entry.numpyro, load)


def _stress() -> dict[str, Benchmark]:
    if importlib.util.find_spec("benchmarks.stress") is None:
        return {}
    from benchmarks.stress import STRESS as TARGETS

    return dict(TARGETS)
