"""The fitted posterior, and its files."""

from bernflow.posterior.archive import load, save
from bernflow.posterior.posterior import Posterior

__all__ = ["Posterior", "load", "save"]
