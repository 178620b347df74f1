"""Figures. Every function returns a matplotlib figure and changes no global setting."""

from bernflow.plots.convergence import plot_convergence
from bernflow.plots.marginals import plot_posterior

__all__ = ["plot_convergence", "plot_posterior"]
