"""Saved posteriors: one zip file of plain arrays and a manifest in JSON. Nothing in it is ever executed."""

import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bernflow.diagnostics.verdict import Diagnostics
from bernflow.errors import ArgumentError, BernflowError, FileFormatError
from bernflow.files import write_whole
from bernflow.flows.base import AbstractDistribution
from bernflow.models.base import AbstractJointModel, AbstractModel, Site
from bernflow.posterior.encoding import from_json, to_array, to_bytes, to_json
from bernflow.posterior.posterior import Posterior
from bernflow.posterior.supports import support_from_json, support_to_json
from bernflow.posterior.trees import fill_arrays, named_arrays
from bernflow.precision import use_precision
from bernflow.target import Layout, layout_of

FORMAT = "bernflow-posterior"
FORMAT_VERSION = 3
MANIFEST = "manifest.json"
# Begins the names of the arrays of a network.
NETWORK = "network"


class Record(NamedTuple):
    """What a file says about a posterior, all but the flow itself."""

    sites: tuple[Site, ...]
    diagnostics: Diagnostics
    history: dict[str, np.ndarray]
    settings: dict[str, Any]


def save(posterior: Posterior, path: str | os.PathLike) -> Path:
    """Save a posterior to one file, whole or not at all.

    The model and its data are not stored, the trained weights of its network are.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ArgumentError(f"save({str(path)!r}): the folder {str(path.parent)!r} does not exist: create it first.")
    arrays = {f"flow_{i:04d}.npy": leaf for i, leaf in enumerate(_leaves(posterior.distribution))}
    history = {name: f"history_{i:04d}.npy" for i, name in enumerate(posterior.history)}
    arrays |= {history[name]: values for name, values in posterior.history.items()}
    if isinstance(posterior.model, AbstractJointModel):
        network = named_arrays(NETWORK, posterior.model.trained())
        arrays |= {f"{name}.npy": values for name, values in network.items()}
    members = {name: to_bytes(values) for name, values in arrays.items()}
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "bernflow_version": _version(),
        "sites": _describe_sites(posterior.layout.sites),
        "recipe": posterior.distribution.recipe(),
        "precision": posterior.precision,
        "diagnostics": dataclasses.asdict(posterior.diagnostics),
        "settings": posterior.settings,
        "history": history,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in members.items()},
    }
    members = {MANIFEST: json.dumps(to_json(manifest, "manifest"), indent=1).encode(), **members}

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)

    return write_whole(path, write)


def load(
    path: str | os.PathLike,
    model: AbstractModel | None = None,
    refiner: Callable[..., Posterior] | None = None,
) -> Posterior:
    """Read a posterior that `Posterior.save` wrote.

    Args:
        path: the file.
        model: the model with its data, for weighted draws, predictions and refining. It must have the same
            parameters with the same shapes and supports as the saved posterior.
        refiner: what `Posterior.refine` calls.
    """
    path = Path(path)
    if model is not None and not isinstance(model, AbstractModel):
        raise ArgumentError(f"load(model=...): expected a bernflow model, got {type(model).__name__}.")
    manifest, members = _read(path)
    with _explained(path):
        sites, diagnostics, history, settings = _parse(manifest, members)
        precision = str(manifest["precision"])
        stored = [to_array(members[name]) for name in sorted(members) if name.startswith("flow_")]
        with use_precision(precision):
            distribution = _fill(_build(manifest["recipe"]), stored)
    if model is not None:
        _check_model(sites, model)
        with use_precision(precision):
            model = _with_network(path, model, members)
    with use_precision(precision):
        layout = Layout(sites) if model is None else layout_of(model)
    return Posterior(distribution, layout, model, diagnostics, history, settings, refiner)


def read_record(path: str | os.PathLike) -> Record:
    """Read all but the flow, also where that cannot be used without its model, as for Stan programs."""
    path = Path(path)
    manifest, members = _read(path)
    with _explained(path):
        return _parse(manifest, members)


def _parse(manifest: dict[str, Any], members: dict[str, bytes]) -> Record:
    sites = tuple(
        Site(str(s["name"]), tuple(map(int, s["shape"])), support_from_json(s["support"])) for s in manifest["sites"]
    )
    history = {str(name): to_array(members[file]) for name, file in manifest["history"].items()}
    settings = dict(manifest["settings"])
    settings.setdefault("precision", str(manifest["precision"]))
    return Record(sites, Diagnostics(**manifest["diagnostics"]), history, settings)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Name the file in errors about its contents."""
    try:
        yield
    except BernflowError as error:
        raise FileFormatError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read and verify all members: names, version, checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            # Stored, so that no member can unpack to more than the size of the file.
            if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
                raise _damaged(path, "it contains compressed members")
            members = {info.filename: archive.read(info) for info in infos}
    except FileNotFoundError as error:
        raise FileFormatError(f"{path} does not exist: expected a file written by post.save(path).") from error
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError) as error:
        raise _damaged(path, str(error)) from error
    if MANIFEST not in members:
        raise _damaged(path, f"it has no {MANIFEST}")
    try:
        manifest = from_json(json.loads(members.pop(MANIFEST)))
        named, version, checksums = (
            manifest["format"],
            int(manifest["format_version"]),
            dict(manifest["sha256"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its manifest cannot be read ({error!r})") from error
    if named != FORMAT:
        raise FileFormatError(f"{path} holds {named!r}: expected {FORMAT!r}, as written by post.save(path).")
    if version > FORMAT_VERSION:
        raise FileFormatError(
            f"{path} has format version {version}, written by bernflow {manifest.get('bernflow_version')}; this "
            f"bernflow reads up to {FORMAT_VERSION}: install a newer bernflow."
        )
    if version < FORMAT_VERSION:
        raise FileFormatError(
            f"{path} has format version {version}, written by bernflow {manifest.get('bernflow_version')}; flows have "
            f"got more parts since, and version {FORMAT_VERSION} is expected: fit and save it again."
        )
    if len(infos) != len(members) + 1 or members.keys() != checksums.keys():
        odd = sorted(members.keys() ^ checksums.keys()) or "names twice"
        raise _damaged(path, f"its contents differ from its manifest ({odd})")
    for name, content in members.items():
        if hashlib.sha256(content).hexdigest() != checksums[name]:
            raise _damaged(path, f"the checksum of {name} is wrong")
    return manifest, members


def _damaged(path: Path, why: str) -> FileFormatError:
    return FileFormatError(f"{path} is not a saved posterior, or it is damaged ({why}): save or copy it again.")


def _leaves(distribution: AbstractDistribution) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(distribution, eqx.is_array))]


def _build(recipe: dict[str, Any]) -> AbstractDistribution:
    """Rebuild a distribution without its trained arrays."""
    # Here, because some families import optional packages, which drawing and saving do not need.
    from bernflow.flows.families import build

    return build(recipe)


def _fill(skeleton: AbstractDistribution, stored: list[np.ndarray]) -> AbstractDistribution:
    """Put stored arrays in the place of a skeleton's."""
    arrays, static = eqx.partition(skeleton, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    expected, given = ([(a.shape, str(a.dtype)) for a in group] for group in (leaves, stored))
    if expected != given:
        raise FileFormatError(f"the arrays of the flow are {given}: expected {expected} by the recipe.")
    return eqx.combine(jax.tree.unflatten(structure, [jnp.asarray(a) for a in stored]), static)


def _with_network(path: Path, model: AbstractModel, members: dict[str, bytes]) -> AbstractModel:
    """Give a model the trained weights of the file, if there are any."""
    stored = {name.removesuffix(".npy"): to_array(c) for name, c in members.items() if name.startswith(NETWORK)}
    if not stored:
        return model
    if not isinstance(model, AbstractJointModel) or model.trained()[0] is None:
        raise ArgumentError(f"{path} holds the weights of a network, which the model given lacks: pass the one fitted.")
    try:
        weights, state = fill_arrays(NETWORK, model.trained(), stored)
    except (KeyError, ValueError) as error:
        raise ArgumentError(f"{path} holds the weights of another network than the model's ({error}).") from error
    return model.frozen(weights, state)


def _describe_sites(sites: tuple[Site, ...]) -> list[dict[str, Any]]:
    return [{"name": s.name, "shape": list(s.shape), "support": support_to_json(s.support)} for s in sites]


def _check_model(sites: tuple[Site, ...], model: AbstractModel) -> None:
    expected, given = _describe_sites(sites), _describe_sites(model.sites)
    if expected != given:
        show = [", ".join(f"{s['name']} {s['shape']} {s['support']}" for s in group) for group in (given, expected)]
        raise ArgumentError(
            f"load(model=...): the model has the parameters {show[0]}; the saved posterior has {show[1]}. Pass the "
            "model that was fitted."
        )


def _version() -> str:
    try:
        return metadata.version("bernflow")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"
