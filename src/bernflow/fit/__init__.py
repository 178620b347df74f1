"""Fitting: starting point, training loop, restarts and mixtures."""

from bernflow.fit.api import fit, load, refine
from bernflow.fit.settings import Training

__all__ = ["Training", "fit", "load", "refine"]
