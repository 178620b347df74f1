"""A common format for posteriors to compare: named draws by chain, with diagnostics and ArviZ trees."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.chains import ChainDiagnostics
from bernflow.diagnostics.findings import Diagnostics
from bernflow.errors import ArgumentError
from bernflow.posterior import Posterior
from bernflow.posterior.chains import NutsRun
from bernflow.posterior.drawing import num_available
from bernflow.posterior.export import export
from bernflow.posterior.tables import Axes
from bernflow.posterior.weighting import Weighted, is_weighted, num_effective

if TYPE_CHECKING:
    import xarray as xr

MIN_DRAWS = 100


@dataclasses.dataclass(frozen=True)
class Entry:
    """One of the posteriors.

    Attributes:
        name: the user's name for it.
        draws: (chains, num, *shape) by parameter.
        independent: whether the draws are independent, so that the effective sample size is their number, unless they
            are weighted.
        parameters: the names of the parameters; None if they cannot be distinguished from derived quantities.
        diagnostics: the diagnostics of a fit or of chains, if known.
        tree: returns the ArviZ tree with the pointwise log likelihood, if there is one.
        num_effective: effective sample size of weighted draws, which repeat each other; None for others.
        axes: names and labels of axes, if the model is known.
    """

    name: str
    draws: Mapping[str, np.ndarray]
    independent: bool
    parameters: tuple[str, ...] | None
    diagnostics: Diagnostics | ChainDiagnostics | None
    tree: "Callable[[], xr.DataTree] | None"
    num_effective: float | None = None
    axes: Axes | None = None

    def column(self, component: "Component") -> np.ndarray:
        """Return the draws of one component: (num,) if they are independent, else (chains, num)."""
        at: Any = (slice(None), slice(None), *component.index)
        values = np.asarray(self.draws[component.name][at], np.float64)
        return values.ravel() if self.independent else values


@dataclasses.dataclass(frozen=True)
class Component:
    """One scalar component of a parameter, with its label, for example `b[2]` or `b[age]`."""

    name: str
    index: tuple[int, ...]
    label: str


def as_entry(name: str, value: Any, num: int, key: Any, weighted: Weighted) -> Entry:
    """Convert any supported object to an `Entry`."""
    if isinstance(value, Posterior):
        return _from_posterior(name, value, num, key, weighted)
    if isinstance(value, NutsRun):
        draws = value.draws(deterministic=False)
        return Entry(name, draws, False, tuple(draws), value.diagnostics, value.to_tree, axes=value.axes)
    if hasattr(value, "children") and hasattr(value, "ds"):
        return _from_tree(name, value)
    if type(value).__name__ == "InferenceData":
        from arviz_base import convert_to_datatree

        tree = convert_to_datatree(value)
        tree.attrs |= dict(value.attrs)
        return _from_tree(name, tree)
    if isinstance(value, Mapping):
        return _from_dict(name, value)
    raise ArgumentError(
        f"compare: {name!r} is a {type(value).__module__}.{type(value).__qualname__}: expected a posterior of bf.fit, "
        "a run of post.to_nuts, an ArviZ DataTree or InferenceData, or a dict of draws, {name: (num, *shape)}."
    )


def shared_components(entries: Sequence[Entry], var_names: Sequence[str] | None) -> list[Component]:
    """Return the scalar components that all entries have; raise an error if one lacks a chosen parameter."""
    names = list(_names(entries) if var_names is None else [var_names] if isinstance(var_names, str) else var_names)
    if var_names is None:
        known = [entry for entry in entries if entry.parameters is not None] or list(entries)
        for entry in known:
            own = entry.parameters or tuple(entry.draws)
            if set(own) != set(names):
                raise ArgumentError(_different(entries[0] if known is entries else known[0], entry, own, names))
    for entry in entries:
        lacking = [name for name in names if name not in entry.draws]
        if lacking:
            raise ArgumentError(
                f"compare: {entry.name!r} lacks {', '.join(map(repr, lacking))}; it has {', '.join(entry.draws)}. "
                "Choose common parameters with var_names=[...], or var_names=[] to compare only evidence and LOO."
            )
    for name in names:
        shapes = {entry.name: entry.draws[name].shape[2:] for entry in entries}
        if len(set(shapes.values())) > 1:
            given = ", ".join(f"{shape} in {entry!r}" for entry, shape in shapes.items())
            raise ArgumentError(
                f"compare: {name!r} has shape {given}: expected one shape. Exclude it with var_names=[...], or rename "
                "one of them."
            )
    axes = next((entry.axes for entry in entries if entry.axes is not None), Axes())
    components = [
        Component(name, index, label)
        for name in names
        for index, label in _labels(axes, name, entries[0].draws[name].shape[2:])
    ]
    # Exclude constant components, such as the corner of a Cholesky factor.
    return [c for c in components if any(np.ptp(entry.column(c)) > 0 for entry in entries)]


def _labels(axes: Axes, name: str, shape: Sequence[int]) -> list[tuple[tuple[int, ...], str]]:
    """Return indices and labels of all components: coordinates of the model, unless these repeat."""
    found = list(axes.labels(name, shape))
    if len({label for _, label in found}) < len(found):
        return list(Axes(first=axes.first).labels(name, shape))
    return found


def matrix(entry: Entry, components: Sequence[Component]) -> Float[np.ndarray, "chains num d"]:
    """Return the draws of all components as one array; independent draws are one chain."""
    return np.stack([np.atleast_2d(entry.column(c)) for c in components], axis=-1)


def _names(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the names to compare: those of the first entry whose parameters are known, else all names."""
    known = [entry.parameters for entry in entries if entry.parameters is not None]
    return known[0] if known else tuple(entries[0].draws)


def _different(first: Entry, other: Entry, own: Sequence[str], names: Sequence[str]) -> str:
    return (
        f"compare: the parameters of {first.name!r} are {', '.join(names)}, those of {other.name!r} are "
        f"{', '.join(own)}: expected the same. Choose common ones with var_names=[...], or var_names=[] to compare "
        "only evidence and LOO."
    )


def _from_posterior(name: str, posterior: Posterior, num: int, key: Any, weighted: Weighted) -> Entry:
    num, use = num_available(posterior, num), is_weighted(posterior, weighted)
    draws = posterior.draws(num, key, use, deterministic=False)
    has_tree = posterior.model is not None or posterior.roles.log_likelihood
    tree = (lambda: export(posterior, num, key, use)) if has_tree else None
    by_chain = {site: value[None] for site, value in draws.items()}
    worth = num_effective(posterior, num, use) if use else None
    return Entry(name, by_chain, True, tuple(draws), posterior.diagnostics, tree, worth, posterior.axes)


def _from_tree(name: str, tree: Any) -> Entry:
    if "posterior" not in tree.children:
        raise ArgumentError(
            f"compare: the DataTree {name!r} has the groups {', '.join(tree.children) or '(none)'}: expected one "
            "called posterior."
        )
    variables = tree["posterior"].data_vars
    draws = {}
    for variable, array in variables.items():
        if not {"chain", "draw"} <= set(array.dims):
            raise ArgumentError(
                f"compare: {variable!r} in the DataTree {name!r} has the dimensions {array.dims}: expected chain and "
                "draw among them."
            )
        draws[str(variable)] = array.transpose("chain", "draw", ...).to_numpy()
    _check_draws(name, draws)
    # The single chain of a fit, as written by `Posterior.to_arviz`, consists of independent draws.
    independent = tree.attrs.get("inference_library") == "bernflow" and "log_q" in getattr(
        tree.get("sample_stats"), "data_vars", {}
    )
    return Entry(name, draws, bool(independent), None, None, lambda: tree)


def _from_dict(name: str, values: Mapping[str, Any]) -> Entry:
    if not values:
        raise ArgumentError(f"compare: {name!r} is an empty dict: expected draws by name, (num, *shape) each.")
    draws = {}
    for site, value in values.items():
        array = np.asarray(value)
        if array.ndim < 1 or array.dtype.kind not in "fiub":
            raise ArgumentError(
                f"compare: {name!r} has {site!r} of shape {array.shape} and type {array.dtype}: expected draws, "
                "(num, *shape)."
            )
        draws[str(site)] = array[None]
    _check_draws(name, draws)
    return Entry(name, draws, True, None, None, None)


def _check_draws(name: str, draws: Mapping[str, np.ndarray]) -> None:
    counts = {site: value.shape[:2] for site, value in draws.items()}
    if len(set(counts.values())) > 1:
        given = ", ".join(f"{site}: {num}" for site, (_, num) in counts.items())
        raise ArgumentError(f"compare: {name!r} has different numbers of draws ({given}): expected one number.")
    chains, num = next(iter(counts.values()))
    if chains * num < MIN_DRAWS:
        raise ArgumentError(f"compare: {name!r} has {chains * num} draws: expected at least {MIN_DRAWS}.")
