"""What a report is made of: plain arrays and texts, from a posterior or from the files of a run."""

from collections.abc import Mapping, Sequence
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
from bernflow.posterior import Posterior
from bernflow.posterior.drawing import derived_sizes, draw
from bernflow.posterior.structure import NamedStructure
from bernflow.posterior.weighting import AUTO, Weighted
from bernflow.precision import use_precision
from bernflow.report.tails import find_tails

NUM_REPLICATES = 200
# Observed values times draws that are replicated at once.
MAX_REPLICATED = 2**25
REPLICATED_AT_ONCE = 1000
# More derived numbers than this are left out: 4,000 draws of them would fill the memory.
MAX_DERIVED, MAX_SMALL = 5000, 1000


@dataclass(frozen=True)
class Material:
    """All that a report shows.

    Attributes:
        diagnostics: verdict and figures.
        draws: arrays of shape (num, *shape) by name, parameters and derived quantities.
        sites: the parameters with shapes and supports.
        history: "step", "elbo", "elbo_se" of the training.
        settings: how the fit was made.
        structure: which parameters depend on one another, where it is known.
        weighted: whether the draws are resampled by their importance weights.
        log_weights: log weights of draws of q, or None where they are not known.
        observed: observed data by name.
        constants: other data by name.
        replicates: draws of new observations by name.
        scales: names of parameters that are bounded below, where the model does not tell more of their supports.
        dims: names of axes by quantity.
        coords: labels along named axes.
        first_index: what the first component of an array is counted as: 1 for Stan programs.
        has_model: whether the model was at hand.
        tails: quantities in whose tails the largest weights lie, with the share of these weights that does.
        parts: weights of the parts of a mixture.
        origin: where the fit comes from, in a reader's words: (what, value) each.
        notes: what is missing, and why.
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
    dims: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)
    first_index: int = 0
    has_model: bool = False
    tails: tuple[tuple[str, float], ...] = ()
    parts: tuple[float, ...] = ()
    origin: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def gather(posterior: Posterior, num: int, key: Any, weighted: Weighted = AUTO) -> Material:
    """Draw and evaluate what a report shows of a posterior.

    Args:
        posterior: the fit; without its model there are no weights, no data and no derived quantities.
        num: number of draws.
        key: integer seed or `jax.random.key` of the draws.
        weighted: resample them by Pareto-smoothed importance weights; "auto": where these correct the fit.
    """
    model, notes, axes = posterior.model, [], posterior.axes
    extra: dict[str, Any] = {}
    sizes = derived_sizes(posterior)
    derived: bool | tuple[str, ...] = True
    if sum(sizes.values()) > MAX_DERIVED:
        derived = tuple(name for name, size in sizes.items() if size <= MAX_SMALL)
        left_out = sum(size for name, size in sizes.items() if name not in derived)
        if left_out:
            notes.append(f"{left_out:,} derived numbers per draw are left out; post.draws() has them.")
    if model is None:
        notes.append("The model is not in the file of a saved posterior: weights and data are left out.")
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
        # As many as the verdict is made from, so that the picture of the weights shows what it saw.
        num_weights = num_diagnostic_draws(model, dim=posterior.layout.dim)
        extra["log_weights"] = posterior.log_weights(num_weights, key)
        extra["tails"] = find_tails(posterior, extra["log_weights"], num_weights, key)
        extra["replicates"] = _replicate(posterior, extra["observed"], notes)
    q = posterior.distribution
    sample = draw(posterior, num, key, weighted, derived)
    return Material(
        diagnostics=posterior.diagnostics,
        draws=sample.theta,
        sites=posterior.layout.sites,
        history=posterior.history,
        settings=posterior.settings,
        structure=posterior.structure,
        weighted=sample.weighted,
        dims=axes.dims,
        coords=axes.coords,
        first_index=axes.first,
        has_model=model is not None,
        parts=tuple(np.exp(np.asarray(q.log_weights)).tolist()) if isinstance(q, Mixture) else (),
        notes=tuple(notes),
        **extra,
    )


def _replicate(posterior: Posterior, observed: Mapping[str, np.ndarray], notes: list[str]) -> dict[str, np.ndarray]:
    """Draw new observations, where there are not too many and the model can."""
    size = sum(value.size for value in observed.values())
    if size == 0:
        return {}
    if size * REPLICATED_AT_ONCE > MAX_REPLICATED:
        notes.append(f"The {size:,} observed values are too many to be replicated here; use post.predict().")
        return {}
    try:
        return posterior.predict(num=NUM_REPLICATES)
    except BernflowError as error:  # such a model cannot draw observations, or needs more than its own data for it
        notes.append(f"No observations are replicated. {error}")
    except Exception as error:  # predictions run the user's own code, whose failure must not cost the report
        notes.append(f"No observations are replicated ({type(error).__name__}: {error}).")
    return {}
