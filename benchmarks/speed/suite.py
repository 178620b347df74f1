"""Run the suite: one measurement at a time, each in a process of its own, and everything is written after each.

What is compared with each other, the subjects of a case in one round, is measured in one run: a comparison that was
interrupted begins again as a whole.
"""

import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.accuracy.processes import OUT_OF_TIME, run_apart
from benchmarks.speed.catalogue import PARTS
from benchmarks.speed.measure import machine_task, measure_task
from benchmarks.speed.part import OK, SCALES, Part
from benchmarks.study.plan import Result, Task
from benchmarks.study.records import Record, load_records, save_records
from benchmarks.study.stamp import stamp
from bernflow import ArgumentError, BernflowError, FileFormatError

FILE = "speed.json"
MACHINE = "machine"
NOTES = (
    "One record per measurement; the first describes the machine. seconds: median per step. Times are comparable "
    "within one case and round, which were measured in one run, and nowhere else.",
)
# What must agree for figures to stand in one file.
SAME = ("processor", "cores", "platform", "device")

Runner = Callable[[Sequence[Task], int, float], Iterator[tuple[Task, Result]]]


def run_where_jax_computes(tasks: Sequence[Task], jobs: int, seconds: float) -> Iterator[tuple[Task, Result]]:
    """Run tasks in processes of their own, on the default device of JAX."""
    return run_apart(tasks, jobs, seconds, platform=None)


@dataclass(frozen=True)
class Options:
    """What the command line says; None: as usual."""

    scale: str
    out: Path
    parts: list[str] | None = None
    fresh: bool = False
    rounds: int | None = None
    time_limit: float = 3600.0
    peak_flops: float | None = None
    peak_bandwidth: float | None = None


class Group(NamedTuple):
    """What is compared with each other."""

    part: Part
    tasks: tuple[Task, ...]


class Suite:
    """The plan of a run, and the records so far."""

    def __init__(self, options: Options, say: Callable[[str], None], runner: Runner = run_where_jax_computes):
        self._options, self._say, self._runner = options, say, runner
        scale = SCALES[options.scale]
        self._scale = scale if options.rounds is None else replace(scale, rounds=options.rounds)
        unknown = [name for name in options.parts or () if name not in PARTS]
        if unknown:
            raise ArgumentError(f"There is no part {', '.join(unknown)}: expected some of {', '.join(PARTS)}.")
        for option, value in (
            ("--rounds", options.rounds),
            ("--time-limit", options.time_limit),
            ("--peak-flops", options.peak_flops),
            ("--peak-bandwidth", options.peak_bandwidth),
        ):
            if value is not None and not value > 0:
                raise ArgumentError(f"{option} {value:g}: expected a positive number.")
        self._path = options.out / FILE
        self.records = _load(self._path)
        # One run is what figures are compared in; processes of one second have different numbers.
        self._run = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}-{os.getpid()}"

    def run(self) -> None:
        """Look at the machine, then measure what is missing, round by round."""
        platform = self._look_at_machine()
        groups = [group for group in self._groups(platform) if self._options.fresh or not self._is_kept(group)]
        total, count = sum(len(group.tasks) for group in groups), 0
        for group in groups:
            for task in group.tasks:
                self.records.pop(identity(task.arguments), None)
            for task, result in self._runner(group.tasks, 1, self._options.time_limit):
                count += 1
                known = {
                    "run": self._run,
                    "time_limit": self._options.time_limit,
                    **stamp(device=False),
                    "code": task.code,
                }
                record = {**task.arguments, **known, **result}
                self.records[identity(record)] = record
                self._save()
                self._say(f"[{count}/{total}] {describe(record)}")
        self._save()

    def sorted_records(self) -> list[Record]:
        """Return the records in the order of the parts, that of the machine first."""
        order = [MACHINE, *PARTS]
        known = [record for record in self.records.values() if record["part"] in order]
        return sorted(known, key=lambda record: order.index(record["part"]))

    def _look_at_machine(self) -> str:
        ((_, found),) = self._runner([machine_task()], 1, self._options.time_limit)
        if found["status"] != OK:
            raise BernflowError(f"The machine cannot be described ({found['status']}): does JAX work? bernflow doctor")
        kept = self.records.get(identity({"part": MACHINE}))
        if kept is not None and not self._options.fresh:
            differ = [name for name in SAME if kept.get(name) != found[name]]
            if differ:
                told = "; ".join(f"{name}: {kept.get(name)}, now {found[name]}" for name in differ)
                raise ArgumentError(
                    f"{self._path} was measured on another machine ({told}), and times of two machines cannot be "
                    "compared: choose another folder with --out, or measure everything anew with --fresh."
                )
        if kept is None or self._options.fresh:
            # What another machine has measured goes with it.
            self.records = {identity({"part": MACHINE}): {"part": MACHINE, "run": self._run, **found}}
        return found["platform"]

    def _groups(self, platform: str) -> Iterator[Group]:
        names = self._options.parts
        for part in PARTS.values():
            if part.name not in names if names else part.on_accelerator and platform == "cpu":
                continue
            cases = part.cases(self._scale)
            for number in range(max((case.rounds for case in cases), default=0)):
                for case in cases:
                    if number < case.rounds:
                        subjects = case.subjects.items()
                        yield Group(part, tuple(measure_task(part.name, case.name, s, number, c) for s, c in subjects))

    def _is_kept(self, group: Group) -> bool:
        found = [self.records.get(identity(task.arguments)) for task in group.tasks]
        kept = [record for record in found if record is not None]
        if len(kept) < len(found) or len({record["run"] for record in kept}) > 1:
            return False
        return all(self._counts(group.part, r, task) for r, task in zip(kept, group.tasks, strict=True))

    def _counts(self, part: Part, record: Record, task: Task) -> bool:
        if record["settings"] != task.arguments["settings"] or record.get("code") != task.code:
            return False
        if record["status"].startswith(OUT_OF_TIME):
            return record["time_limit"] >= self._options.time_limit
        # What was not installed may be by now.
        return record["status"] in (OK, part.missing(record["subject"]))

    def _save(self) -> None:
        peaks = {"peak_flops": self._options.peak_flops, "peak_bandwidth": self._options.peak_bandwidth}
        for record in self.records.values():
            if record["part"] == "roofline":
                record |= {name: value for name, value in peaks.items() if value is not None}
        save_records(self._path, self.sorted_records(), NOTES)


def identity(record: Any) -> tuple:
    """Return what two records of the same measurement have in common."""
    return record["part"], record.get("case"), record.get("subject"), record.get("round")


def describe(record: Record) -> str:
    """Put one record into a line."""
    name = f"{record['part']}, {record['case']}, {record['subject']}, round {record['round'] + 1}: "
    if record["status"] != OK:
        return name + record["status"]
    shown = ("seconds", "cold_seconds", "warm_seconds", "first_seconds", "second_seconds", "kl", "min_ess")
    return name + ", ".join(f"{key} {record[key]:.4g}" for key in shown if record.get(key) is not None)


def _load(path: Path) -> dict[tuple, Record]:
    try:
        return {identity(record): record for record in load_records(path)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path} does not hold records of this suite ({type(error).__name__}: {error}): expected a file that "
            "`bernflow benchmark speed` wrote. Choose another folder with --out."
        ) from error
