"""Stan programs as models: compiled once, cached, and called by XLA."""

from bernflow.models.stan.frontend import from_stan
from bernflow.models.stan.model import StanModel

__all__ = ["StanModel", "from_stan"]
