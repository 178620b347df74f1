"""Saved posteriors: a zip file of arrays and a JSON manifest. No code from the file is executed."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bernflow.diagnostics.findings import FINDINGS, OTHER_MODEL, SAVED, VERDICTS, Diagnostics, Finding, remark
from bernflow.diagnostics.verdict import judge
from bernflow.errors import ArgumentError, BernflowError, FileFormatError, ModelError
from bernflow.flows.base import AbstractDistribution
from bernflow.flows.structure import Structure
from bernflow.models.base import AbstractJointModel, AbstractModel, Site
from bernflow.posterior.container import Kind, read_container, write_container
from bernflow.posterior.drawing import to_store, try_density
from bernflow.posterior.posterior import Posterior
from bernflow.posterior.stored import Roles, SavedLayout, Stored, Trial
from bernflow.posterior.structure import NamedStructure, by_name, labels
from bernflow.posterior.supports import support_from_json, support_to_json
from bernflow.posterior.tables import Axes
from bernflow.posterior.trees import fill_arrays, named_arrays
from bernflow.precision import float_dtype, resolve_precision, use_precision
from bernflow.target import AbstractLayout, Layout, layout_of

KIND = Kind("bernflow-posterior", 6, "a saved posterior", "post.save(path)", "copy it again, or fit and save it again")
# Prefixes of the names of arrays.
NETWORK, FLOW, HISTORY = "network", "flow", "history"
DRAWS, STATS, TRIAL = "draws", "stats", "trial"
# Number of draws for the verdict on a fit under another model than its own.
NUM_JUDGED = 10_000
# Largest polynomial order that is read; the matrices of higher orders would fill the memory.
MAX_ORDER = 5_000


class Record(NamedTuple):
    """The content of a file except for the flow."""

    sites: tuple[Site, ...]
    diagnostics: Diagnostics
    history: dict[str, np.ndarray]
    settings: dict[str, Any]
    structure: NamedStructure | None


def save(posterior: Posterior, path: str | os.PathLike) -> Path:
    """Save a posterior to a file, atomically.

    The model and its data are not stored; the trained weights of its network are.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ArgumentError(f"save({str(path)!r}): the folder {str(path.parent)!r} does not exist: create it first.")
    leaves = jax.tree.leaves(eqx.filter(posterior.distribution, eqx.is_array))
    arrays = {f"{FLOW}_{i:04d}": leaf for i, leaf in enumerate(leaves)}
    history = {name: f"{HISTORY}_{i:04d}" for i, name in enumerate(posterior.history)}
    arrays |= {history[name]: values for name, values in posterior.history.items()}
    if isinstance(posterior.model, AbstractJointModel):
        arrays |= named_arrays(NETWORK, posterior.model.trained())
    stored = to_store(posterior)
    arrays |= {name: value for name, value in _stored_arrays(stored)}
    facts = {
        "sites": _describe_sites(posterior.layout.sites),
        "recipe": posterior.distribution.recipe(),
        "precision": posterior.precision,
        "diagnostics": posterior.diagnostics.to_dict(),
        "settings": posterior.settings,
        "history": {name: f"{member}.npy" for name, member in history.items()},
        "layout": {"order": posterior.layout.order, "sizes": posterior.layout.sizes},
        "stored": {
            "weighted": stored.weighted,
            "draws": list(stored.draws),
            "stats": list(stored.stats),
            "dims": {name: list(axes) for name, axes in stored.axes.dims.items()},
            "coords": {name: plain_labels(labels) for name, labels in stored.axes.coords.items()},
            "first": stored.axes.first,
            "roles": stored.roles._asdict(),
        },
    }
    return write_container(path, KIND, facts, arrays)


def load(
    path: str | os.PathLike,
    model: AbstractModel | None = None,
    refiner: Callable[..., Posterior] | None = None,
    check: bool = True,
) -> Posterior:
    """Read a posterior written by `Posterior.save`.

    Args:
        path: the file.
        model: the model with its data, for weighted draws, predictions and refinement. It must have the same
            parameters with the same shapes and supports as the saved posterior.
        refiner: the function that `Posterior.refine` calls.
        check: raise an error if the density of the model is not that of the fit; otherwise the fit is judged again
            under this model.
    """
    path = Path(path)
    if model is not None and not isinstance(model, AbstractModel):
        raise ArgumentError(f"load(model=...): expected a bernflow model, got {type(model).__name__}.")
    manifest, arrays = read_container(path, KIND)
    with _explained(path):
        sites, diagnostics, history, settings, _ = _parse(manifest, arrays)
        precision = resolve_precision(str(manifest["precision"]))
        stored = [arrays[name] for name in sorted(arrays) if name.startswith(f"{FLOW}_")]
        _check_sizes(manifest["recipe"], sum(values.size for values in stored))
        with use_precision(precision):
            distribution = _fill(_build(manifest["recipe"]), stored)
    if model is not None:
        _check_model(sites, model)
        with use_precision(precision):
            model = _with_network(path, model, arrays)
    with use_precision(precision):
        layout = _saved_layout(path, sites, manifest) if model is None else layout_of(model)
    if layout.dim != distribution.dim:
        raise KIND.damaged(path, f"its parameters have {layout.dim} dimensions and its flow {distribution.dim}")
    with _explained(path):
        stored_draws = _stored(manifest.get("stored", {}), arrays, layout)
    posterior = Posterior(distribution, layout, model, diagnostics, history, settings, refiner, stored_draws)
    if model is not None and stored_draws.trial is not None:
        _check_density(posterior, model, stored_draws.trial, check)
    return posterior


def _saved_layout(path: Path, sites: tuple[Site, ...], manifest: dict[str, Any]) -> AbstractLayout:
    """Return the layout by the supports, or a layout without map if only the model knows it."""
    if all(site.support is not None for site in sites) or "layout" not in manifest:
        return _layout(path, sites)
    with _explained(path):
        return _named_places(sites, manifest)


def _named_places(sites: tuple[Site, ...], manifest: dict[str, Any]) -> SavedLayout:
    order, sizes = (tuple(map(int, manifest["layout"][name])) for name in ("order", "sizes"))
    if sorted(order) != list(range(len(sites))) or len(sizes) != len(sites) or min(sizes) < 0:
        raise ValueError("its layout does not fit its parameters")
    return SavedLayout(sites=sites, order=order, sizes=sizes)


def _stored_arrays(stored: Stored) -> Iterator[tuple[str, np.ndarray]]:
    for kind, group in ((DRAWS, stored.draws), (STATS, stored.stats)):
        yield from ((f"{kind}_{i:04d}", values) for i, values in enumerate(group.values()))
    if stored.trial is not None:
        yield from ((f"{TRIAL}_{name}", values) for name, values in stored.trial._asdict().items())


def _stored(facts: dict[str, Any], arrays: dict[str, np.ndarray], layout: AbstractLayout) -> Stored:
    """Rebuild the content of a file besides the flow; earlier versions have none."""

    def group(kind: str, names: list[str]) -> dict[str, np.ndarray]:
        return {str(name): arrays[f"{kind}_{i:04d}"] for i, name in enumerate(names)}

    draws, stats = group(DRAWS, facts.get("draws", [])), group(STATS, facts.get("stats", []))
    if len({len(values) for values in (*draws.values(), *stats.values())}) > 1:
        raise ValueError("its draws differ in number")
    shapes = {name: values.shape[1:] for name, values in draws.items()}
    if draws and any(shapes.get(site.name) != site.shape for site in layout.sites):
        raise ValueError("its draws do not fit its parameters")
    dims = {str(name): tuple(axes) for name, axes in facts.get("dims", {}).items()}
    axes = Axes(dims, dict(facts.get("coords", {})), int(facts.get("first", 0)))
    trial = None
    if f"{TRIAL}_x" in arrays:
        trial = Trial(*(arrays[f"{TRIAL}_{name}"] for name in Trial._fields))
        if trial.x.ndim != 2 or trial.x.shape[1] != layout.dim or trial.log_density.shape != trial.x.shape[:1]:
            raise ValueError("its trial of the density does not fit its parameters")
    names = facts.get("roles", {})
    roles = Roles(*(tuple(map(str, names.get(role, ()))) for role in Roles._fields))
    return Stored(draws, stats, bool(facts.get("weighted", False)), axes, roles, trial)


def plain_labels(labels: Any) -> list[Any]:
    """Return labels along an axis as JSON values; dates and the like as strings."""
    plain = np.asarray(labels).tolist()
    return [label if isinstance(label, bool | int | float | str) else str(label) for label in plain]


def _check_density(posterior: Posterior, model: AbstractModel, trial: Trial, check: bool) -> None:
    """Compare the density of a model with that of the fit; if it differs, raise an error or judge the fit again."""
    found = try_density(posterior, model, trial)
    difference = trial.difference(model, found.log_density)
    if difference is None:
        return
    by = f"by up to {difference:.3g} nats at {len(trial.x)} draws of the fit"
    if check:
        raise ArgumentError(
            f"load(model=...): the log density of this model differs from that of the fit {by}: its data or code are "
            "not those that were fitted. Pass the fitted model, fit the new data with bf.fit, or attach the model "
            "anyway with check=False; the fit is then judged again under it."
        )
    other = remark(
        OTHER_MODEL,
        f"this is the verdict on an earlier fit under another model or other data, whose log density differs {by}",
    )
    posterior.diagnostics = judge(posterior.log_weights(NUM_JUDGED)).adding(other)


def read_record(path: str | os.PathLike) -> Record:
    """Read everything except the flow, which may not be usable without its model, as for Stan programs."""
    path = Path(path)
    manifest, arrays = read_container(path, KIND)
    with _explained(path):
        return _parse(manifest, arrays)


def _parse(manifest: dict[str, Any], arrays: dict[str, np.ndarray]) -> Record:
    sites = tuple(
        Site(str(s["name"]), tuple(map(int, s["shape"])), support_from_json(s["support"])) for s in manifest["sites"]
    )
    history = {str(name): arrays[file.removesuffix(".npy")] for name, file in manifest["history"].items()}
    settings = dict(manifest["settings"])
    settings.setdefault("precision", str(manifest["precision"]))
    num_values = sum(values.size for name, values in arrays.items() if name.startswith(f"{FLOW}_"))
    structure = _structure(manifest, sites, num_values)
    return Record(sites, _diagnostics(manifest["diagnostics"]), history, settings, structure)


def _structure(manifest: dict[str, Any], sites: tuple[Site, ...], num_values: int) -> NamedStructure | None:
    """Return the structure in the recipe of the flow; None if the file does not name its dimensions."""
    recipe, stored = manifest["recipe"], manifest.get("stored", {})
    if "layout" not in manifest:
        return None
    layout = _named_places(sites, manifest)
    _check_sizes({"dim": max(layout.dim, int(recipe.get("dim", 0)))}, num_values)
    axes = Axes(stored.get("dims", {}), stored.get("coords", {}), int(stored.get("first", 0)))
    return by_name(Structure.from_json(recipe) if "blocks" in recipe else None, labels(layout, axes))


def _diagnostics(spec: dict[str, Any]) -> Diagnostics:
    """Rebuild the diagnostics, with checks of the types of their values."""
    for name in ("improper", "looked"):
        if not isinstance(spec.get(name), str | None):
            raise TypeError(f"{name} is {spec[name]!r}")
    found = spec.get("findings")
    if found is None:  # a file of an earlier version has only the sentence
        improper = spec.get("improper") or ""
        found = [{"kind": SAVED, "level": spec["verdict"], "cause": spec["status"], "parameters": improper}]
    if not found:
        raise ValueError("the verdict rests on no finding")
    known: dict[str, Any] = {"findings": tuple(map(_finding, found)), "looked": spec.get("looked")}
    known |= {name: int(spec[name]) for name in ("num_draws", "num_nonfinite")}
    # These follow from the findings.
    others = spec.keys() - known.keys() - {"verdict", "status", "improper"}
    return Diagnostics(**known | {n: None if spec[n] is None else float(spec[n]) for n in others})


def _finding(spec: dict[str, Any]) -> Finding:
    for name, known in (("kind", FINDINGS), ("level", VERDICTS)):
        if spec[name] not in known:
            raise ValueError(f"the {name} of a finding is {spec[name]!r}")
    words = {name: str(spec.get(name, "")) for name in ("cause", "advice", "parameters")}
    figures = {str(name): float(value) for name, value in spec.get("figures", {}).items()}
    return Finding(spec["kind"], spec["level"], **words, figures=figures)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Convert errors about the contents of a file to a `FileFormatError` that names the file."""
    try:
        yield
    except BernflowError as error:
        raise FileFormatError(f"{path}: {error}") from error
    except Exception as error:  # a manipulated file can cause any error
        raise KIND.damaged(path, f"{type(error).__name__}: {error}") from error


def _check_sizes(recipe: dict[str, Any], num_values: int) -> None:
    """Raise an error for sizes that do not match the arrays of the file, before memory is allocated."""
    for part in recipe.get("components", ()):
        _check_sizes(part, num_values)
    dim, width, order = (int(recipe.get(name, 0)) for name in ("dim", "width", "order"))
    border, rank = (int(recipe.get(name, 0)) for name in ("border", "rank"))
    num_expected = max(dim**2 if recipe.get("outer") == "triangular" else dim, width**2, (dim - border) * rank)
    if min(dim, width, order, border, dim - border, rank) < 0 or num_expected > num_values or order > MAX_ORDER:
        raise FileFormatError(
            f"the flow would have {dim} dimensions, width {width} and order {order}, but the file has {num_values} "
            "numbers: expected consistent sizes."
        )


def _layout(path: Path, sites: tuple[Site, ...]) -> Layout:
    """Return the layout, checked by an abstract evaluation, because manipulated supports can cause any error."""
    try:
        layout = Layout(sites)
        theta, _ = jax.eval_shape(layout.constrain, jax.ShapeDtypeStruct((layout.dim,), float_dtype()))
    except ModelError:  # the layout needs the model
        raise
    except Exception as error:
        raise KIND.damaged(path, f"{type(error).__name__}: {error}") from error
    shapes, expected = {n: v.shape for n, v in theta.items()}, {s.name: s.shape for s in sites}
    if shapes != expected:
        raise KIND.damaged(path, f"its supports are of the shapes {shapes}, its parameters of {expected}")
    return layout


def _build(recipe: dict[str, Any]) -> AbstractDistribution:
    """Rebuild a distribution with untrained arrays."""
    # Imported here, because some families import optional packages, which drawing and saving do not need.
    from bernflow.flows.families import build

    return build(recipe)


def _fill(skeleton: AbstractDistribution, stored: list[np.ndarray]) -> AbstractDistribution:
    """Replace the arrays of a skeleton by stored ones."""
    arrays, static = eqx.partition(skeleton, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    expected, given = ([(a.shape, str(a.dtype)) for a in group] for group in (leaves, stored))
    if expected != given:
        raise FileFormatError(f"the arrays of the flow are {given}: expected {expected} by the recipe.")
    return eqx.combine(jax.tree.unflatten(structure, [jnp.asarray(a) for a in stored]), static)


def _with_network(path: Path, model: AbstractModel, arrays: dict[str, np.ndarray]) -> AbstractModel:
    """Set the network weights of a model to those in the file, if there are any."""
    stored = {name: values for name, values in arrays.items() if name.startswith(f"{NETWORK}_")}
    if not stored:
        return model
    if not isinstance(model, AbstractJointModel) or model.trained()[0] is None:
        raise ArgumentError(f"{path} contains network weights, but the model has no network: pass the fitted model.")
    try:
        weights, state = fill_arrays(NETWORK, model.trained(), stored)
    except (KeyError, ValueError) as error:
        raise ArgumentError(f"{path} contains weights of another network than the model's ({error}).") from error
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
