"""Figures, by matplotlib unless another backend is chosen with `use`; no matplotlib settings are changed."""

from bernflow.plots.backends import use
from bernflow.plots.calibration import plot_calibration
from bernflow.plots.comparison import plot_comparison
from bernflow.plots.convergence import plot_convergence
from bernflow.plots.marginals import plot_posterior
from bernflow.plots.pairs import plot_pairs
from bernflow.plots.predictive import plot_predictive
from bernflow.plots.structure import plot_structure
from bernflow.plots.transformation import plot_transformation
from bernflow.plots.weights import plot_weights

__all__ = [
    "plot_calibration",
    "plot_comparison",
    "plot_convergence",
    "plot_pairs",
    "plot_posterior",
    "plot_predictive",
    "plot_structure",
    "plot_transformation",
    "plot_weights",
    "use",
]
