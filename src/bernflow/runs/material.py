"""The content of a report of a run, from its files only: no model is loaded and no code is executed."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bernflow.errors import FileFormatError
from bernflow.posterior.archive import Record, read_record
from bernflow.posterior.tables import Axes
from bernflow.report.material import NUM_REPLICATES, Material, gather
from bernflow.report.tails import tails_of_draws
from bernflow.runs.draws import STAT_COLUMNS, plain_name
from bernflow.runs.folder import DRAWS, NETCDF, POSTERIOR, TREES, ZARR, Run, read_run
from bernflow.runs.untrusted import check_hdf5, check_table, check_zarr

if TYPE_CHECKING:
    import xarray as xr

NUM_DRAWS, KEY = 4000, 1
NOTE = (
    "Made from the files of a run, without its model: replicated observations are shown only if the model itself "
    "generates them."
)


def material_of_run(folder: Path) -> Material:
    """Gather the content of a report from the files of a run."""
    run = read_run(folder)
    record = read_record(run.file(POSTERIOR))
    parts = _draws(run, record)
    if parts is None:
        return gather(run.load(), NUM_DRAWS, KEY)
    _check_draws(run.folder, parts["draws"], record)
    weighted = bool(run.manifest.get("weighted"))
    if weighted:  # the weights of resampled draws are not informative about the fit
        parts["log_weights"] = None
    derived = {name: value for name, value in parts["draws"].items() if name not in {s.name for s in record.sites}}
    model = run.manifest.get("model") or {}
    first = int(str(model.get("path", "")).endswith(".stan"))
    tails: tuple[tuple[str, float], ...] = ()
    if parts["log_weights"] is not None:
        sites = {site.name: parts["draws"][site.name] for site in record.sites}
        axes = Axes(parts.get("dims", {}), parts.get("coords", {}), first)
        tails = tails_of_draws(record.diagnostics, sites, axes, parts["log_weights"])
    return Material(
        diagnostics=record.diagnostics,
        sites=record.sites,
        history=record.history,
        settings=record.settings,
        structure=record.structure,
        weighted=weighted,
        replicates={name: value[:NUM_REPLICATES] for name, value in derived.items()},
        first_index=first,
        tails=tails,
        origin=_origin(run.manifest),
        notes=(NOTE, *map(str, run.manifest.get("notes", ()))),
        **parts,
    )


def _draws(run: Run, record: Record) -> dict[str, Any] | None:
    """Read draws and data in the most complete format; None if there are none."""
    try:
        for name, engine, check in ((TREES[NETCDF], "h5netcdf", check_hdf5), (TREES[ZARR], "zarr", check_zarr)):
            if run.has(name):
                path = run.file(name)
                _check_shapes(check(path), run, record)
                return _from_tree(path, engine, record)
        if run.has(DRAWS):
            return _from_csv(run.file(DRAWS), record)
    except FileFormatError:
        raise
    except Exception as error:  # parsers can raise almost any error
        raise FileFormatError(f"The draws of the run {run.folder} cannot be read ({error}): run it again.") from error
    return None


def _check_shapes(shapes: Mapping[str, tuple[int, ...]], run: Run, record: Record) -> None:
    """Check the shapes in a file against the number of draws and the parameters, before reading the arrays."""
    num = int(run.manifest["draws"])
    expected = {f"posterior/{site.name.replace('/', '.')}": (1, num, *site.shape) for site in record.sites}
    for place, shape in expected.items():
        if shapes.get(place) != shape:
            raise ValueError(f"{place} has the shape {shapes.get(place)}, expected {shape}")


def _check_draws(folder: Path, draws: Mapping[str, np.ndarray], record: Record) -> None:
    """Check that there are equally many draws of every parameter, of its shape."""
    counts = {len(values) for values in draws.values()}
    wrong = [s.name for s in record.sites if s.name not in draws or draws[s.name].shape[1:] != s.shape]
    if wrong or len(counts) != 1 or any(values.dtype.kind not in "fiub" for values in draws.values()):
        raise FileFormatError(
            f"The draws of the run {folder} are not those of its parameters ({', '.join(wrong) or 'other numbers'}): "
            "run it again."
        )


def _from_tree(path: Path, engine: str, record: Record) -> dict[str, Any]:
    import xarray as xr

    with xr.open_datatree(path, engine=engine) as tree:
        # Names have dots instead of slashes, which separate groups in a DataTree.
        names = {site.name.replace("/", "."): site.name for site in record.sites}
        posterior = tree["posterior"].to_dataset()
        draws = {names.get(str(name), str(name)): np.asarray(value)[0] for name, value in posterior.data_vars.items()}
        dims = {names.get(str(n), str(n)): _named_axes(str(n), v.dims[2:]) for n, v in posterior.data_vars.items()}
        coords = {str(name): np.asarray(value) for name, value in posterior.coords.items()}
        stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else {}
        weights = np.asarray(stats["log_weight"], dtype=np.float64)[0] if "log_weight" in stats else None
        return {
            "draws": draws,
            "dims": dims,
            "coords": coords,
            "log_weights": weights,
            "observed": _group(tree, "observed_data"),
            "constants": _group(tree, "constant_data"),
        }


def _named_axes(name: str, axes: tuple) -> tuple[str | None, ...]:
    """Return the names of axes; default names of ArviZ become None."""
    return tuple(None if str(axis) == f"{name}_dim_{place}" else str(axis) for place, axis in enumerate(axes))


def _group(tree: "xr.DataTree", group: str) -> dict[str, np.ndarray]:
    if group not in tree.children:
        return {}
    return {str(name): np.asarray(value) for name, value in tree[group].to_dataset().data_vars.items()}


def _from_csv(path: Path, record: Record) -> dict[str, Any]:
    import pandas as pd

    check_table(path)
    table = pd.read_csv(path, comment="#", dtype=np.float64)
    names = {plain_name(site.name): site.name for site in record.sites}
    columns: dict[str, dict[tuple[int, ...], np.ndarray]] = {}
    for column in table.columns:
        if column not in STAT_COLUMNS:
            name, *index = re.split(r"\.(?=\d)", str(column))
            columns.setdefault(names.get(name, name), {})[tuple(int(i) - 1 for i in index)] = table[column].to_numpy()
    draws = {name: _assemble(parts) for name, parts in columns.items()}
    weights = table["lp__"] - table["lp_approx__"] if {"lp__", "lp_approx__"} <= set(table.columns) else None
    return {"draws": draws, "log_weights": None if weights is None else weights.to_numpy(np.float64)}


def _assemble(parts: Mapping[tuple[int, ...], np.ndarray]) -> np.ndarray:
    """Assemble the columns of one variable to an array."""
    shape = tuple(max(axis) + 1 for axis in zip(*parts, strict=True))
    if min((min(index) for index in parts if index), default=0) < 0 or math.prod(shape) != len(parts):
        raise ValueError(f"{len(parts)} columns claim to be an array of shape {shape}")
    values = np.full((len(next(iter(parts.values()))), *shape), np.nan)
    for index, column in parts.items():
        at: Any = (slice(None), *index)
        values[at] = column
    return values


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
