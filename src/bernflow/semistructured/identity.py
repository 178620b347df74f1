"""What a training depends on, so that a checkpoint of another one is recognized."""

import hashlib
from typing import Any

import jax
import numpy as np

from bernflow.semistructured.plan import Data

# Images behind the checksum of the data.
NUM_HASHED_IMAGES = 64


def describe_prior(prior: Any) -> Any:
    """Return a prior as text: the kinds of distributions and their parameters."""
    if isinstance(prior, dict):
        return {str(name): describe_prior(value) for name, value in sorted(prior.items())}
    if prior is None:
        return None
    return f"{type(prior).__name__}({', '.join(str(np.asarray(leaf)) for leaf in jax.tree.leaves(prior))})"


def digest_of(data: Data) -> str:
    """Hash table and outcome, and some of the images: enough to notice other data."""
    chosen = np.unique(np.linspace(0, len(data.images) - 1, NUM_HASHED_IMAGES).astype(int))
    digest = hashlib.sha256()
    for array in (data.matrix, data.y, data.images[chosen]):
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(str(data.images.shape).encode())
    return digest.hexdigest()
