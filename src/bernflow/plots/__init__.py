"""Figures. Every function returns a matplotlib figure and changes no global setting."""

from bernflow.plots.calibration import plot_calibration
from bernflow.plots.comparison import plot_comparison
from bernflow.plots.convergence import plot_convergence
from bernflow.plots.marginals import plot_posterior
from bernflow.plots.pairs import plot_pairs
from bernflow.plots.predictive import plot_predictive
from bernflow.plots.transformation import plot_transformation
from bernflow.plots.weights import plot_weights

__all__ = [
    "plot_calibration",
    "plot_comparison",
    "plot_convergence",
    "plot_pairs",
    "plot_posterior",
    "plot_predictive",
    "plot_transformation",
    "plot_weights",
]
