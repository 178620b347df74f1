"""Semi-structured models: a deep network and an interpretable Bayesian part, trained together."""

from bernflow.semistructured.estimator import SemiStructured

__all__ = ["SemiStructured"]
