"""A ridge so long that its direction is lost in rounding, such as that of columns that repeat each other.

A fit of such a posterior widens along the ridge for as long as it is trained, and the Gaussian that it began with is as
wide as rounding allows. From 10^7 times the width across on, neither tells the direction of the ridge well enough for a
ray to stay on it. The eigenvectors of the second derivatives at one point do, to rounding.
"""

import jax
import numpy as np
from jaxtyping import Array, Float

from bernflow.compiled import filter_jit
from bernflow.posterior import sampling
from bernflow.target import Target

# Draws whose narrowest direction is this share of their widest tell little of it.
LOST = 1e-7
# Widths along the ridge count as at most so many times those across, so that its direction is known for as long as rays
# are followed.
LONGEST = 1e6
MAX_DIM = 100
# Draws near the origin among which the one of the highest density is taken: there, least is lost in rounding.
NUM_NEAR_ORIGIN = 100


def ridge(
    target: Target, core: Float[np.ndarray, "s p"]
) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, "p p"]] | None:
    """Return a point on a ridge, and axes of the curvature there with their widths; None where there is no such ridge.

    Args:
        target: the posterior.
        core: draws of the fit, without the outer ones.
    """
    if not 1 < target.dim <= min(MAX_DIM, len(core)):
        return None
    scale = np.maximum(np.std(core, 0), np.finfo(float).tiny)
    spread = np.linalg.svd((core - np.mean(core, 0)) / scale, compute_uv=False)
    if spread[-1] > LOST * spread[0]:
        return None
    near = core[np.argsort(np.max(np.abs(core) / scale, 1))[:NUM_NEAR_ORIGIN]]
    log_density = sampling.log_density(target.layout, target.model, near)
    center = near[int(np.argmax(np.nan_to_num(log_density, nan=-np.inf)))]
    precision = -np.asarray(_hessian(target, center))
    if not np.isfinite(precision).all() or not np.any(np.diag(precision) > 0.0):
        return None
    size = np.abs(np.diag(precision))
    unit = 1.0 / np.sqrt(np.maximum(size, size.max() / LONGEST**2))
    curvature, vectors = np.linalg.eigh(unit[:, None] * precision * unit)
    widths = 1.0 / np.sqrt(np.maximum(np.abs(curvature), np.abs(curvature).max() / LONGEST**2))
    return center, unit[:, None] * vectors * widths


@filter_jit
def _hessian(target: Target, x: Float[Array, " p"]) -> Float[Array, "p p"]:
    return jax.hessian(target.log_density)(x)
