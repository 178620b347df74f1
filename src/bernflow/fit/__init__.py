"""Fitting: starting point, training loop, restarts and mixtures."""

from bernflow.fit.api import fit, load, refine

__all__ = ["fit", "load", "refine"]
