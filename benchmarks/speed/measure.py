"""One measurement: a subject of a case of a part, as one record of plain values.

These are the functions that run in processes of their own.
"""

from collections.abc import Mapping
from typing import Any

import jax

from benchmarks.speed import machine
from benchmarks.speed.catalogue import PARTS
from benchmarks.speed.part import OK
from benchmarks.study.plan import Result, Task


def measure_task(part: str, case: str, subject: str, number: int, settings: Mapping[str, Any]) -> Task:
    """Describe a measurement; what `measure` takes."""
    arguments = {"part": part, "case": case, "subject": subject, "round": number, "settings": dict(settings)}
    return Task(f"{__name__}:measure", arguments)


def machine_task() -> Task:
    """Describe the look at the machine."""
    return Task(f"{machine.__name__}:describe", {})


def measure(part: str, case: str, subject: str, round: int, settings: dict[str, Any]) -> Result:
    """Measure one subject; what goes wrong is raised, and becomes a status where the process is run from.

    Args:
        part: name of a part.
        case: name of a case of it.
        subject: name of a subject of that.
        round: number of the repetition; it changes nothing here.
        settings: what the subject is told.
    """
    missing = PARTS[part].missing(subject)
    if missing is not None:
        return {"status": missing}
    # What an earlier run has left on disk must not count for speed.
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    load = machine.load()
    try:
        return {"status": OK, **PARTS[part].measure(case, subject, settings), "load_before": load}
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
