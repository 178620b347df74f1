"""Run the suite: fit every case with the defaults and compare its verdict with the truth; kept after each fit."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bernflow as bf
from benchmarks.adversarial.case import Case, errors_of
from benchmarks.adversarial.catalogue import CASES, FAMILIES
from benchmarks.models.stamp import stamp
from benchmarks.study.records import Record, load_records, save_records
from bernflow import ArgumentError

FILE = "adversarial.json"
NUM_DRAWS = 40_000
NOTES = (
    "One record per posterior and key, fitted with the defaults. Errors are the largest over all parameters, of means "
    "in posterior standard deviations, of standard deviations relative, each less three Monte Carlo standard errors of "
    "40,000 draws. wrong: a mean is off by more than 0.1, or a standard deviation by more than 10 %; of posteriors "
    "that are not proper every answer is.",
)


@dataclass(frozen=True)
class Options:
    """The options of the command line; None: all."""

    out: Path
    cases: list[str] | None = None
    keys: int = 1
    fresh: bool = False


class Suite:
    """The plan of a run, and the records so far."""

    def __init__(self, options: Options, say: Callable[[str], None]):
        self._say, self._path = say, options.out / FILE
        if options.keys < 1:
            raise ArgumentError(f"--keys {options.keys}: expected a whole number of at least 1.")
        self.cases = choose(options.cases)
        self._keys, self._fresh = options.keys, options.fresh
        self.records: dict[tuple[str, int], Record] = {(r["case"], r["key"]): r for r in load_records(self._path)}

    def run(self) -> None:
        """Fit what is missing."""
        todo = [(key, case) for key in range(self._keys) for case in self.cases]
        todo = [(key, case) for key, case in todo if self._fresh or (case.name, key) not in self.records]
        for count, (key, case) in enumerate(todo, start=1):
            record = measure(case, key)
            self.records[case.name, key] = record
            save_records(self._path, self.sorted_records(), NOTES)
            self._say(f"[{count}/{len(todo)}] {describe(record)}")

    def sorted_records(self) -> list[Record]:
        """Return the records in the order of the catalogue."""
        names = list(CASES)
        known = [record for record in self.records.values() if record["case"] in CASES]
        return sorted(known, key=lambda record: (record["key"], names.index(record["case"])))


def choose(names: Sequence[str] | None) -> list[Case]:
    """Return the cases of some names or families."""
    unknown = [name for name in names or () if name not in CASES and name not in FAMILIES]
    if unknown:
        raise ArgumentError(
            f"There is no case {', '.join(unknown)}: expected names or families; `--list` shows them all."
        )
    return [case for case in CASES.values() if names is None or case.name in names or case.family in names]


def measure(case: Case, key: int) -> Record:
    """Fit one case and compare the answer with the truth."""
    model, args = case.build()
    began, computing = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = bf.fit(model, *args, key=key, progress=False)
    seconds = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - computing}
    d = posterior.diagnostics
    found: dict[str, Any] = {"mean_error": None, "sd_error": None, "wrong": True}
    if case.truth is not None:
        errors = errors_of(posterior.draws(NUM_DRAWS, key=1), case.truth)
        found = {"mean_error": errors.mean, "sd_error": errors.sd, "wrong": errors.wrong}
    judged = {name: getattr(d, name) for name in ("verdict", "khat", "ess_fraction", "missing_mass", "improper")}
    parts = len(getattr(posterior.distribution, "components", (None,)))
    return {
        "case": case.name,
        "family": case.family,
        "key": key,
        "proper": case.is_proper,
        **judged,
        "parts": parts,
        **found,
        **seconds,
        "status": d.status,
        **stamp(),
    }


def describe(record: Record) -> str:
    """Put one record into a line."""
    errors = "" if record["mean_error"] is None else f"mean {record['mean_error']:.3f}, sd {record['sd_error']:.3f}, "
    outcome = "wrong" if record["wrong"] else "right"
    return f"{record['case']}: {record['verdict']}, {outcome}, {errors}{record['cpu_seconds']:.1f} s"
