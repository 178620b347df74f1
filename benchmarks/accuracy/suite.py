"""Run the suite: what is kept is used, what is missing is measured, and everything is written after each fit."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy import reference
from benchmarks.accuracy.cases import Case, all_cases, choose, without_missing
from benchmarks.accuracy.measure import OK, fit_task, reference_task
from benchmarks.accuracy.methods import METHODS, Method
from benchmarks.accuracy.methods.ours import THOROUGH
from benchmarks.accuracy.processes import OUT_OF_TIME, run_apart
from benchmarks.study.digest import code_digest
from benchmarks.study.plan import Result, Task
from benchmarks.study.records import Record, load_records, save_records
from benchmarks.study.stamp import stamp
from bernflow import ArgumentError, FileFormatError

FILE = "accuracy.json"
NOTES = (
    "One record per fit. matched: whether the method was given as many gradient evaluations as bernflow took (median "
    "over the keys). Each is stamped with date, commit, machine, versions, and a digest of the code behind it.",
)
# The most seconds that one measurement may take, from the start of its process to its last figure, ours and others'.
TIME_LIMIT = 900.0
# What the figures of every method depend on, beside the method itself.
COMMON = ("benchmarks.accuracy.cases", "benchmarks.accuracy.judge", "benchmarks.accuracy.reference")
# References are worth more time than fits: they are made once.
REFERENCE_TIME = 3.0

Runner = Callable[[Sequence[Task], int, float], Iterator[tuple[Task, Result]]]


@dataclass(frozen=True)
class Tier:
    """How much is measured.

    Attributes:
        num_keys: number of seeds: 0, 1, ...
        targets: names of targets or groups.
        methods: names of methods.
        num_draws: draws behind ELBO, KL, k-hat and ESS.
        nuts: settings of the references that are runs of NUTS; None leaves those out.
    """

    num_keys: int
    targets: tuple[str, ...]
    methods: tuple[str, ...]
    num_draws: int
    nuts: dict[str, Any] | None


TIERS = {
    "full": Tier(3, ("held-out", "paper", "posteriordb", "stress"), tuple(METHODS), 50_000, reference.LONG),
    "quick": Tier(
        1,
        (
            "bernoulli",
            "toy-regression",
            "eight-schools-noncentered",
            "funnel-10",
            "kidiq-kidscore_interaction",
            "modes-2-2",
        ),
        tuple(name for name in METHODS if name not in ("AutoBNAFNormal", "start-BNAF", "nuts")),
        20_000,
        None,
    ),
}


@dataclass(frozen=True)
class Options:
    """What the command line says; None: as the tier has it."""

    tier: str
    out: Path
    targets: list[str] | None = None
    methods: list[str] | None = None
    keys: int | None = None
    jobs: int = 1
    fresh: bool = False
    data: Path | None = None
    time_limit: float = TIME_LIMIT


class Suite:
    """The plan of a run, and the records so far."""

    def __init__(self, options: Options, say: Callable[[str], None], runner: Runner = run_apart):
        self.tier = TIERS[options.tier]
        self._options, self._say, self._runner = options, say, runner
        self.cases = self._choose_cases()
        self.methods = self._choose_methods()
        self._num_keys = _count("--keys", options.keys, self.tier.num_keys)
        _count("--jobs", options.jobs, 1)
        if not options.time_limit > 0:
            raise ArgumentError(f"--time-limit {options.time_limit:g}: expected a positive number of seconds.")
        self._path = options.out / FILE
        self.records = _load(self._path)

    def run(self) -> None:
        """Make the references, then measure every method with its defaults, then with the budget of ours."""
        self._make_references()
        self._measure([task for case in self.cases.values() for task in self._tasks(case, matched=False)])
        self._measure([task for case in self.cases.values() for task in self._tasks(case, matched=True)])

    def _choose_cases(self) -> dict[str, Case]:
        known = all_cases(self._options.data)
        named = self._options.targets
        # A tier may name targets that this installation lacks, a user may not.
        names = list(self.tier.targets) if named is None else named
        if named is None:
            names = [name for name in names if name in known or name in {case.group for case in known.values()}]
        cases, note = without_missing(choose(known, names), self._options.data)
        if note:
            self._say(note)
        return cases

    def _choose_methods(self) -> list[Method]:
        names = self.tier.methods if self._options.methods is None else self._options.methods
        unknown = [name for name in names if name not in METHODS]
        if unknown:
            raise ArgumentError(f"There is no method {', '.join(unknown)}: expected some of {', '.join(METHODS)}.")
        return [method for name, method in METHODS.items() if name in names]

    def _make_references(self) -> None:
        settings, out = self.tier.nuts, self._options.out
        if settings is None:
            return
        missing = [
            case.benchmark
            for case in self.cases.values()
            if reference.needs_run(case) and not reference.is_made(case.benchmark, out, settings)
        ]
        tasks = [reference_task(benchmark.name, settings, out) for benchmark in missing]
        for count, (task, result) in enumerate(self._run(tasks, REFERENCE_TIME), start=1):
            self._say(f"[{count}/{len(tasks)}] reference of {task.arguments['target']}: {result['status']}")

    def _tasks(self, case: Case, matched: bool) -> Iterator[Task]:
        """Yield the measurements of a target that are not kept already."""
        budget = self._budget(case) if matched else None
        if matched and budget is None:
            return
        for method in self.methods:
            settings = method.chosen(case.benchmark, self._options.tier == "quick", budget)
            if settings is None or not method.applies(case.benchmark):
                continue
            for key in range(self._num_keys):
                task = self._task(case, method, key, settings, matched)
                if self._options.fresh or not self._is_kept(task):
                    yield task

    def _task(self, case: Case, method: Method, key: int, settings: dict[str, Any], matched: bool) -> Task:
        return fit_task(
            case.benchmark.name,
            method.name,
            key,
            settings,
            matched=matched,
            num_draws=self.tier.num_draws,
            out=self._options.out,
            data=self._options.data,
        )

    def _is_kept(self, task: Task) -> bool:
        kept = self.records.get(identity(task.arguments))
        if kept is None or any(kept.get(name) != task.arguments[name] for name in ("settings", "num_draws")):
            return False
        if kept.get("code") != code_of(task.arguments["method"]):
            return False
        status = kept["status"]
        # One limit for all: what took longer, or was stopped by another one, does not count.
        if status.startswith(OUT_OF_TIME):
            return kept["time_limit"] == self._options.time_limit
        if kept["time_limit"] != self._options.time_limit:
            return False
        # What was not installed may be by now.
        missing = METHODS[kept["method"]].missing()
        return not status.startswith("failed") and (missing is not None or "is not installed" not in status)

    def _budget(self, case: Case) -> int | None:
        """Return the number of gradient evaluations that our thorough fits took on a target, median over the keys."""
        taken = [
            record["gradients"]
            for record in self.records.values()
            if (record["target"], record["method"], record["status"]) == (case.benchmark.name, THOROUGH, OK)
        ]
        return int(statistics.median(taken)) if taken else None

    def _measure(self, tasks: list[Task]) -> None:
        for count, (task, result) in enumerate(self._run(tasks, 1.0), start=1):
            known = {name: value for name, value in task.arguments.items() if name not in ("out", "data")}
            made = {**stamp(device=False), "code": code_of(known["method"])}
            record = {**known, "time_limit": self._options.time_limit, **made, **result}
            self.records[identity(record)] = record
            save_records(self._path, self.sorted_records(), NOTES)
            self._say(f"[{count}/{len(tasks)}] {describe(record)}")

    def _run(self, tasks: list[Task], patience: float) -> Iterator[tuple[Task, Result]]:
        return self._runner(tasks, self._options.jobs, patience * self._options.time_limit)

    def sorted_records(self) -> list[Record]:
        """Return the records in the order of the suite, whatever the order in which they came."""
        names, methods = list(all_cases(self._options.data)), list(METHODS)
        known = [r for r in self.records.values() if r["target"] in names and r["method"] in methods]
        return sorted(
            known, key=lambda r: (names.index(r["target"]), r["matched"], methods.index(r["method"]), r["key"])
        )


def code_of(method: str) -> str:
    """Return the digest of the code behind the measurements of a method: its own, the targets, and the judge."""
    return code_digest(*COMMON, METHODS[method].module)


def identity(record: Any) -> tuple:
    """Return what two records of the same run have in common."""
    return record["target"], record["method"], record["key"], record["matched"]


def _load(path: Path) -> dict[tuple, Record]:
    try:
        return {identity(record): record for record in load_records(path)}
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path} does not hold records of this suite ({type(error).__name__}: {error}): expected a file that "
            "`bernflow benchmark accuracy` wrote. Choose another folder with --out."
        ) from error


def describe(record: Record) -> str:
    """Put one record into a line."""
    name = f"{record['target']}, {record['method']}, key {record['key']}{', matched' if record['matched'] else ''}: "
    if record["status"] != OK:
        return name + record["status"]
    parts = [f"KL {record['kl']:.4f}"] if record.get("kl") is not None else []
    if "elbo" in record:
        parts += [f"ELBO {record['elbo']:.4f}, k-hat {record['khat']:.2f}, ESS {record['ess_fraction']:.3f}"]
    if "mean_error" in record:
        parts += [f"worst mean {record['mean_error']:+.3f} sd, worst sd {record['sd_error']:+.3f}"]
    verdict = f", {record['verdict']}" if record["verdict"] else ""
    return f"{name}{', '.join(parts)}, {record['seconds']:.0f} s{verdict}"


def _count(option: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if value < 1:
        raise ArgumentError(f"{option} {value}: expected a whole number of at least 1.")
    return value
