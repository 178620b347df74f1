"""References: means, standard deviations and effective numbers of draws of a long run of NUTS, one small file a model.

Example:
    >>> from pathlib import Path
    >>> from benchmarks.models import references
    >>> references.load("rats", Path("nowhere")) is None
    True
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam

from benchmarks.models.chains import NUM_CHAINS, Chains, Sampler
from benchmarks.models.entry import Entry
from benchmarks.models.moments import Moments, convergence_of, moments, unconstrain
from benchmarks.study.arrays import read_arrays
from benchmarks.study.stamp import stamp
from benchmarks.study.writing import write_whole
from bernflow import FileFormatError
from bernflow.diagnostics.chains import ChainDiagnostics, judge_chains

FOLDER = "references"
LONG = {"warmup": 1_500, "samples": 2_500}
SEED = 20_000
HEADER = "header"
ARRAYS = ("mean", "sd", "ess")


@dataclass(frozen=True)
class Reference:
    """The kept summary of a long run.

    Attributes:
        moments: on the unconstrained scale.
        ess: effective numbers of draws for the means there, (d,).
        constrained: on the scale of the model.
        constrained_ess: effective numbers of draws for the means there.
        header: settings, seconds, divergences, verdict, commit and date.
    """

    moments: Moments
    ess: Float[np.ndarray, " d"]
    constrained: Moments
    constrained_ess: Float[np.ndarray, " d"]
    header: dict[str, Any]


def make(entry: Entry, folder: Path, settings: dict[str, Any] | None = None) -> str:
    """Run NUTS in double precision, keep the summary, and return what the verdict says."""
    settings = {**(LONG if settings is None else settings), **_kernel(entry)}
    with jax.enable_x64(True):
        run = Sampler(_reparameterized(entry), entry.args, **settings).run(SEED)
    draws, num_dropped = _completed(entry, run)
    free = unconstrain(entry, draws)
    constrained = {name: draws[name] for name in free}
    found = convergence_of(free)
    judged = judge_chains(found, list(moments(free, 2).names), _num_draws(free), run.num_divergent)
    header = _header(entry, settings, run, judged, num_dropped)
    contents: dict[str, np.ndarray] = {}
    for prefix, values, ess in (
        ("", free, found.ess_bulk),
        ("constrained_", constrained, convergence_of(constrained).ess_bulk),
    ):
        summary = moments(values, 2)
        header[f"{prefix}names"] = summary.names
        for name, array in zip(ARRAYS, (summary.mean, summary.sd, ess), strict=True):
            contents[prefix + name] = array.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    contents[HEADER] = np.array(json.dumps(header))
    write_whole(_path(entry.name, folder), lambda file: np.savez_compressed(file, allow_pickle=False, **contents))
    return judged.status


def load(name: str, folder: Path) -> Reference | None:
    """Read the reference of a model; None where there is none.

    Raises:
        FileFormatError: whatever is wrong with the file.
    """
    path = _path(name, folder)
    if not path.is_file():
        return None
    try:
        file = read_arrays(path)
        header = json.loads(str(file[HEADER]))
        free, constrained = (
            Moments(tuple(header.pop(f"{prefix}names")), file[f"{prefix}mean"], file[f"{prefix}sd"])
            for prefix in ("", "constrained_")
        )
        return Reference(free, file["ess"], constrained, file["constrained_ess"], header)
    except Exception as error:  # a damaged file can make the parsers of zip, NumPy and JSON raise almost anything
        raise FileFormatError(
            f"{path} is not a reference of this suite, or it is damaged ({type(error).__name__}: {error}): delete it, "
            "and run `bernflow benchmark models --references` again."
        ) from error


def _header(
    entry: Entry, settings: dict[str, Any], run: Chains, judged: ChainDiagnostics, num_dropped: int
) -> dict[str, Any]:
    return {
        "model": entry.name,
        "settings": settings,
        "reparameterized": entry.sampling.model.__name__ if entry.sampling.model else list(entry.sampling.noncentered),
        "seconds": round(run.seconds, 1),
        "gradients": run.num_steps,
        "divergences": run.num_divergent,
        "dropped": num_dropped,
        "verdict": judged.verdict,
        "status": judged.status,
        "ess_bulk": judged.ess_bulk,
        "rhat": judged.rhat,
        **stamp(),
    }


def _kernel(entry: Entry) -> dict[str, Any]:
    return {"target_accept_prob": entry.sampling.target_accept, "dense_mass": entry.sampling.dense}


def _reparameterized(entry: Entry) -> Any:
    model = entry.sampling.model or entry.model
    config = {name: LocScaleReparam(centered=0.0) for name in entry.sampling.noncentered}
    return handlers.reparam(model, config=config) if config else model


def _completed(entry: Entry, run: Chains) -> tuple[dict[str, np.ndarray], int]:
    """Add the sites that were integrated out; return the draws inside the support and the number of the others."""
    if entry.sampling.collapsed is None:
        return run.draws, 0
    kept: list[dict[str, np.ndarray]] = []
    num_dropped = 0
    for chain in range(NUM_CHAINS):
        scales = {name: values[chain] for name, values in run.draws.items()}
        sites, inside = entry.sampling.collapsed(np.random.default_rng(SEED + chain), scales, *entry.args)
        kept.append({name: values[inside] for name, values in {**scales, **sites}.items()})
        num_dropped += int(np.sum(~inside))
    # Chains of equal length, as the diagnostics need them.
    length = min(len(next(iter(chain.values()))) for chain in kept)
    return {name: np.stack([chain[name][:length] for chain in kept]) for name in kept[0]}, num_dropped


def _num_draws(values: dict[str, np.ndarray]) -> int:
    chains, draws = next(iter(values.values())).shape[:2]
    return chains * draws


def _path(name: str, folder: Path) -> Path:
    return folder / f"{name}.npz"
