"""What the page of an experiment says of its origin, and whether it is that of the present code."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.study.page import Page
from benchmarks.study.plan import Experiment, Task
from benchmarks.study.stamp import FIELDS, sentence
from benchmarks.study.writing import read_plain

# Where the numbers of a page say how they were made.
ORIGIN = "origin"
FILE = "numbers.json"


def with_origin(
    page: Page, experiment: Experiment, scale: str, tasks: Sequence[Task], made: Sequence[Mapping[str, Any]]
) -> Page:
    """Add to a page the command, and date, commit, machine, versions and duration of its results."""
    option = "" if scale == "full" else f" --{scale}"
    seconds = sum(m.get("seconds", 0.0) for m in made)
    told = f"Made by `bernflow reproduce {experiment.command or experiment.name}{option}`. {sentence(made)}"
    if seconds:
        told += f" The {len(made)} tasks took {duration(seconds)}, one after the other."
    stamps = list({json.dumps(s, sort_keys=True): s for s in ({n: m.get(n) for n in FIELDS} for m in made)}.values())
    origin = {"scale": scale, "seconds": seconds, "stamps": stamps, "code": code_of(tasks), "tasks": names_of(tasks)}
    return Page(page.title, [*page.blocks, told], {**page.numbers, ORIGIN: origin})


def code_of(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the digest of the code behind every function of the tasks."""
    return {task.function: task.code for task in tasks}


def names_of(tasks: Iterable[Task]) -> list[str]:
    """Return what tells apart tasks of other settings, without the readable part."""
    return sorted({task.identity.rpartition("-")[2] for task in tasks})


def why_old(experiment: Experiment, folder: Path) -> str | None:
    """Say why the kept results of an experiment are not those of the present code; None where they are."""
    origin = read_origin(folder)
    if origin is None:
        return "does not say by what code it was made"
    told = sentence(origin["stamps"])
    if any(Task(function, {}).code != code for function, code in origin["code"].items()):
        return f"was made by other code ({told})"
    # What is planned may be less: pictures that were there may be elsewhere now.
    if not set(names_of(experiment.tasks(origin["scale"]))) <= set(origin["tasks"]):
        return f"was made with other settings ({told})"
    return None


def read_origin(folder: Path) -> dict[str, Any] | None:
    """Return what the kept numbers of an experiment say of their origin; None where they say nothing."""
    path = folder / FILE
    return json.loads(read_plain(path)).get(ORIGIN) if path.is_file() else None


def duration(seconds: float) -> str:
    """Write a duration for people.

    Example:
        >>> duration(42), duration(600), duration(9000)
        ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
