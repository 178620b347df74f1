"""The posteriors as bernflow takes them, by front end; apart from the catalogue, which other libraries need too."""

from collections.abc import Mapping
from typing import Any

import bernflow as bf
from benchmarks.posteriordb.catalogue import FRONT_ENDS, POSTERIORS, Entry
from bernflow import ArgumentError


def build(entry: Entry, front_end: str, data: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return the model of a front end and its arguments, as `bf.fit(model, *args)` takes them.

    Args:
        entry: the posterior.
        front_end: "numpyro", "stan" or "pymc".
        data: the dictionary of the data.
    """
    if front_end not in FRONT_ENDS:
        raise ArgumentError(f"front_end={front_end!r} is unknown: expected one of {', '.join(FRONT_ENDS)}.")
    if front_end == "numpyro":
        return entry.numpyro, (data,)
    if front_end == "stan":
        return bf.from_stan(entry.stan_code(), data=dict(data)), ()
    if entry.pymc is None:
        with_port = ", ".join(e.name for e in POSTERIORS.values() if e.pymc is not None)
        raise ArgumentError(f"{entry.name} has no PyMC model: expected one of {with_port}.")
    return bf.from_pymc(entry.pymc(data)), ()
