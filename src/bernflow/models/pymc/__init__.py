"""PyMC models."""

from bernflow.models.pymc.convert import from_pymc, is_pymc

__all__ = ["from_pymc", "is_pymc"]
