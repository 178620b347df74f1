"""Run the suite: fit every case with the defaults and compare its verdict with the truth; kept after each fit."""

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import bernflow as bf
from benchmarks.adversarial.case import Case, errors_of
from benchmarks.adversarial.catalogue import CASES, FAMILIES
from benchmarks.adversarial.schedule import PUBLISHED, longest_first
from benchmarks.study.records import Record, load_records, save_records
from benchmarks.study.stamp import stamp
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
    """The options of the command line.

    Attributes:
        out: folder of the results.
        cases: names of cases and families; None: all.
        keys: number of keys of every case; None: by case.
        jobs: number of processes; 1: this one.
        minutes: no fit begins later than that after the start; None: no limit.
        fresh: whether to repeat what an earlier run has finished.
        merge: folders of other runs, whose records are taken over; the last one counts where several have a fit.
    """

    out: Path
    cases: list[str] | None = None
    keys: int | None = None
    jobs: int = 1
    minutes: float | None = None
    fresh: bool = False
    merge: tuple[Path, ...] = ()


class Suite:
    """The plan of a run, and the records so far."""

    def __init__(self, options: Options, say: Callable[[str], None]):
        self._say, self._path, self._options = say, options.out / FILE, options
        for name, value in (("keys", options.keys), ("jobs", options.jobs)):
            if value is not None and value < 1:
                raise ArgumentError(f"--{name} {value}: expected a whole number of at least 1.")
        self.cases = choose(options.cases)
        self.records = _by_fit(load_records(self._path))
        for folder in options.merge:
            self._take_over(folder / FILE)

    def run(self) -> None:
        """Fit what is missing."""
        todo = self._missing()
        minutes = self._options.minutes
        end = None if minutes is None else time.time() + 60.0 * minutes
        tasks = {f"{name}, key {key}": Task(name, key, end) for name, key in todo}
        with _executor(self._options.jobs) as executor:
            results = bf.map_fits(measure_task, tasks, executor=executor, progress=False)
            for count, result in enumerate(results, start=1):
                if not result.ok:
                    self._say(f"[{count}/{len(todo)}] {result.name}: {result.error}\n{result.traceback}")
                elif record := result.value:
                    self.records[record["case"], record["key"]] = record
                    self._save()
                    self._say(f"[{count}/{len(todo)}] {describe(record)}")

    def _take_over(self, path: Path) -> None:
        """Add the records of another run to those of this folder."""
        if not path.exists():
            raise ArgumentError(f"--merge: there is no {path}: expected a folder with the results of a run.")
        self.records |= _by_fit(load_records(path))
        self._save()

    def _save(self) -> None:
        save_records(self._path, self.sorted_records(), NOTES)

    def _missing(self) -> list[tuple[str, int]]:
        """Return the names and keys of fits that are to be made.

        One process takes the first key of all cases first, so that a part of a run is a sample of all. Several take
        the longest fits first, so that none of them works alone at the end.
        """
        keys = {case.name: self._options.keys or case.num_keys for case in self.cases}
        plan = [(name, key) for key in range(max(keys.values())) for name, num in keys.items() if key < num]
        missing = [task for task in plan if self._options.fresh or task not in self.records]
        if self._options.jobs == 1:
            return missing
        return longest_first(missing, [*load_records(PUBLISHED / FILE), *self.records.values()])

    def sorted_records(self) -> list[Record]:
        """Return the records in the order of the catalogue."""
        names = {name: i for i, name in enumerate(CASES)}
        known = [record for record in self.records.values() if record["case"] in CASES]
        return sorted(known, key=lambda record: (record["key"], names[record["case"]]))


class Task(NamedTuple):
    """A fit of a process: the name of its case, its key, and when it is too late to begin (seconds of the epoch)."""

    case: str
    key: int
    end: float | None


def _by_fit(records: Sequence[Record]) -> dict[tuple[str, int], Record]:
    return {(record["case"], record["key"]): record for record in records}


def measure_task(task: Task) -> Record:
    """Fit and judge, or return nothing if it is too late."""
    return {} if task.end is not None and time.time() > task.end else measure(CASES[task.case], task.key)


@contextmanager
def _executor(jobs: int) -> Iterator[ProcessPoolExecutor | None]:
    """Open a pool whose processes have a processor each, so that none computes with several threads; None for one."""
    if jobs == 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")
    counter, before = context.Value("i", 0), os.environ.copy()
    os.environ.update(ONE_THREAD)
    try:
        with ProcessPoolExecutor(jobs, context, _begin, (counter,)) as executor:
            yield executor
    finally:
        os.environ.clear()
        os.environ.update(before)


# Read by new processes before they import anything.
ONE_THREAD = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def _begin(counter: Any) -> None:
    """Give this process a processor of its own, as far as there are enough of them."""
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    if hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[number % len(processors)]})


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
