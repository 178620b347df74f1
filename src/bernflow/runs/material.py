"""The content of a report of a run, from its files only: no model is loaded and no code is executed.

Draws and data are read from a container with checksums (`posterior/container.py`) and not from the CSV, NetCDF or Zarr
files of the run, whose parsers are not safe for untrusted files.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bernflow.errors import FileFormatError
from bernflow.models.stan.model import LOG_LIKELIHOOD
from bernflow.posterior.archive import plain_labels, read_record
from bernflow.posterior.container import Kind, read_container, write_container
from bernflow.posterior.tables import Axes
from bernflow.report.material import NUM_REPLICATES, Material
from bernflow.report.tails import tails_of_draws
from bernflow.runs.draws import variables

if TYPE_CHECKING:
    import xarray as xr

KIND = Kind("bernflow-run-data", 1, "the draws and data of a run", "bernflow fit", "run it again")
NOTE = (
    "Made from the files of a run, without its model: replicated observations are shown only if the model itself "
    "generates them."
)


def write_data(path: Path, tree: "xr.DataTree", axes: Axes) -> Path:
    """Write draws, log weights and data for a report.

    Args:
        path: the file.
        tree: draws in the format of `Posterior.to_arviz`.
        axes: names and labels of the axes.
    """
    weights = _group(tree, "sample_stats").get("log_weight")
    groups = {
        "draws": {name: np.asarray(values)[0] for name, values in variables(tree) if name != LOG_LIKELIHOOD},
        "stats": {} if weights is None else {"log_weight": np.asarray(weights, np.float64)[0]},
        "observed": _group(tree, "observed_data"),
        "constants": _group(tree, "constant_data"),
    }
    facts = {
        "groups": {group: list(values) for group, values in groups.items()},
        "dims": {_label(name): list(dims) for name, dims in axes.dims.items()},
        "coords": {name: plain_labels(labels) for name, labels in axes.coords.items()},
    }
    return write_container(path, KIND, facts, dict(_numbered(groups)))


def material_of_run(folder: Path) -> Material:
    """Gather the content of a report from the files of a run."""
    from bernflow.runs.folder import DATA, POSTERIOR, read_run  # imports this module

    run = read_run(folder)
    record = read_record(run.file(POSTERIOR))
    groups, dims, coords = _read_data(run.file(DATA))
    # Names have dots instead of slashes, which separate groups in a DataTree.
    names = {_label(site.name): site.name for site in record.sites}
    draws = {names.get(name, name): values for name, values in groups["draws"].items()}
    wrong = [s.name for s in record.sites if s.name not in draws or draws[s.name].shape[1:] != s.shape]
    if wrong or {len(values) for values in draws.values()} != {run.manifest["draws"]}:
        raise FileFormatError(
            f"The draws of the run {folder} are not those of its parameters ({', '.join(wrong) or 'other numbers'}): "
            "run it again."
        )
    weighted = bool(run.manifest.get("weighted"))
    # The weights of resampled draws are not informative about the fit.
    log_weights = None if weighted else groups["stats"].get("log_weight")
    first = int(str((run.manifest.get("model") or {}).get("path", "")).endswith(".stan"))
    axes = Axes({names.get(name, name): value for name, value in dims.items()}, coords, first)
    tails: tuple[tuple[str, float], ...] = ()
    if log_weights is not None:
        tails = tails_of_draws(record.diagnostics, {s.name: draws[s.name] for s in record.sites}, axes, log_weights)
    return Material(
        diagnostics=record.diagnostics,
        draws=draws,
        sites=record.sites,
        history=record.history,
        settings=record.settings,
        structure=record.structure,
        weighted=weighted,
        log_weights=log_weights,
        observed=groups["observed"],
        constants=groups["constants"],
        replicates={name: values[:NUM_REPLICATES] for name, values in draws.items() if name not in names.values()},
        axes=axes,
        tails=tails,
        origin=_origin(run.manifest),
        notes=(NOTE, *map(str, run.manifest.get("notes", ()))),
    )


def _read_data(path: Path) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any], dict[str, Any]]:
    """Read the groups of arrays, and the names and labels of axes."""
    manifest, arrays = read_container(path, KIND)
    try:
        groups = {
            str(group): {str(name): arrays[f"{group}_{i:04d}"] for i, name in enumerate(names)}
            for group, names in manifest["groups"].items()
        }
        for group in ("draws", "stats", "observed", "constants"):
            if any(values.dtype.kind not in "fiub" for values in groups[group].values() if group != "constants"):
                raise ValueError(f"{group} are not numbers")
        dims = {str(name): tuple(value) for name, value in manifest["dims"].items()}
        return groups, dims, {str(name): list(value) for name, value in manifest["coords"].items()}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise KIND.damaged(path, f"{type(error).__name__}: {error}") from error


def _numbered(groups: Mapping[str, Mapping[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    for group, values in groups.items():
        yield from ((f"{group}_{i:04d}", array) for i, array in enumerate(values.values()))


def _group(tree: "xr.DataTree", group: str) -> dict[str, np.ndarray]:
    variables = tree[group].to_dataset().data_vars if group in tree.children else {}
    return {str(name): np.asarray(value) for name, value in variables.items() if np.asarray(value).dtype.kind != "O"}


def _label(name: str) -> str:
    return name.replace("/", ".")


def _origin(manifest: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Describe the origin of a run."""
    rows = []
    for title, key in (("Model", "model"), ("Data", "data")):
        found = manifest.get(key) or {}
        if found.get("path"):
            rows.append((title, str(found.get("given") or found["path"])))
        if found.get("sha256"):
            rows.append((f"{title}, SHA-256", str(found["sha256"])))
    options = manifest.get("options") or {}
    if options.get("seed") is not None:
        rows.append(("Seed", str(options["seed"])))
    if manifest.get("finished"):
        rows.append(("Finished", str(manifest["finished"])))
    return tuple(rows)
