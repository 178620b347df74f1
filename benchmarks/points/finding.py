"""What a point of the paper is, and how our figures are read from the records in results/; nothing is typed in."""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.study.tables import number

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
NOT_MEASURED = "not measured"
REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"


@dataclass(frozen=True)
class Found:
    """What we get: a text, and how it stands to the paper."""

    ours: str
    verdict: str


@dataclass(frozen=True)
class Point:
    """One point of the paper.

    Attributes:
        where: equation, section, figure or table.
        says: what the paper says.
        place: our place in the code, or the page of the experiment.
        found: what we get.
        paper: the paper's figure.
        files: what the authors' files say, where they exist.
    """

    where: str
    says: str
    place: str
    found: Callable[[], Found]
    paper: str = ""
    files: str = ""


def stated(ours: str, verdict: str = REPRODUCED) -> Callable[[], Found]:
    """Return a finding that no record is needed for: a formula is there, or the text and the files differ."""
    return lambda: Found(ours, verdict)


def numbers(name: str) -> dict[str, Any]:
    """Return the numbers of an experiment; nothing where it was not run."""
    path = RESULTS / name / "numbers.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def claim(name: str, quantity: str, column: str = "bernflow") -> float | None:
    """Return a figure of the table in which an experiment puts ours beside the paper's."""
    path = RESULTS / name / "claims.csv"
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        found = [row[column] for row in csv.DictReader(file) if row["quantity"] == quantity]
    return float(found[0]) if found and found[0] else None


def shown(value: Any) -> str:
    """Write a figure, or that there is none."""
    return NOT_MEASURED if value is None else number(float(value))


def summary(name: str, target: str | None = None) -> dict[str, Any]:
    """Return the figures of an experiment by method."""
    found = numbers(name).get("summary", {})
    return found if target is None else found.get(target, {})


def picture(name: str) -> Callable[[], Found]:
    """Say that a figure is drawn anew on the page of an experiment, where it is for the eye to judge."""
    there = (RESULTS / name / "README.md").is_file()
    return stated("see the page", "drawn anew") if there else stated(NOT_MEASURED, NOT_MEASURED)
