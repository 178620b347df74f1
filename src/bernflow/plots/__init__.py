"""Figures. Every function returns a matplotlib figure and changes no global setting."""

from bernflow.plots.convergence import plot_convergence
from bernflow.plots.marginals import plot_posterior
from bernflow.plots.pairs import plot_pairs
from bernflow.plots.transformation import plot_transformation

__all__ = ["plot_convergence", "plot_pairs", "plot_posterior", "plot_transformation"]
