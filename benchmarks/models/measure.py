"""One measurement: a model fitted by a method, as one record of plain values and the moments that it found.

These are the functions that run in processes of their own.
"""

from pathlib import Path
from typing import Any

import jax

from benchmarks.models import references
from benchmarks.models.catalogue import catalogue
from benchmarks.models.methods import METHODS
from benchmarks.speed.machine import load as machine_load
from benchmarks.study.plan import Result, Task
from benchmarks.study.stamp import stamp

OK = "ok"


def fit_task(model: str, method: str, settings: dict[str, Any], data: Path | None) -> Task:
    """Describe a measurement; what `measure` takes."""
    places = {"data": None if data is None else str(data)}
    return Task(f"{__name__}:measure", {"model": model, "method": method, "settings": settings, **places})


def reference_task(model: str, folder: Path, data: Path | None) -> Task:
    """Describe the run of NUTS that is the reference of a model; what `make_reference` takes."""
    places = {"folder": str(folder), "data": None if data is None else str(data)}
    return Task(f"{__name__}:make_reference", {"model": model, **places})


def make_reference(model: str, folder: str, data: str | None) -> Result:
    """Make the reference of a model and keep it."""
    return {"status": references.make(catalogue(data)[model], Path(folder))}


def measure(model: str, method: str, settings: dict[str, Any], data: str | None) -> Result:
    """Fit one model by one method; what goes wrong is raised, and becomes a status where the process is run from.

    Args:
        model: name of a model of the catalogue.
        method: name of a method.
        settings: what the method is told, and `warm_limit`: the longest first run, in seconds, that is repeated.
        data: folder with the real data.
    """
    entry = catalogue(data)[model]
    # What an earlier run has left on disk must not affect the times.
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    load = machine_load()
    try:
        record, moments = METHODS[method].measure(entry, settings)
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
    told = {"dim": entry.dim, "judgment": record.pop("status"), "load_before": load, **stamp()}
    return {"status": OK, **record, **told, "moments": moments}
