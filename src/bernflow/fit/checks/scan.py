"""A scan of many points far out, to find the basins of modes that no other search comes near.

Far from two modes the wider one has the higher density, so that a path to the narrower one must begin within a ball
around it, of radius r / (1 - r^2) times their distance if it is r times as wide. In p dimensions a share of about
r^(p - 1) / sqrt(2 pi p (1 - r^2)) of all directions meets this ball: one in 7,000 for p = 20 and r = 0.7. Densities are
cheap where paths are not: a point whose density is far above that of others equally far out, in units of the covariance
of the fit, is in another basin or on a ridge, and a path from there shows which.
"""

import math

import numpy as np
from jaxtyping import Float

from bernflow.fit.checks.evidence import Evidence, Subject, frame
from bernflow.fit.work import work
from bernflow.keys import generator
from bernflow.posterior import sampling

# Points, as many as have so many coordinates together at most; with fewer a scan meets little.
NUM_POINTS, MAX_NUMBERS, MIN_POINTS = 100_000, 6_000_000, 20_000
# As much work as a tempered run may be.
MAX_WORK = 4e8
# They are so many times as far out as draws, evenly on the log scale.
LEAST_HEAT, MOST_HEAT = 1.5, 150.0
# Points that are compared with each other, and those from which paths may begin.
NUM_EQUALLY_FAR, NUM_KEPT = 500, 64


class Scan:
    """Are there points far out whose density is far above that of others equally far out?"""

    def applies(self, subject: Subject, evidence: Evidence) -> bool:
        """Fits that paths search the surroundings of, if the density is cheap."""
        return evidence.points is not None and subject.probes is not None and _num_points(subject) >= MIN_POINTS

    def run(self, subject: Subject, evidence: Evidence) -> Evidence:
        """Keep the points that stand out most, as starts of paths."""
        draws = subject.draws[np.isfinite(subject.draws).all(1)]
        center, factor = frame(draws)
        if factor is None:
            return evidence
        num, dim = _num_points(subject), subject.target.dim
        z = generator(subject.search_keys[5]).standard_normal((num, dim))
        # In the order of their distance.
        heat = np.geomspace(LEAST_HEAT, MOST_HEAT, num)
        z *= (heat * math.sqrt(dim) / np.linalg.norm(z, axis=1))[:, None]
        x = center + z @ factor.T
        with np.errstate(all="ignore"):  # far away everything overflows
            log_p = sampling.log_density(subject.target.layout, subject.target.model, x)
        best = np.argsort(-standing_out(log_p))[:NUM_KEPT]
        points = x[best[np.isfinite(log_p[best])]]
        return evidence.with_points(points).replace(looked=(*evidence.looked, f"a scan of {num:,} points"))


def standing_out(log_p: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return by how much each density is above the median of those beside it, in units of their spread.

    Example:
        >>> log_p = -np.geomspace(1.0, 1e4, 1000)
        >>> log_p[700] /= 2.0
        >>> int(np.argmax(standing_out(log_p)))
        700
    """
    out = np.full(len(log_p), -np.inf)
    for group in np.array_split(np.arange(len(log_p)), max(1, len(log_p) // NUM_EQUALLY_FAR)):
        known = group[np.isfinite(log_p[group])]
        if len(known) < len(group) // 2:
            continue
        # Distances in a group differ a little: the trend between its halves is taken out.
        half = len(known) // 2
        slope = (np.median(log_p[known[half:]]) - np.median(log_p[known[:half]])) / max(half, 1)
        above = log_p[known] - slope * (known - known[0])
        above -= np.median(above)
        out[known] = above / (1.0 + np.median(np.abs(above)))
    return out


def _num_points(subject: Subject) -> int:
    """Return how many points are affordable."""
    most = MAX_WORK * subject.settings.checks.times / max(work(subject.target), 1.0)
    return int(min(NUM_POINTS * subject.settings.checks.times, MAX_NUMBERS // subject.target.dim, most))
