"""The fitted posterior and its file format."""

from bernflow.posterior.archive import load, save
from bernflow.posterior.posterior import Posterior

__all__ = ["Posterior", "load", "save"]
