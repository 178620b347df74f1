"""The folder of a run: draws, summary, diagnostics and posterior of one fit, written atomically."""

import dataclasses
import importlib.util
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bernflow.errors import ArgumentError, BernflowError, FileFormatError
from bernflow.files import check_plain, json_text, read_plain
from bernflow.fit import load
from bernflow.folders import write_folder
from bernflow.posterior import Posterior
from bernflow.posterior.weighting import AUTO, Weighted
from bernflow.runs.draws import row_labels, tabulate, take_draws, write_csv
from bernflow.runs.material import write_data
from bernflow.sealed import checksum_of, read_sealed, sealed_text
from bernflow.versions import version_of

if TYPE_CHECKING:
    import pandas as pd

FORMAT, FORMAT_VERSION = "bernflow-run", 3
MANIFEST, POSTERIOR, DIAGNOSTICS, DATA = "run.json", "posterior.bernflow", "diagnostics.json", "report-data.bernflow"
SUMMARY, DRAWS, REPORT = "summary.csv", "draws.csv", "report.html"
CSV, NETCDF, ZARR = "csv", "netcdf", "zarr"
FORMATS = (CSV, NETCDF, ZARR)
TREES = {NETCDF: "draws.nc", ZARR: "draws.zarr"}
# All files that a run writes; others are never removed, whatever a manifest lists.
OURS = frozenset({MANIFEST, POSTERIOR, DIAGNOSTICS, DATA, SUMMARY, DRAWS, REPORT, *TREES.values()})


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: the folder.
        manifest: model, data, options, verdict and the names of its files.
        summary: mean, sd and quantiles of every component, indices from 1.
        diagnostics: the content of diagnostics.json.
        labels: the model's labels of the rows of the summary, if the run has just been written.
    """

    folder: Path
    manifest: dict[str, Any]
    summary: "pd.DataFrame"
    diagnostics: dict[str, Any]
    labels: Sequence[str] = ()

    def load(self, model: Any = None, **model_kwargs: Any) -> Posterior:
        """Read the posterior; with the model as it was fitted, see `bernflow.load`."""
        return load(self.file(POSTERIOR), model, model_kwargs=model_kwargs)

    def file(self, name: str) -> Path:
        """Return the path of a file of the run, after a check of its checksum."""
        return _verified(self.folder, self.manifest, name)


def check_formats(formats: Collection[str]) -> None:
    """Check, before any long computation, that draws can be written in these formats."""
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown:
        raise ArgumentError(f"The format {', '.join(unknown)} is unknown: expected some of {', '.join(FORMATS)}.")
    if ZARR in formats and importlib.util.find_spec("zarr") is None:
        raise BernflowError("Draws as Zarr need the package zarr: install it with pip install 'bernflow[zarr]'.")


def check_free(folder: str | os.PathLike, force: bool = False) -> None:
    """Raise an error for a folder with files that were not written by a run."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: expected a folder that is new, empty, or of an earlier run.")
    if folder.is_mount() or Path.cwd().is_relative_to(folder.resolve()):
        # The folder is replaced, which would leave a shell in a deleted folder.
        raise ArgumentError(f"{folder} is a mount point or the current folder: choose a new folder inside it.")
    others = _foreign_files(folder)
    if others and not force:
        some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise ArgumentError(
            f"The folder {folder} contains files that are not of a run of bernflow ({some}): choose another folder "
            "(--out), or add the results to them (--force)."
        )


def write_run(
    posterior: Posterior,
    folder: str | os.PathLike,
    *,
    num: int = 4000,
    weighted: Weighted = AUTO,
    formats: Collection[str] = (CSV, NETCDF),
    origin: Mapping[str, Any] | None = None,
) -> Run:
    """Write the results of a fit; an earlier run in the folder is replaced, other files are kept.

    The draws are those of `posterior.draws(num, weighted=weighted)` with its default key.

    Args:
        posterior: the fit.
        folder: the folder, which is written atomically.
        num: number of draws.
        weighted: resample by Pareto-smoothed importance weights; "auto" if these correct the fit.
        formats: formats of the draws: "csv", "netcdf" or "zarr".
        origin: model, data and options of the fit for the manifest, JSON-serializable.
    """
    check_formats(formats)
    folder, origin = Path(folder), dict(origin or {})
    tree, notes = take_draws(posterior, num, weighted)
    is_weighted = bool(tree.attrs["weighted"])
    summary = tabulate(tree)
    diagnostics = describe(posterior)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "bernflow_version": version_of("bernflow"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        **origin,
        "verdict": posterior.diagnostics.verdict,
        "interrupted": bool(posterior.settings.get("interrupted", False)),
        "draws": num,
        "weighted": is_weighted,
        "notes": notes,
    }

    def write(fresh: Path) -> None:
        posterior.save(fresh / POSTERIOR)
        (fresh / DIAGNOSTICS).write_text(json_text(diagnostics), encoding="utf-8")
        summary.to_csv(fresh / SUMMARY, na_rep="nan")
        write_data(fresh / DATA, tree, posterior.axes)
        if CSV in formats:
            with open(fresh / DRAWS, "wb") as file:
                write_csv(file, tree, _csv_settings(posterior, manifest))
        if NETCDF in formats:
            # Through memory, because HDF5 crashes the process if the disk is full.
            (fresh / TREES[NETCDF]).write_bytes(tree.to_netcdf(engine="h5netcdf"))
        if ZARR in formats:
            # All readers support version 2, including consolidated metadata.
            tree.to_zarr(fresh / TREES[ZARR], zarr_format=2)
        _write_report(posterior, fresh / REPORT, num, is_weighted, notes)
        manifest["sha256"] = {name: checksum_of(fresh / name) for name in sorted(os.listdir(fresh))}
        manifest["files"] = sorted([*manifest["sha256"], MANIFEST])
        (fresh / MANIFEST).write_text(sealed_text(manifest), encoding="utf-8")

    write_folder(folder, write, keep=_foreign_files)
    return Run(folder, manifest, summary, diagnostics, row_labels(tree, posterior.axes))


def read_run(folder: str | os.PathLike) -> Run:
    """Read a folder written by `write_run`; `Run.load` reads the posterior itself."""
    import pandas as pd

    folder = Path(folder)
    manifest = _read_manifest(folder)
    try:
        path = _verified(folder, manifest, SUMMARY)
        _check_table(path)
        # Read as strings first, because some versions of pandas do not read floats exactly.
        table = pd.read_csv(path, index_col="name", dtype=str, keep_default_na=False)
        diagnostics = json.loads(_verified(folder, manifest, DIAGNOSTICS).read_text(encoding="utf-8"))
        return Run(folder, manifest, table.astype(float), diagnostics)
    except FileFormatError:
        raise
    except Exception as error:  # parsers can raise almost any error
        raise _damaged(folder, str(error)) from error


def _check_table(path: Path) -> None:
    """Raise an error for a table with more cells than bytes, because pandas pads short rows."""
    # A row ends at a carriage return, too.
    lines = re.split(rb"[\r\n]", path.read_bytes())
    rows, columns = len(lines) - 1, max(line.count(b",") + 1 for line in lines)
    if rows * columns > path.stat().st_size:
        raise ValueError(f"{path.name} claims {rows:,} rows of {columns:,} columns and has {path.stat().st_size} bytes")


def load_any(path: str | os.PathLike) -> Posterior:
    """Read a posterior without its model from the folder of a run, or from a file written by `Posterior.save`."""
    path = Path(path)
    if not path.exists():
        raise ArgumentError(
            f"{path} does not exist: expected the folder of a run of bernflow fit, or a saved posterior."
        )
    return read_run(path).load() if path.is_dir() else load(path)


def describe(posterior: Posterior) -> dict[str, Any]:
    """Return diagnostics and settings of a fit."""
    return {**posterior.diagnostics.to_dict(), "settings": posterior.settings}


def fingerprint(path: str | os.PathLike | None) -> dict[str, str] | None:
    """Return path and checksum of an input file of a run."""
    if path is None:
        return None
    return {"path": str(Path(path).resolve()), "sha256": checksum_of(Path(path))}


def _csv_settings(posterior: Posterior, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comments of the CSV file, which include those that readers of CmdStan's files need."""
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
    """Write the report, with the same draws as the other files."""
    try:
        posterior.report(path, num=num, weighted=weighted)
    except Exception as error:  # a failure of the report must not prevent saving the fit
        path.unlink(missing_ok=True)
        notes.append(f"{REPORT} could not be written ({type(error).__name__}: {error}).")


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        # Checked before the checksum, which other versions may not have.
        stated = json.loads(read_plain(folder / MANIFEST))
        if stated["format"] != FORMAT:
            raise ValueError(f"format {stated['format']!r}")
        version = int(stated["format_version"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(
            f"{folder} is not the folder of a run ({type(error).__name__}: {error}): expected one written by bernflow "
            "fit."
        ) from error
    if version != FORMAT_VERSION:
        advice = "install a newer bernflow" if version > FORMAT_VERSION else "run it again"
        raise FileFormatError(
            f"{folder} has format version {version}, written by bernflow {stated.get('bernflow_version')}; this "
            f"bernflow reads version {FORMAT_VERSION}: {advice}."
        )
    try:
        manifest = read_sealed(folder / MANIFEST)
        if not isinstance(manifest["sha256"], dict):
            raise ValueError("it has no checksums")
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(folder, str(error)) from error
    return manifest


def _verified(folder: Path, manifest: Mapping[str, Any], name: str) -> Path:
    """Return the path of a file after a check of its checksum."""
    path = folder / name
    try:
        check_plain(path)
        checksum = checksum_of(path)
    except (OSError, ValueError) as error:
        raise _damaged(folder, str(error)) from error
    if checksum != manifest["sha256"].get(name):
        raise _damaged(folder, f"the checksum of {name} is wrong")
    return path


def _damaged(folder: Path, why: str) -> FileFormatError:
    return FileFormatError(f"The run {folder} is damaged ({why}): copy it again, or run it again.")


def _foreign_files(folder: Path) -> list[str]:
    """List the files in a folder that were not written by a run."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    try:
        is_run = json.loads(read_plain(folder / MANIFEST))["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        is_run = False
    return [name for name in names if not (is_run and name in OURS)]
