"""The folder of a run: draws, summary, verdict and posterior of one fit, written whole or not at all."""

import dataclasses
import hashlib
import importlib.util
import json
import os
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bernflow.errors import ArgumentError, BernflowError, FileFormatError
from bernflow.files import json_text, write_folder
from bernflow.fit import load
from bernflow.posterior import Posterior
from bernflow.runs.draws import summarize, take_draws, write_csv

if TYPE_CHECKING:
    import pandas as pd

FORMAT, FORMAT_VERSION = "bernflow-run", 1
MANIFEST, POSTERIOR, DIAGNOSTICS = "run.json", "posterior.bernflow", "diagnostics.json"
SUMMARY, DRAWS, REPORT = "summary.csv", "draws.csv", "report.html"
CSV, NETCDF, ZARR = "csv", "netcdf", "zarr"
FORMATS = (CSV, NETCDF, ZARR)


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: where it lies.
        manifest: what it is: model, data, options, verdict and the names of its files.
        summary: mean, sd and quantiles of every component, indices from 1.
        diagnostics: the content of diagnostics.json.
    """

    folder: Path
    manifest: dict[str, Any]
    summary: "pd.DataFrame"
    diagnostics: dict[str, Any]

    def load(self, model: Any = None, **model_kwargs: Any) -> Posterior:
        """Read the posterior; with the model as it was fitted, see `bernflow.load`."""
        return load(self.folder / POSTERIOR, model, model_kwargs=model_kwargs)


def check_formats(formats: Collection[str]) -> None:
    """Make sure, before any long work, that draws can be written in these formats."""
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown:
        raise ArgumentError(f"The format {', '.join(unknown)} is unknown: expected some of {', '.join(FORMATS)}.")
    if ZARR in formats and importlib.util.find_spec("zarr") is None:
        raise BernflowError("Draws as Zarr need the package zarr: install it with pip install 'bernflow[zarr]'.")


def check_free(folder: str | os.PathLike, force: bool = False) -> None:
    """Refuse a folder with files that no run has written; an earlier run is no obstacle."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: expected a folder, new, empty, or of an earlier run.")
    if folder.is_mount() or Path.cwd().is_relative_to(folder.resolve()):
        # It is swapped for the finished one, which would leave a shell in a folder that is gone.
        raise ArgumentError(f"{folder} is a mount point or the folder that you are in: name a new folder inside of it.")
    others = _files_of_others(folder)
    if others and not force:
        some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise ArgumentError(
            f"The folder {folder} holds files that are not of a run of bernflow ({some}): choose another folder, or "
            "force it; then they stay, and results are put beside them."
        )


def write_run(
    posterior: Posterior,
    folder: str | os.PathLike,
    *,
    num: int = 4000,
    weighted: bool = False,
    formats: Collection[str] = (CSV, NETCDF),
    origin: Mapping[str, Any] | None = None,
) -> Run:
    """Write what a fit found; an earlier run in that folder is replaced, files of others stay.

    The draws are those of `posterior.draws(num, weighted=weighted)` with its default key.

    Args:
        posterior: the fit.
        folder: the folder; it appears, or is replaced, when all of it is written.
        num: number of draws.
        weighted: resample by Pareto-smoothed importance weights.
        formats: some of "csv", "netcdf" and "zarr", for the draws.
        origin: where the fit comes from (model, data, options), JSON-able, for the manifest.
    """
    check_formats(formats)
    folder, origin = Path(folder), dict(origin or {})
    tree, notes = take_draws(posterior, num, weighted)
    weighted = bool(tree.attrs["weighted"])
    summary = summarize(tree)
    diagnostics = describe(posterior)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "bernflow_version": metadata.version("bernflow"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        **origin,
        "verdict": posterior.diagnostics.verdict,
        "interrupted": bool(posterior.settings.get("interrupted", False)),
        "draws": num,
        "weighted": weighted,
        "notes": notes,
    }

    def write(fresh: Path) -> None:
        posterior.save(fresh / POSTERIOR)
        (fresh / DIAGNOSTICS).write_text(json_text(diagnostics), encoding="utf-8")
        summary.to_csv(fresh / SUMMARY, na_rep="nan")
        if CSV in formats:
            with open(fresh / DRAWS, "wb") as file:
                write_csv(file, tree, _csv_settings(posterior, manifest))
        if NETCDF in formats:
            # Through memory: where the disk is full, HDF5 crashes the process instead of raising.
            (fresh / "draws.nc").write_bytes(tree.to_netcdf(engine="h5netcdf"))
        if ZARR in formats:
            # Version 2 is what every reader knows, consolidated metadata included.
            tree.to_zarr(fresh / "draws.zarr", zarr_format=2)
        _write_report(posterior, fresh / REPORT, num, weighted, notes)
        manifest["files"] = sorted([*os.listdir(fresh), MANIFEST])
        (fresh / MANIFEST).write_text(json_text(manifest), encoding="utf-8")

    write_folder(folder, write, keep=_files_of_others(folder))
    return Run(folder, manifest, summary, diagnostics)


def read_run(folder: str | os.PathLike) -> Run:
    """Read what `write_run` wrote; the posterior itself by `Run.load`."""
    import pandas as pd

    folder = Path(folder)
    manifest = _read_manifest(folder)
    version = int(manifest.get("format_version", 0))
    if version > FORMAT_VERSION:
        raise FileFormatError(
            f"{folder} has format version {version}, written by bernflow {manifest.get('bernflow_version')}; this "
            f"bernflow reads up to {FORMAT_VERSION}: install a newer bernflow."
        )
    try:
        # As text first: not every version of pandas reads all digits.
        summary = pd.read_csv(folder / SUMMARY, index_col="name", dtype=str, keep_default_na=False).astype(float)
        diagnostics = json.loads((folder / DIAGNOSTICS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"The run {folder} is damaged ({error}): run it again.") from error
    return Run(folder, manifest, summary, diagnostics)


def describe(posterior: Posterior) -> dict[str, Any]:
    """Return verdict, figures and settings of a fit."""
    return {**dataclasses.asdict(posterior.diagnostics), "settings": posterior.settings}


def fingerprint(path: str | os.PathLike | None) -> dict[str, str] | None:
    """Return path and checksum of a file that a run comes from."""
    if path is None:
        return None
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"path": str(Path(path).resolve()), "sha256": digest}


def _csv_settings(posterior: Posterior, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comments of the CSV file: what readers of CmdStan's files ask for, and what the draws are."""
    model, data = manifest.get("model") or {}, manifest.get("data") or {}
    name = Path(model.get("path", "bernflow")).stem
    title = f"Draws of a flow fitted by bernflow {manifest['bernflow_version']}, in the layout of CmdStan's Pathfinder"
    return {
        title: None,
        "model": f"{name}_model",
        "method": "pathfinder",
        "pathfinder": {
            "num_draws": manifest["draws"],
            "num_psis_draws": manifest["draws"],
            "num_paths": 1,
            "psis_resample": manifest["weighted"],
        },
        "id": 1,
        "data": {"file": Path(data.get("path", "none")).name},
        "random": {"seed": manifest.get("options", {}).get("seed", 0)},
        "output": {"file": DRAWS},
        "bernflow": {
            "family": posterior.settings.get("family"),
            "verdict": posterior.diagnostics.verdict,
            "khat": posterior.diagnostics.khat,
        },
    }


def _write_report(posterior: Posterior, path: Path, num: int, weighted: bool, notes: list[str]) -> None:
    """Write the page, of the same draws as the other files."""
    try:
        posterior.report(path, num=num, weighted=weighted)
    except Exception as error:  # a picture that cannot be drawn must not cost the fit
        path.unlink(missing_ok=True)
        notes.append(f"{REPORT} could not be made ({type(error).__name__}: {error}).")


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or not isinstance(manifest["files"], list):
            raise ValueError(f"format {manifest['format']!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"{folder} is not the folder of a run ({type(error).__name__}: {error}): expected one that bernflow fit "
            "has written."
        ) from error
    return manifest


def _files_of_others(folder: Path) -> list[str]:
    """List what lies in a folder and was not written by the run in it."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    try:
        ours = _read_manifest(folder)["files"] if names else []
    except FileFormatError:
        ours = []
    return [name for name in names if name not in ours]
