"""Run the suite: one measurement at a time, each in a process of its own, and everything is written after each."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.processes import OUT_OF_TIME
from benchmarks.models import references
from benchmarks.models.catalogue import catalogue, choose, without_missing
from benchmarks.models.measure import OK, fit_task, reference_task
from benchmarks.models.methods import METHODS
from benchmarks.models.moments import Moments, errors
from benchmarks.speed.suite import run_where_jax_computes
from benchmarks.study.arrays import read_arrays
from benchmarks.study.plan import Result, Task
from benchmarks.study.records import Record, load_records, save_records
from benchmarks.study.writing import write_whole
from bernflow import ArgumentError, FileFormatError

FILE = "models.json"
# Moments of every fit, so that errors can be computed when a reference is made later.
KEPT = ".kept"
WARM_LIMIT = 120.0
NOTES = (
    "One record per model and method. cold_seconds: first call in a new process, imports excluded, compilation "
    "included; warm_seconds: second call in the same process. Errors of means are in posterior standard deviations, "
    "errors of standard deviations are relative, both on the unconstrained scale.",
)

Runner = Callable[[Sequence[Task], int, float], Iterator[tuple[Task, Result]]]


@dataclass(frozen=True)
class Options:
    """The options of the command line; None: the default."""

    out: Path
    models: list[str] | None = None
    methods: list[str] | None = None
    references: bool = False
    fresh: bool = False
    data: Path | None = None
    time_limit: float = 3600.0
    warm_limit: float = WARM_LIMIT


class Suite:
    """The plan of a run, and the records so far."""

    def __init__(self, options: Options, say: Callable[[str], None], runner: Runner = run_where_jax_computes):
        self._options, self._say, self._runner = options, say, runner
        entries, note = without_missing(choose(catalogue(options.data), options.models), options.data)
        if note:
            say(note)
        self.entries = entries
        unknown = [name for name in options.methods or () if name not in METHODS]
        if unknown:
            raise ArgumentError(f"There is no method {', '.join(unknown)}: expected some of {', '.join(METHODS)}.")
        for option, value in (("--time-limit", options.time_limit), ("--warm-limit", options.warm_limit)):
            if not value >= 0 or (option == "--time-limit" and value == 0):
                raise ArgumentError(f"{option} {value:g}: expected a positive number of seconds.")
        by_default = [name for name, method in METHODS.items() if method.by_default]
        chosen = by_default if options.methods is None else options.methods
        self.methods = [name for name in METHODS if name in chosen]
        self.references = options.out / references.FOLDER
        self._path = options.out / FILE
        self.records = _load(self._path)

    def run(self) -> None:
        """Make the references that are missing, if asked to, then measure what is missing."""
        if self._options.references:
            self._make_references()
        tasks = [task for task in self._tasks() if self._options.fresh or not self._is_kept(task)]
        for count, (task, result) in enumerate(self._runner(tasks, 1, self._options.time_limit), start=1):
            moments = result.pop("moments", None)
            known = {name: value for name, value in task.arguments.items() if name != "data"}
            record = {**known, "time_limit": self._options.time_limit, "code": task.code, **result}
            if moments is not None:
                _keep(moments, self._moments_path(record))
            self.records[identity(record)] = record
            self._compare(record)
            self._save()
            self._say(f"[{count}/{len(tasks)}] {describe(record)}")
        for record in self.records.values():
            self._compare(record)
        self._save()

    def sorted_records(self) -> list[Record]:
        """Return the records in the order of the catalogue and of the methods."""
        names, methods = list(catalogue()), list(METHODS)
        known = [r for r in self.records.values() if r["model"] in names and r["method"] in methods]
        return sorted(known, key=lambda r: (names.index(r["model"]), methods.index(r["method"])))

    def _make_references(self) -> None:
        missing = [name for name in self.entries if references.load(name, self.references) is None]
        tasks = [reference_task(name, self.references, self._options.data) for name in missing]
        for count, (task, result) in enumerate(self._runner(tasks, 1, 3.0 * self._options.time_limit), start=1):
            self._say(f"[{count}/{len(tasks)}] reference of {task.arguments['model']}: {result['status']}")

    def _tasks(self) -> Iterator[Task]:
        """Yield the measurements, the methods of one model one after the other."""
        for model in self.entries:
            for method in self.methods:
                settings = {**METHODS[method].settings, "warm_limit": self._options.warm_limit}
                yield fit_task(model, method, settings, self._options.data)

    def _is_kept(self, task: Task) -> bool:
        kept = self.records.get(identity(task.arguments))
        if kept is None or kept["settings"] != task.arguments["settings"] or kept.get("code") != task.code:
            return False
        if kept["status"].startswith(OUT_OF_TIME):
            return kept["time_limit"] >= self._options.time_limit
        return kept["status"] == OK

    def _compare(self, record: Record) -> None:
        """Add the errors against the reference, where there is one and the moments of the fit are kept."""
        truth = references.load(record["model"], self.references)
        path = self._moments_path(record)
        if record["status"] == OK and truth is not None and path.is_file():
            record |= errors(_read(path), truth.moments)
            record["reference"] = {name: truth.header[name] for name in ("commit", "date", "ess_bulk", "divergences")}

    def _moments_path(self, record: Record) -> Path:
        return self._options.out / KEPT / f"{record['model']}-{record['method']}.npz"

    def _save(self) -> None:
        save_records(self._path, self.sorted_records(), NOTES)


def identity(record: Any) -> tuple[str, str]:
    """Return what two records of the same measurement have in common."""
    return record["model"], record["method"]


def describe(record: Record) -> str:
    """Put one record into a line."""
    name = f"{record['model']}, {record['method']}: "
    if record["status"] != OK:
        return name + record["status"]
    parts = [f"{record['cold_seconds']:.1f} s", f"{record['gradients']:,} gradients", record["verdict"]]
    if "khat" in record:
        parts += [f"k-hat {record['khat']:.2f}", f"ESS {record['ess_fraction']:.3f}", f"ELBO {record['elbo']:.3f}"]
    if "min_ess_bulk" in record:
        parts.append(f"smallest ESS {record['min_ess_bulk']:.0f}")
    if "mean_error_largest" in record:
        parts.append(f"mean {record['mean_error_largest']:+.3f} sd, sd {record['sd_error_largest']:+.3f}")
    return name + ", ".join(parts)


def _keep(moments: Moments, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = {"names": np.array(json.dumps(moments.names)), "mean": moments.mean, "sd": moments.sd}
    write_whole(path, lambda file: np.savez_compressed(file, allow_pickle=False, **contents))


def _read(path: Path) -> Moments:
    file = read_arrays(path)
    return Moments(tuple(json.loads(str(file["names"]))), file["mean"], file["sd"])


def _load(path: Path) -> dict[tuple[str, str], Record]:
    try:
        return {identity(record): record for record in load_records(path)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path} does not hold records of this suite ({type(error).__name__}: {error}): expected a file that "
            "`bernflow benchmark models` wrote. Choose another folder with --out."
        ) from error
