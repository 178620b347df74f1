"""Part `compile`: seconds of compilation, how often a second fit compiles, and what a cache on disk saves."""

import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax import monitoring

import bernflow as bf
from benchmarks.speed.clock import median_of
from benchmarks.speed.growth import curve, exponents
from benchmarks.speed.part import Case, Part, Scale, Section
from benchmarks.speed.training import Training, schools
from benchmarks.study.plan import Result
from benchmarks.study.records import Record
from benchmarks.study.tables import Table
from benchmarks.targets import BENCHMARKS

CHUNK_CASE, FIT_CASE = "chunk", "fit"
SECOND, CACHE = "second fit", "cache on disk"
TARGET = "eight-schools-noncentered"
# What JAX tells: one event per program that XLA is asked for, whether it compiles it or finds it on disk.
COMPILED = "/jax/core/compile/backend_compile_duration"
FOUND = "/jax/compilation_cache/cache_hits"


class Count:
    """What was compiled."""

    def __init__(self) -> None:
        self.num, self.seconds, self.num_found = 0, 0.0, 0

    def described(self, name: str) -> dict[str, Any]:
        """Return the figures with a name in front."""
        found = {"compilations": self.num - self.num_found, "compile_seconds": self.seconds, "found": self.num_found}
        return {f"{name}_{key}": value for key, value in found.items()}


@contextmanager
def counted() -> Iterator[Count]:
    """Count the programs that XLA compiles meanwhile."""
    count = Count()

    def hear_duration(event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILED:
            count.num += 1
            count.seconds += duration_secs

    def hear(event: str, **_: Any) -> None:
        count.num_found += event == FOUND

    monitoring.register_event_duration_secs_listener(hear_duration)
    monitoring.register_event_listener(hear)
    try:
        yield count
    finally:
        monitoring.unregister_event_duration_listener(hear_duration)
        monitoring.unregister_event_listener(hear)


def cases(scale: Scale) -> list[Case]:
    """Return the chunk at several sizes, and whole fits."""
    sizes = scale.pick(tiny=(4, 6), quick=(10, 100), normal=(10, 30, 100, 300, 1000))
    fit = {"fit": scale.pick(tiny={"steps": 20}, quick={}, normal={})}
    return [
        Case(CHUNK_CASE, {str(p): {"dim": p} for p in sizes}, scale.rounds),
        Case(FIT_CASE, {SECOND: fit, CACHE: fit}, 1),
    ]


def measure(case: str, subject: str, settings: Mapping[str, Any]) -> Result:
    """Compile one chunk, or fit twice and count."""
    if case == CHUNK_CASE:
        training = Training(lambda: schools(settings["dim"]), settings)
        began = time.perf_counter()
        lowered = training.lower()
        traced = time.perf_counter()
        with jax.enable_x64(training.settings.precision == "float64"):
            lowered.compile()
        done = time.perf_counter()
        return {"seconds": done - began, "trace_seconds": traced - began, **training.described()}
    if subject == SECOND:
        return _fit_twice(settings["fit"], forget=False)
    with tempfile.TemporaryDirectory(prefix="bernflow-cache-") as folder:
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", folder)
        # Everything is kept; by default JAX keeps what takes a second or more.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        try:
            return _fit_twice(settings["fit"], forget=True)
        finally:
            jax.config.update("jax_compilation_cache_dir", None)


def _fit_twice(told: Mapping[str, Any], forget: bool) -> Result:
    """Fit with two keys; forgetting what is compiled in between leaves the second fit what lies on disk."""
    benchmark = BENCHMARKS[TARGET]
    result: Result = {"device": jax.devices()[0].device_kind}
    for key, name in enumerate(("first", "second")):
        if forget:
            jax.clear_caches()
        began = time.perf_counter()
        with warnings.catch_warnings(), counted() as count:
            warnings.simplefilter("ignore")
            bf.fit(benchmark.model, *benchmark.args, key=key, progress=False, **told)
        result |= {f"{name}_seconds": time.perf_counter() - began, **count.described(name)}
    return result


def present(records: Sequence[Record]) -> Section:
    """Show the compilation of a chunk by size, then the fits."""
    sizes, seconds = curve(records, CHUNK_CASE)
    traced = {float(s): v for (c, s), v in median_of(records, "trace_seconds").items() if c == CHUNK_CASE}
    rows = [[f"{size:.0f}", value, traced[size]] for size, value in zip(sizes, seconds, strict=True)]
    blocks: list[str | Table] = []
    if rows:
        blocks += [
            "Seconds to compile the training chunk of the default flow (250 steps in one program), tracing included, "
            f"by number of parameters. Measured exponent {exponents(records, CHUNK_CASE)[0]}; expected 0: the size of "
            "the program does not depend on the size of the arrays, except that another flow is used above 64 "
            "dimensions.",
            Table(("p", "seconds", "of which tracing"), rows),
        ]
    fits = [r for r in records if r["case"] == FIT_CASE]
    if fits:
        blocks += [
            "Two fits of eight schools with different keys. Second fit: in the same process. Cache on disk: JAX's "
            "persistent cache in a new folder, with all caches in memory cleared before the second fit, which then "
            "compiles only what the folder does not contain. Ratio: seconds of the second fit divided by those of "
            "the first.",
            Table(
                ("", "programs compiled first", "then", "found on disk", "first (s)", "second (s)", "ratio"),
                [
                    [
                        r["subject"],
                        r["first_compilations"],
                        r["second_compilations"],
                        r["second_found"],
                        r["first_seconds"],
                        r["second_seconds"],
                        r["second_seconds"] / r["first_seconds"],
                    ]
                    for r in fits
                ],
            ),
        ]
    return Section(blocks)


PART = Part("compile", "Compilation", cases, measure, present)
