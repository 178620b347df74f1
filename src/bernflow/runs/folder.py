"""The folder of a run: draws, summary, verdict and posterior of one fit, written whole or not at all."""

import dataclasses
import importlib.util
import json
import os
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
from bernflow.runs.untrusted import check_table
from bernflow.sealed import checksum_of, read_sealed, sealed_text
from bernflow.versions import version_of

if TYPE_CHECKING:
    import pandas as pd

FORMAT, FORMAT_VERSION = "bernflow-run", 2
MANIFEST, POSTERIOR, DIAGNOSTICS = "run.json", "posterior.bernflow", "diagnostics.json"
SUMMARY, DRAWS, REPORT = "summary.csv", "draws.csv", "report.html"
CSV, NETCDF, ZARR = "csv", "netcdf", "zarr"
FORMATS = (CSV, NETCDF, ZARR)
TREES = {NETCDF: "draws.nc", ZARR: "draws.zarr"}
# All that a run ever writes: whatever else a manifest may list is not ours to remove.
OURS = frozenset({MANIFEST, POSTERIOR, DIAGNOSTICS, SUMMARY, DRAWS, REPORT, *TREES.values()})


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: where it lies.
        manifest: what it is: model, data, options, verdict and the names of its files.
        summary: mean, sd and quantiles of every component, indices from 1.
        diagnostics: the content of diagnostics.json.
        labels: what the model calls the rows of the summary, where the run has just been written.
    """

    folder: Path
    manifest: dict[str, Any]
    summary: "pd.DataFrame"
    diagnostics: dict[str, Any]
    labels: Sequence[str] = ()

    def load(self, model: Any = None, **model_kwargs: Any) -> Posterior:
        """Read the posterior; with the model as it was fitted, see `bernflow.load`."""
        return load(self.file(POSTERIOR), model, model_kwargs=model_kwargs)

    def has(self, name: str) -> bool:
        """Tell whether a file is part of the run."""
        return name in self.manifest["sha256"]

    def file(self, name: str) -> Path:
        """Return the path of a file of the run, after a look at its checksum."""
        return _verified(self.folder, self.manifest, name)


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
            f"The folder {folder} holds files that are not of a run of bernflow ({some}): choose another folder "
            "(--out), or write the results beside them (--force)."
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
    """Write what a fit found; an earlier run in that folder is replaced, files of others stay.

    The draws are those of `posterior.draws(num, weighted=weighted)` with its default key.

    Args:
        posterior: the fit.
        folder: the folder; it appears, or is replaced, when all of it is written.
        num: number of draws.
        weighted: resample by Pareto-smoothed importance weights; "auto" where these correct the fit.
        formats: some of "csv", "netcdf" and "zarr", for the draws.
        origin: where the fit comes from (model, data, options), JSON-able, for the manifest.
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
        if CSV in formats:
            with open(fresh / DRAWS, "wb") as file:
                write_csv(file, tree, _csv_settings(posterior, manifest))
        if NETCDF in formats:
            # Through memory: where the disk is full, HDF5 crashes the process instead of raising.
            (fresh / TREES[NETCDF]).write_bytes(tree.to_netcdf(engine="h5netcdf"))
        if ZARR in formats:
            # Version 2 is what every reader knows, consolidated metadata included.
            tree.to_zarr(fresh / TREES[ZARR], zarr_format=2)
        _write_report(posterior, fresh / REPORT, num, is_weighted, notes)
        manifest["sha256"] = {name: checksum_of(fresh / name) for name in sorted(os.listdir(fresh))}
        manifest["files"] = sorted([*manifest["sha256"], MANIFEST])
        (fresh / MANIFEST).write_text(sealed_text(manifest), encoding="utf-8")

    write_folder(folder, write, keep=_files_of_others)
    return Run(folder, manifest, summary, diagnostics, row_labels(tree, posterior.axes))


def read_run(folder: str | os.PathLike) -> Run:
    """Read what `write_run` wrote; the posterior itself by `Run.load`."""
    import pandas as pd

    folder = Path(folder)
    manifest = _read_manifest(folder)
    try:
        path = _verified(folder, manifest, SUMMARY)
        check_table(path)
        # As text first: not every version of pandas reads all digits.
        table = pd.read_csv(path, index_col="name", dtype=str, keep_default_na=False)
        diagnostics = json.loads(_verified(folder, manifest, DIAGNOSTICS).read_text(encoding="utf-8"))
        return Run(folder, manifest, table.astype(float), diagnostics)
    except FileFormatError:
        raise
    except Exception as error:  # a file can make its parser raise almost anything
        raise _damaged(folder, str(error)) from error


def load_any(path: str | os.PathLike) -> Posterior:
    """Read a posterior without its model from the folder of a run, or from a file that `Posterior.save` wrote."""
    path = Path(path)
    if not path.exists():
        raise ArgumentError(
            f"{path} does not exist: expected the folder of a run of bernflow fit, or a saved posterior."
        )
    return read_run(path).load() if path.is_dir() else load(path)


def describe(posterior: Posterior) -> dict[str, Any]:
    """Return verdict, figures and settings of a fit."""
    return {**posterior.diagnostics.to_dict(), "settings": posterior.settings}


def fingerprint(path: str | os.PathLike | None) -> dict[str, str] | None:
    """Return path and checksum of a file that a run comes from."""
    if path is None:
        return None
    return {"path": str(Path(path).resolve()), "sha256": checksum_of(Path(path))}


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
        # Before its checksum: what another version writes may have none.
        stated = json.loads(read_plain(folder / MANIFEST))
        if stated["format"] != FORMAT:
            raise ValueError(f"format {stated['format']!r}")
        version = int(stated["format_version"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(
            f"{folder} is not the folder of a run ({type(error).__name__}: {error}): expected one that bernflow fit "
            "has written."
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
    """Return the path of a file after a look at its checksum."""
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
    return FileFormatError(f"The run {folder} is damaged ({why}): copy it anew, or run it again.")


def _files_of_others(folder: Path) -> list[str]:
    """List what lies in a folder and was not written by the run in it."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    try:
        is_run = json.loads(read_plain(folder / MANIFEST))["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        is_run = False
    return [name for name in names if not (is_run and name in OURS)]
