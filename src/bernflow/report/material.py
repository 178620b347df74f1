"""The content of a report as arrays and strings, from a posterior or from the files of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.findings import Diagnostics
from bernflow.errors import BernflowError
from bernflow.fit.evaluation import num_diagnostic_draws
from bernflow.flows.mixture import Mixture
from bernflow.models.base import AbstractMappedModel, Site
from bernflow.plots.densities import Curve
from bernflow.plots.draws import figure_draws
from bernflow.plots.exact import exact_curve
from bernflow.posterior import Posterior
from bernflow.posterior.drawing import derived_sizes, draw
from bernflow.posterior.prior import prior_draws
from bernflow.posterior.structure import NamedStructure
from bernflow.posterior.tables import Axes
from bernflow.posterior.weighting import AUTO, Weighted
from bernflow.precision import use_precision
from bernflow.report.tails import find_tails

NUM_REPLICATES = 200
# Draws from the prior; fewer in many dimensions.
NUM_PRIOR, LEAST_PRIOR, MAX_PRIOR = 10_000, 1000, 5e6
# Bound on the number of observed values times draws per block of predictions.
MAX_REPLICATED = 2**25
REPLICATED_AT_ONCE = 1000
# Above MAX_DERIVED derived numbers in total, quantities larger than MAX_SMALL are omitted, to limit memory.
MAX_DERIVED, MAX_SMALL = 5000, 1000


@dataclass(frozen=True)
class Material:
    """The content of a report.

    Attributes:
        diagnostics: verdict and statistics.
        draws: arrays of shape (num, *shape) by name, parameters and derived quantities.
        sites: the parameters with shapes and supports.
        history: "step", "elbo", "elbo_se" of the training.
        settings: settings of the fit.
        structure: dependence structure of the parameters, or None if unknown.
        weighted: whether the draws are importance-resampled.
        log_weights: log weights of draws of q, or None if unknown.
        observed: observed data by name.
        constants: other data by name.
        replicates: draws of new observations by name.
        scales: names of parameters that are bounded below, if the model does not specify their supports.
        axes: names and labels of the axes of all quantities.
        tails: quantities with the largest weights in their tails, and the fraction of these weights there.
        component_weights: weights of the components of a mixture.
        dense: more draws of the parameters for densities; `draws` where there are none.
        exact: exact densities by name and index.
        prior: draws of the parameters from the prior; empty if it is unknown.
        origin: origin of the fit: (label, value) pairs.
        notes: missing content, with reasons.
    """

    diagnostics: Diagnostics
    draws: Mapping[str, np.ndarray]
    sites: tuple[Site, ...]
    history: Mapping[str, np.ndarray] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    structure: NamedStructure | None = None
    weighted: bool = False
    log_weights: Float[np.ndarray, " s"] | None = None
    observed: Mapping[str, np.ndarray] = field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    replicates: Mapping[str, np.ndarray] = field(default_factory=dict)
    scales: frozenset[str] = frozenset()
    axes: Axes = field(default_factory=Axes)
    tails: tuple[tuple[str, float], ...] = ()
    component_weights: tuple[float, ...] = ()
    dense: Mapping[str, np.ndarray] = field(default_factory=dict)
    exact: Mapping[tuple[str, tuple[int, ...]], Curve] = field(default_factory=dict)
    prior: Mapping[str, np.ndarray] = field(default_factory=dict)
    origin: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def gather(posterior: Posterior, num: int, key: Any, weighted: Weighted = AUTO) -> Material:
    """Draw and evaluate the content of a report of a posterior.

    Args:
        posterior: the fit; without its model there are no weights, no data and no derived quantities.
        num: number of draws.
        key: integer seed or `jax.random.key` of the draws.
        weighted: resample by Pareto-smoothed importance weights; "auto" if these correct the fit.
    """
    model, notes = posterior.model, []
    extra: dict[str, Any] = {}
    sizes = derived_sizes(posterior)
    derived: bool | tuple[str, ...] = True
    if sum(sizes.values()) > MAX_DERIVED:
        derived = tuple(name for name, size in sizes.items() if size <= MAX_SMALL)
        left_out = sum(size for name, size in sizes.items() if name not in derived)
        if left_out:
            notes.append(f"{left_out:,} derived numbers per draw are omitted; post.draws() includes them.")
    if model is None:
        notes.append("The file of a saved posterior does not contain the model: weights and data are omitted.")
    else:
        with use_precision(posterior.precision):
            observed, constants = model.data_groups()
            extra = {
                "observed": jax.tree.map(np.asarray, dict(observed)),
                "constants": jax.tree.map(np.asarray, dict(constants)),
            }
        if isinstance(model, AbstractMappedModel):
            scales = zip(model.sites, model.scales(), strict=True)
            extra["scales"] = frozenset(site.name for site, is_scale in scales if is_scale)
        # The same number of draws as for the verdict, so that the plot of the weights is consistent with it.
        num_weights = num_diagnostic_draws(model, dim=posterior.layout.dim)
        extra["log_weights"] = posterior.log_weights(num_weights, key)
        extra["tails"] = find_tails(posterior, extra["log_weights"], num_weights, key)
        extra["replicates"] = _replicate(posterior, extra["observed"], weighted, notes)
        extra["prior"] = _draw_prior(posterior, key, notes)
    q = posterior.distribution
    sample = draw(posterior, num, key, weighted, derived)
    if not sample.weighted:
        extra["dense"] = figure_draws(posterior, posterior.names, None, key, False).theta
        first = posterior.layout.sites[posterior.layout.order[0]]
        component = first.name, (0,) * len(first.shape)
        curve = exact_curve(posterior, component)
        extra["exact"] = {} if curve is None else {component: curve}
    return Material(
        diagnostics=posterior.diagnostics,
        draws=sample.theta,
        sites=posterior.layout.sites,
        history=posterior.history,
        settings=posterior.settings,
        structure=posterior.structure,
        weighted=sample.weighted,
        axes=posterior.axes,
        component_weights=tuple(np.exp(np.asarray(q.log_weights)).tolist()) if isinstance(q, Mixture) else (),
        notes=tuple(notes),
        **extra,
    )


def _draw_prior(posterior: Posterior, key: Any, notes: list[str]) -> dict[str, np.ndarray]:
    """Draw the parameters from the prior, if the model can."""
    num = max(LEAST_PRIOR, min(NUM_PRIOR, int(MAX_PRIOR / posterior.layout.dim)))
    try:
        return prior_draws(posterior.model, posterior.precision, num, key, deterministic=False)  # type: ignore[arg-type]
    except BernflowError as error:  # an improper prior, or one that is not separate from the likelihood
        notes.append(f"No prior is shown. {error}")
    except Exception as error:  # the prior runs user code, whose failure must not prevent the report
        notes.append(f"No prior is shown ({type(error).__name__}: {error}).")
    return {}


def _replicate(
    posterior: Posterior, observed: Mapping[str, np.ndarray], weighted: Weighted, notes: list[str]
) -> dict[str, np.ndarray]:
    """Draw new observations, if the model supports it and there are not too many."""
    size = sum(value.size for value in observed.values())
    if size == 0:
        return {}
    if size * REPLICATED_AT_ONCE > MAX_REPLICATED:
        notes.append(f"The {size:,} observed values are too many to replicate here; use post.predict().")
        return {}
    try:
        return posterior.predict(num=NUM_REPLICATES, weighted=weighted)
    except BernflowError as error:  # the model cannot draw observations, or needs new data for it
        notes.append(f"No observations are replicated. {error}")
    except Exception as error:  # predictions run user code, whose failure must not prevent the report
        notes.append(f"No observations are replicated ({type(error).__name__}: {error}).")
    return {}
