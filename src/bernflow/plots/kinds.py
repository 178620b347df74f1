"""The figures of a posterior, by name."""

from collections.abc import Callable, Mapping
from typing import Any

from bernflow.errors import ArgumentError
from bernflow.plots.convergence import plot_convergence
from bernflow.plots.marginals import plot_posterior
from bernflow.plots.pairs import plot_pairs
from bernflow.plots.predictive import plot_predictive
from bernflow.plots.structure import plot_structure
from bernflow.plots.transformation import plot_transformation
from bernflow.plots.weights import plot_weights
from bernflow.posterior import Posterior

PLOTS: Mapping[str, Callable[..., Any]] = {
    "marginals": plot_posterior,
    "pairs": plot_pairs,
    "predictive": plot_predictive,
    "structure": plot_structure,
    "convergence": plot_convergence,
    "weights": plot_weights,
    "transformation": plot_transformation,
}


def plot(posterior: Posterior, kind: str, **kwargs: Any) -> Any:
    """Draw a figure of a posterior."""
    if kind not in PLOTS:
        raise ArgumentError(f"plot({kind!r}): expected one of {', '.join(map(repr, PLOTS))}.")
    return PLOTS[kind](posterior, **kwargs)
