"""Small models whose evidence and posterior are known exactly, in closed form or by quadrature.

Example:
    >>> round(MODELS["beta-binomial"].log_evidence, 6)
    -2.537657
"""

from bernflow.experiments.exactness.answers import MODELS, ExactModel
from bernflow.experiments.exactness.examine import Exactness, examine

__all__ = ["MODELS", "ExactModel", "Exactness", "examine"]
