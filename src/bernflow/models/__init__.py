"""Front ends: every supported kind of model is converted to an `AbstractModel`."""

from bernflow.models.base import AbstractModel, Site
from bernflow.models.convert import as_model
from bernflow.models.declarative import Model
from bernflow.models.log_density import from_log_density
from bernflow.models.pymc import from_pymc
from bernflow.models.stan import from_stan

__all__ = ["AbstractModel", "Model", "Site", "as_model", "from_log_density", "from_pymc", "from_stan"]
