"""The truth about a target: exact draws, posteriordb's reference draws, or a long run of NUTS that is kept on disk."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.columns import Columns, to_columns
from benchmarks.accuracy.methods import numpyro_nuts
from benchmarks.posteriordb.reference import load_draws
from benchmarks.study.arrays import read_arrays
from benchmarks.study.writing import write_whole
from benchmarks.targets import Benchmark
from bernflow import FileFormatError

FOLDER = ".references"
NUM_EXACT = 40_000
# Another seed than those of fits and their evaluation.
SEED = 20_000
# Numbers of a kept run: longer chains are thinned.
MAX_NUMBERS = 2_000_000
LONG = {"warmup": 2_000, "samples": 10_000, "target_accept_prob": 0.95, "dense_mass": True}
QUICK = {"warmup": 1_000, "samples": 2_000, "target_accept_prob": 0.9, "dense_mass": True}
# Above this many dimensions the mass matrix is diagonal: a dense one cannot be estimated from the warmup.
MAX_DIM_DENSE = 50
HEADER = "header"


def needs_run(case: Case) -> bool:
    """Tell whether only NUTS knows the truth about a target."""
    return case.benchmark.exact_draws is None and case.entry is None


def load(case: Case, out: Path, data: str | PathLike | None = None) -> tuple[Columns | None, str]:
    """Return the reference as scalar columns, (num,) or (chains, draws), or None, and a line that says which it is."""
    if case.entry is not None:
        return load_draws(case.entry, data), "reference draws of posteriordb"
    if case.benchmark.exact_draws is not None:
        return to_columns(case.benchmark.exact_draws(SEED, NUM_EXACT)), f"{NUM_EXACT:,} exact draws"
    kept = _path(case.benchmark, out)
    if not kept.is_file():
        return None, "no reference was made"
    header, chains = _read(kept)
    if header["verdict"] == "poor":
        return None, f"NUTS is no reference here: {header['status']}"
    return to_columns(chains, lead=2), f"NUTS: {header['status']}"


def is_made(benchmark: Benchmark, out: Path, settings: dict[str, Any]) -> bool:
    """Tell whether a run of these settings is kept."""
    path = _path(benchmark, out)
    return path.is_file() and _read(path)[0]["settings"] == settings


def make(benchmark: Benchmark, out: Path, settings: dict[str, Any]) -> str:
    """Run NUTS for long, keep its draws with the verdict on them, and return what the verdict says."""
    chains, found, gradients = numpyro_nuts.run(benchmark, SEED, _suitable(benchmark, settings))
    total = sum(values.size for values in chains.values())
    every = -(-total // MAX_NUMBERS)
    header = {
        "settings": settings,
        "verdict": found.verdict,
        "status": found.status,
        "gradients": gradients,
        "sites": list(chains),
        "every": every,
    }
    contents = {HEADER: np.array(json.dumps(header)), **{name: values[:, ::every] for name, values in chains.items()}}
    path = _path(benchmark, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: np.savez_compressed(file, allow_pickle=False, **contents))
    return found.status


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the header and the chains of a kept run.

    Raises:
        FileFormatError: whatever is wrong with the file.
    """
    try:
        file = read_arrays(path)
        header = json.loads(str(file[HEADER]))
        chains = {name: file[name] for name in header["sites"]}
        return {name: header[name] for name in ("settings", "verdict", "status")}, chains
    except Exception as error:  # a file can make the parsers of zip, NumPy and JSON raise almost anything
        raise FileFormatError(
            f"{path} is not a reference of this suite, or it is damaged ({type(error).__name__}: {error}): delete it, "
            "and the next run makes it again."
        ) from error


def _suitable(benchmark: Benchmark, settings: dict[str, Any]) -> dict[str, Any]:
    import jax

    from benchmarks.accuracy.density import Density

    with jax.enable_x64(True):
        dense = Density(benchmark).dim <= MAX_DIM_DENSE
    return {**settings, "dense_mass": settings["dense_mass"] and dense}


def _path(benchmark: Benchmark, out: Path) -> Path:
    return out / FOLDER / f"{benchmark.name}.npz"
