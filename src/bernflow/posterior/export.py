"""Export of named draws to ArviZ: a DataTree, or the InferenceData of ArviZ 0.x."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from bernflow.errors import ArgumentError
from bernflow.keys import as_key
from bernflow.models.base import AbstractModel
from bernflow.posterior import prior as of_prior
from bernflow.posterior import sampling
from bernflow.posterior.drawing import draw, need_model
from bernflow.posterior.stored import Roles
from bernflow.posterior.weighting import Weighted
from bernflow.precision import use_precision

if TYPE_CHECKING:
    import xarray as xr

    from bernflow.posterior.parts import PosteriorParts

Kind = Literal["auto", "datatree", "inferencedata"]
# Groups whose variables have the axes chain and draw.
SAMPLED = (
    "posterior",
    "posterior_predictive",
    "sample_stats",
    "log_likelihood",
    "log_prior",
    "prior",
    "prior_predictive",
)


def export(
    posterior: "PosteriorParts",
    num: int,
    key: Any,
    weighted: Weighted,
    log_likelihood: bool = True,
    predictive: bool = False,
    prior: bool = False,
) -> "xr.DataTree":
    """Export draws of a posterior as one chain; see `Posterior.to_arviz`."""
    sample = draw(posterior, num, key, weighted, stats=True)
    model, axes = posterior.model, posterior.axes
    groups: dict[str, Any] = {"posterior": sample.theta, "sample_stats": sample.stats}
    if model is not None:
        sites = {name: sample.theta[name] for name in posterior.names}
        with use_precision(posterior.precision):
            groups |= model_groups(model, sites, log_likelihood)
    groups |= moved(groups.pop("posterior"), posterior.roles, groups.get("log_likelihood"), log_likelihood)
    if predictive:
        model = need_model(posterior, "predictive=True")
        with use_precision(posterior.precision):
            drawn = sampling.predict(model, as_key(key), sites, *model.prepare((), {}))
        groups["posterior_predictive"] = drawn
    if prior:
        model = need_model(posterior, "prior=True")
        groups |= of_prior.groups(model, posterior.precision, num, key)
    tree = to_datatree(groups, axes.dims, axes.coords)
    # NetCDF has no booleans.
    tree.attrs["weighted"] = int(sample.weighted)
    return tree


def model_groups(model: AbstractModel, sites: dict[str, np.ndarray], log_likelihood: bool) -> dict[str, Any]:
    """Return the groups of a model besides the draws: log densities of the draws, and data."""
    observed, constant = model.data_groups()
    groups: dict[str, Any] = {
        "log_prior": sampling.log_prior(model, sites),
        "observed_data": jax.tree.map(np.asarray, observed),
        "constant_data": jax.tree.map(np.asarray, constant),
    }
    if log_likelihood:
        groups["log_likelihood"] = sampling.log_likelihood(model, sites)
    return groups


def moved(
    theta: Mapping[str, np.ndarray], roles: Roles, known: Mapping[str, np.ndarray] | None, log_likelihood: bool
) -> dict[str, Mapping[str, np.ndarray]]:
    """Move derived quantities that are new observations, or a log likelihood, to the groups that ArviZ expects.

    Args:
        theta: parameters and derived quantities.
        roles: which of them belong elsewhere.
        known: the log likelihood that a model has computed.
        log_likelihood: whether to include it.
    """
    groups: dict[str, Mapping[str, np.ndarray]] = {
        group: {name: theta[name] for name in names if name in theta}
        for group, names in (("posterior_predictive", roles.predictions), ("log_likelihood", roles.log_likelihood))
    }
    groups["posterior"] = {name: v for name, v in theta.items() if not any(name in group for group in groups.values())}
    groups["log_likelihood"] = (known or groups["log_likelihood"]) if log_likelihood else {}
    return groups


def to_datatree(
    groups: Mapping[str, Mapping[str, np.ndarray]],
    dims: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    by_chain: bool = False,
) -> "xr.DataTree":
    """Make a DataTree of draws, (num, *shape) each, as one chain; empty groups are omitted.

    Args:
        groups: arrays by group and name.
        dims: names of axes by variable; None for an unnamed axis.
        coords: labels along named axes.
        by_chain: the draws are from Markov chains, (chains, num, *shape) each.
    """
    from arviz_base import from_dict

    def arranged(group: str, value: np.ndarray) -> np.ndarray:
        return value[None] if group in SAMPLED and not by_chain else value

    data = {
        group: {_label(name): arranged(group, value) for name, value in values.items()}
        for group, values in groups.items()
        if values
    }
    # The log prior has one value per draw and parameter, so the dims of the parameter do not apply.
    summed = {group: data.pop(group) for group in ("log_prior",) if group in data}
    tree = from_dict(
        data,
        attrs={"/": {"inference_library": "bernflow"}},
        dims={_label(name): [axis and _label(axis) for axis in axes] for name, axes in (dims or {}).items()},
        coords={_label(axis): labels for axis, labels in (coords or {}).items()},
        # The check for swapped chain and draw axes does not apply to a single chain.
        check_conventions=False,
    )
    for group, node in from_dict(summed, check_conventions=False).children.items() if summed else ():
        tree[group] = node.copy()
    return tree


def as_installed(tree: "xr.DataTree", kind: Kind) -> Any:
    """Return a DataTree, or InferenceData for ArviZ 0.x.

    Args:
        tree: the DataTree.
        kind: "datatree", "inferencedata", or "auto" for the installed version of ArviZ.
    """
    if kind not in ("auto", "datatree", "inferencedata"):
        raise ArgumentError(f"kind={kind!r}: expected 'auto', 'datatree' or 'inferencedata'.")
    if kind == "datatree" or (kind == "auto" and not _has_old_arviz()):
        return tree
    if not _has_old_arviz():
        raise ArgumentError(
            "kind='inferencedata' needs ArviZ 0.x, which is not installed: leave it out; ArviZ 1 takes a DataTree."
        )
    from arviz import InferenceData

    groups: dict[str, Any] = {name: node.to_dataset() for name, node in tree.children.items()}
    return InferenceData(attrs=dict(tree.attrs), **groups)


def _has_old_arviz() -> bool:
    try:
        return version("arviz").startswith("0.")
    except PackageNotFoundError:
        return False


def _label(name: str) -> str:
    """Replace slashes in names, as in NumPyro's scopes, because they separate groups in a DataTree."""
    return name.replace("/", ".")
