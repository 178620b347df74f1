"""Timing: what is called is called until enough time has passed, and the median call counts."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.study.records import Record

MIN_CALLS = 3


def time_calls(call: Callable[[], Any], units: int, seconds: float) -> dict[str, Any]:
    """Time a function that returns when its work is done.

    The first call, which compiles, is timed by itself.

    Args:
        call: what to time.
        units: how many steps one call takes; the figures are per step.
        seconds: how long to repeat it, at least.

    Returns:
        seconds (median per unit), fastest, slowest, num_calls, first_call (seconds of the whole call).
    """
    began = time.perf_counter()
    call()
    first = time.perf_counter() - began
    taken: list[float] = []
    while len(taken) < MIN_CALLS or sum(taken) < seconds:
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    per_unit = [value / units for value in taken]
    return {
        "seconds": statistics.median(per_unit),
        "fastest": min(per_unit),
        "slowest": max(per_unit),
        "num_calls": len(taken),
        "first_call": first,
    }


def ratios(records: Sequence[Record], name: str, subject: str, reference: str) -> list[float]:
    """Return one figure of a subject divided by that of another, round by round of the same case.

    Example:
        >>> a = {"case": "c", "round": 0, "subject": "a", "seconds": 3.0}
        >>> ratios([a, {**a, "subject": "b", "seconds": 2.0}], "seconds", "a", "b")
        [1.5]
    """
    rounds: dict[tuple, dict[str, Record]] = {}
    for record in records:
        rounds.setdefault((record["case"], record["round"]), {})[record["subject"]] = record
    return [
        found[subject][name] / found[reference][name]
        for found in rounds.values()
        if subject in found and reference in found and found[subject].get(name) and found[reference].get(name)
    ]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Write the median of some values and, where there are several, the least and the greatest."""
    if not values:
        return ""
    middle = f"{statistics.median(values):.{digits}g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}g} to {max(values):.{digits}g})"


def median_of(records: Sequence[Record], name: str) -> Mapping[tuple[str, str], float]:
    """Return the median of a figure over the rounds, by case and subject."""
    found: Mapping[tuple[str, str], list[float]] = {}
    for record in records:
        if record.get(name) is not None:
            found.setdefault((record["case"], record["subject"]), []).append(record[name])  # type: ignore[attr-defined]
    return {where: statistics.median(values) for where, values in found.items()}
