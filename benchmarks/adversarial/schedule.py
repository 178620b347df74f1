"""The order of the fits of a run with several processes."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.adversarial.catalogue import CASES
from benchmarks.study.records import Record

# The folder of the results in the repository: a first run elsewhere takes its expected times from them.
PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "adversarial"


def longest_first(tasks: Sequence[tuple[str, int]], records: Sequence[Record]) -> list[tuple[str, int]]:
    """Sort fits by the time that records of their case, or else of their family, took; unknown ones come first."""
    times = defaultdict[str, list[float]](list)
    for record in records:
        for name in (record["case"], record["family"]):
            times[name].append(float(record["cpu_seconds"]))

    def expected(task: tuple[str, int]) -> float:
        case = CASES[task[0]]
        known = times.get(case.name) or times.get(case.family)
        return fmean(known) if known else math.inf

    return sorted(tasks, key=expected, reverse=True)
