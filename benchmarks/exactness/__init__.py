"""Small models whose evidence and posterior are known exactly, in closed form or by quadrature.

Example:
    >>> round(MODELS["beta-binomial"].log_evidence, 6)
    -2.537657
"""

from benchmarks.exactness.answers import MODELS, ExactModel
from benchmarks.exactness.examine import Exactness, examine

__all__ = ["MODELS", "ExactModel", "Exactness", "examine"]
