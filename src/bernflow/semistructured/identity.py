"""What a training depends on, in words."""

from typing import Any

import jax
import numpy as np


def describe_prior(prior: Any) -> Any:
    """Return a prior as text: the kinds of distributions and their parameters."""
    if isinstance(prior, dict):
        return {str(name): describe_prior(value) for name, value in sorted(prior.items())}
    if prior is None:
        return None
    return f"{type(prior).__name__}({', '.join(str(np.asarray(leaf)) for leaf in jax.tree.leaves(prior))})"
