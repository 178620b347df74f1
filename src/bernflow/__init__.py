"""bernflow: Bayesian inference with Bernstein flows."""

import importlib
from types import ModuleType

# ArviZ 1 puts a lazy proxy of NumPyro into sys.modules. Importing a submodule through it executes that submodule twice
# and breaks `numpyro.factor`; accessing an attribute of the package first loads it properly.
from numpyro import __version__ as _numpyro_version  # noqa: F401

from bernflow.calibrate import Calibration, calibrate
from bernflow.compare import Comparison, compare, compare_models
from bernflow.diagnostics import Diagnostics
from bernflow.errors import ArgumentError, BernflowError, FileFormatError, FileWriteError, ModelError
from bernflow.fit import Training, fit
from bernflow.flows import Family
from bernflow.many import FitResult, map_fits
from bernflow.models import Model, from_log_density, from_pymc, from_stan
from bernflow.posterior import Posterior
from bernflow.semistructured import SemiStructured, load

__all__ = [
    "ArgumentError",
    "BernflowError",
    "Calibration",
    "Comparison",
    "Diagnostics",
    "Family",
    "FileFormatError",
    "FileWriteError",
    "FitResult",
    "Model",
    "ModelError",
    "Posterior",
    "SemiStructured",
    "Training",
    "calibrate",
    "compare",
    "compare_models",
    "fit",
    "from_log_density",
    "from_pymc",
    "from_stan",
    "load",
    "map_fits",
]


def __getattr__(name: str) -> ModuleType:
    """Import `bernflow.plots` on first use: importing matplotlib is slow, and most programs do not plot."""
    if name == "plots":
        return importlib.import_module("bernflow.plots")
    raise AttributeError(f"module 'bernflow' has no attribute {name!r}")
