"""Moments of the posterior and of a fit at once, by importance weights of draws that are spread wider than both.

Both are sums over the same draws. Where the fit is the posterior the weights are equal, and so are the sums, without
noise; mass that the fit has too little of far out, however thin it is there, makes them differ. Standard errors come
from a jackknife over groups of draws: what rests on a few of them is known to be uncertain.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bernflow.diagnostics.elsewhere import MEAN_ERROR, SD_ERROR, Effect, Found

# Groups of draws, of which one at a time is left out.
NUM_GROUPS = 20
# An error is real beyond so many standard errors, and excluded if it is so many below what counts as wrong.
REAL, EXCLUDED = 3.0, 2.0
# If a single draw stands for more of the posterior than this, nothing is excluded.
LARGEST_SHARE = 0.02
# A standard deviation exists as far as can be told if so little of a variance lies farther out than so many times the
# distance of the quartiles; the share is a third of it for Student t tails of 2.5 degrees of freedom, and nearly 1 for
# those of a Cauchy distribution.
FAR, MOST_FAR = 1000.0, 0.1
# Logs of masses below this are zero.
LEAST_LOG_MASS = -700.0
# A fit has too little mass where it has so many times less than the posterior.
LACKING = 1.2


class Weighed(NamedTuple):
    """Draws of a wide distribution, each with the masses that it stands for.

    Attributes:
        points: the draws, (n, p).
        log_p: log of the posterior mass, in units of what the fit has found.
        log_q: log of the mass of the fit.
        group: number of the group of each draw, below `NUM_GROUPS`.
    """

    points: Float[np.ndarray, "n p"]
    log_p: Float[np.ndarray, " n"]
    log_q: Float[np.ndarray, " n"]
    group: Int[np.ndarray, " n"]

    def joined(self, other: "Weighed", times: float) -> "Weighed":
        """Return both as one, the other from so many times as many draws."""
        first, second = -math.log1p(times), math.log(times / (1.0 + times))
        return Weighed(
            np.concatenate([self.points, other.points]),
            np.concatenate([self.log_p + first, other.log_p + second]),
            np.concatenate([self.log_q + first, other.log_q + second]),
            np.concatenate([self.group, other.group]),
        )

    def excess(self) -> Found:
        """Return the mass of the posterior that the fit lacks where it has visibly less."""
        lacking = self.log_p > self.log_q + math.log(LACKING)
        log_p, log_q = self.log_p[lacking], self.log_q[lacking]
        return Found(self.points[lacking], log_p + np.log1p(-np.exp(log_q - log_p)))


class MomentErrors(NamedTuple):
    """Errors of the moments of a fit, of every parameter.

    Attributes:
        mean: of its mean, in standard deviations of the posterior, (p,).
        mean_se: its standard error.
        sd: the standard deviation of the posterior in units of that of the fit, less 1.
        sd_se: its standard error.
        known: whether these figures mean anything: both distributions must have a standard deviation.
        largest: the largest share of the posterior that a single draw stands for.
    """

    mean: Float[np.ndarray, " p"]
    mean_se: Float[np.ndarray, " p"]
    sd: Float[np.ndarray, " p"]
    sd_se: Float[np.ndarray, " p"]
    known: Bool[np.ndarray, " p"]
    largest: float

    @property
    def are_wrong(self) -> bool:
        """Whether a mean or a standard deviation is wrong, beyond the noise."""
        return bool(np.any(self._wrong()))

    @property
    def are_right(self) -> bool:
        """Whether all means and standard deviations are right, and known well enough to tell."""
        mean, sd = np.abs(self.mean) + EXCLUDED * self.mean_se, np.abs(self.sd) + EXCLUDED * self.sd_se
        return self.largest <= LARGEST_SHARE and bool(np.all(self.known & (mean <= MEAN_ERROR) & (sd <= SD_ERROR)))

    @property
    def seem_wrong(self) -> bool:
        """Whether a mean or a standard deviation is wrong, maybe by chance."""
        return bool(np.any(self.known & ((np.abs(self.mean) > MEAN_ERROR) | (np.abs(self.sd) > SD_ERROR))))

    def effect(self) -> Effect:
        """Return the errors of the parameter that is most wrong."""
        size = np.maximum(np.abs(self.mean) / MEAN_ERROR, np.abs(self.sd) / SD_ERROR)
        worst = int(np.argmax(np.where(self._wrong(), size, -1.0)))
        return Effect(float(abs(self.mean[worst])), float(self.sd[worst]), worst)

    def _wrong(self) -> Bool[np.ndarray, " p"]:
        mean, sd = np.abs(self.mean), np.abs(self.sd)
        wrong = (mean > MEAN_ERROR) & (mean > REAL * self.mean_se) | (sd > SD_ERROR) & (sd > REAL * self.sd_se)
        return self.known & wrong


@np.errstate(all="ignore")  # far away everything overflows
def errors_of(weighed: Weighed, draws: Float[np.ndarray, "s p"]) -> MomentErrors:
    """Estimate the errors of the moments of a fit.

    Args:
        weighed: draws of a wide distribution.
        draws: draws of the fit.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(20_000, 1))
        >>> log_q = -0.5 * (x[:, 0] / 0.5) ** 2 - np.log(0.5) + 0.5 * x[:, 0] ** 2
        >>> found = errors_of(Weighed(x, 0.0 * log_q, log_q, np.arange(20_000) % NUM_GROUPS), 0.5 * x)
        >>> found.are_wrong, bool(abs(found.sd[0] - 1.0) < 0.05)
        (True, True)
    """
    draws = draws[np.isfinite(draws).all(1)]
    center, scale = np.mean(draws, 0), np.maximum(np.std(draws, 0), np.finfo(float).tiny)
    kept = np.maximum(weighed.log_p, weighed.log_q) > LEAST_LOG_MASS
    z = (weighed.points[kept] - center) / scale
    groups = (weighed.group[kept] == np.arange(NUM_GROUPS)[:, None]).astype(float)
    masses = [np.exp(log_mass[kept]) for log_mass in (weighed.log_p, weighed.log_q)]
    sums = [[groups * mass @ part for part in (np.ones_like(z), z, z**2)] for mass in masses]
    total = [[np.sum(part, 0) for part in each] for each in sums]
    whole = _errors(*total)
    parts = [
        _errors(*([t - s[g] for t, s in zip(*each, strict=True)] for each in zip(total, sums, strict=True)))
        for g in range(NUM_GROUPS)
    ]
    se = [np.sqrt((NUM_GROUPS - 1.0) * np.var([part[i] for part in parts], 0)) for i in range(2)]
    known = np.isfinite(np.array([*whole, *se])).all(axis=0)
    quartiles = np.quantile(draws, (0.25, 0.75), axis=0)
    far = np.abs(weighed.points[kept] - center) > FAR * np.ptp(quartiles, axis=0)
    for mass, (_, _, squares) in zip(masses, total, strict=True):
        known = known & (mass @ np.where(far, z, 0.0) ** 2 <= MOST_FAR * squares)
    return MomentErrors(
        whole[0], se[0], whole[1], se[1], np.atleast_1d(known), float(np.max(masses[0], initial=0.0) / total[0][0][0])
    )


def _errors(
    p: list[Float[np.ndarray, " p"]], q: list[Float[np.ndarray, " p"]]
) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]]:
    """Return the errors of means and standard deviations from sums of powers under both distributions."""
    mean_p, mean_q = p[1] / p[0], q[1] / q[0]
    sd_p, sd_q = np.sqrt(p[2] / p[0] - mean_p**2), np.sqrt(q[2] / q[0] - mean_q**2)
    return (mean_q - mean_p) / sd_p, sd_p / sd_q - 1.0
