"""Whether a density has a finite mass, as far as its values along rays out of the bulk tell.

Along a ray let M(t) be the mass per unit of log t. The integral of M over log t is finite only if M falls to zero, so
that a density whose M does not fall over many decades of t is not that of a proper posterior. What draws of a fit
can show ends where the draws end; rays go on.
"""

import numpy as np
from jaxtyping import Float

# A slope of log M in log t above this is none: 1 / (1 + |x|) has 0, the tails of a Cauchy distribution have -1.
LEAST_SLOPE = -0.02
# So many steps at the far end of a ray must not fall, provided that the mass there is not below so many nats in units
# of the mass that is known: a plateau that is lower is nothing over all that double precision reaches.
NUM_LAST_STEPS, LOWEST_PLATEAU = 3, -30.0
# A ray may leave the ridge that it follows, or the density may overflow: then so many steps anywhere must not fall, in
# a place that matters.
NUM_STEPS, LOWEST_RIDGE = 4, -5.0


def endless_until(
    log_mass: Float[np.ndarray, " k"],
    log_radius: Float[np.ndarray, " k"],
    log_evidence: float | None = 0.0,
    at_end_only: bool = False,
) -> float | None:
    """Return the radius up to which the mass along a ray does not fall, or None where it comes to an end.

    Args:
        log_mass: log M at rising radii; -inf where the density is zero or overflows.
        log_radius: the logs of these radii.
        log_evidence: log of the mass that is known. None where none is: then nothing may fall before the density
            becomes zero or overflows.
        at_end_only: whether mass farther out is known to come to an end, so that only the far end of the ray counts.

    Example:
        >>> log_radius = np.log(4.0) + np.arange(15.0)
        >>> endless_until(0.0 * log_radius, log_radius) is None, endless_until(-log_radius, log_radius) is None
        (False, True)
    """
    with np.errstate(invalid="ignore"):
        slopes = np.diff(log_mass) / np.diff(log_radius)
    # NaN, from one infinite value to the next, compares as falling.
    lasting = np.isfinite(log_mass[1:]) & (slopes > LEAST_SLOPE)
    if log_evidence is None:
        ends = np.append(np.flatnonzero(~np.isfinite(log_mass)), len(log_mass))[0]
        rises = lasting[: max(ends - 1, 0)]
        return float(np.exp(log_radius[ends - 1])) if len(rises) >= NUM_STEPS and rises[-NUM_STEPS:].all() else None
    level = log_mass - log_evidence
    until = None
    run = 0
    for step, lasts in enumerate(lasting):
        run = run + 1 if lasts else 0
        if run >= NUM_STEPS and level[step + 1] > LOWEST_RIDGE and not at_end_only:
            until = log_radius[step + 1]
    if run >= NUM_LAST_STEPS and level[-1] > LOWEST_PLATEAU:
        until = log_radius[-1]
    return None if until is None else float(np.exp(until))
