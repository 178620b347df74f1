"""Whether draws and log densities are resolved in double precision.

Where a density rises without end a fit runs away, until all draws are one number and all log densities, too. Their
weights are constant then, which says nothing.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

# Half of the draws must have room for so many different numbers, and the log density a smaller rounding error, in nats.
VALUES_PER_QUARTILES, MAX_ROUNDING = 1000.0, 1e-3


def unresolved(draws: Float[np.ndarray, "s p"], log_weights: ArrayLike, labels: list[str]) -> str | None:
    """Say what is lost in the rounding of double precision, or return None.

    Args:
        draws: draws of the fit on the unconstrained scale.
        log_weights: log p - log q, at draws of q; log q is never so large that it would matter.
        labels: names of the parameters.
    """
    eps = float(np.finfo(np.float64).eps)
    with np.errstate(over="ignore", invalid="ignore"):
        magnitude = np.abs(np.asarray(log_weights, np.float64))
        error = eps * float(np.median(magnitude[np.isfinite(magnitude)])) if np.isfinite(magnitude).any() else 0.0
        center, spread = np.median(draws, 0), np.ptp(np.quantile(draws, (0.25, 0.75), axis=0), axis=0)
    lost = np.flatnonzero(~(spread > VALUES_PER_QUARTILES * eps * np.abs(center)))
    if lost.size:
        return f"the draws of {labels[lost[0]]} are {center[lost[0]]:.3g} to within rounding errors"
    if error > MAX_ROUNDING:
        return f"the log density is known to {error:.1g} nats only, by the rounding of numbers of its size"
    return None
