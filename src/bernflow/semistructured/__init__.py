"""Semi-structured models: a deep network and an interpretable Bayesian part, trained together."""

from bernflow.semistructured.estimator import SemiStructured
from bernflow.semistructured.saved import load

__all__ = ["SemiStructured", "load"]
