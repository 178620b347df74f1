"""bernflow: Bayesian inference with Bernstein flows."""

from bernflow.diagnostics import Diagnostics
from bernflow.errors import ArgumentError, BernflowError, FileFormatError, ModelError
from bernflow.fit import fit, load
from bernflow.models import Model, from_log_density
from bernflow.posterior import Posterior

__all__ = [
    "ArgumentError",
    "BernflowError",
    "Diagnostics",
    "FileFormatError",
    "Model",
    "ModelError",
    "Posterior",
    "fit",
    "from_log_density",
    "load",
]
