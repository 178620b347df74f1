"""Posterior mass outside of a fit: how much of it was found, and what it does to means and standard deviations.

Each estimate is a sum of importance weights at points where the fit has less than a hundredth of the density that it
should have. It is unbiased as long as the proposals reach that mass, and otherwise too small: by Markov's inequality it
is rarely far too large. So what is found counts, and nothing found proves nothing.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.importance import psis

# Error of a mean in standard deviations, and relative error of a standard deviation, that count as wrong.
MEAN_ERROR, SD_ERROR = 0.1, 0.1
# Shape of the tail of the draws, above which moments are not looked at: at 0.5 there is no variance.
HEAVIEST = 0.4
# Parameters whose tails are looked at, those that change most first.
MAX_CANDIDATES = 20


class Found(NamedTuple):
    """Posterior mass outside of a fit.

    Attributes:
        points: where it lies, (n, p).
        log_mass: log of the mass that each point stands for, in units of the mass that the fit has found, (n,).
    """

    points: Float[np.ndarray, "n p"]
    log_mass: Float[np.ndarray, " n"]

    @property
    def share(self) -> float:
        """Share of the whole posterior mass, from 0 to 1."""
        if not len(self.log_mass):
            return 0.0
        return float(np.exp(-np.logaddexp(0.0, -np.logaddexp.reduce(self.log_mass))))

    def mean(self) -> Float[np.ndarray, " p"]:
        """Return the mean of the mass that was found."""
        return self.weights() @ self.points

    def effective(self) -> float:
        """Return the effective number of points behind the estimate."""
        return float(1.0 / np.sum(self.weights() ** 2)) if len(self.log_mass) else 0.0

    def weights(self) -> Float[np.ndarray, " n"]:
        """Return the share of what was found that each point stands for."""
        weights = np.exp(self.log_mass - np.max(self.log_mass))
        return weights / np.sum(weights)


def nothing(dim: int) -> Found:
    """Return what is found where there is nothing."""
    return Found(np.empty((0, dim)), np.empty(0))


@dataclasses.dataclass(frozen=True)
class Effect:
    """What mass outside of a fit does to the moments of one parameter that it changes most.

    Attributes:
        mean_error: change of a mean, in standard deviations of the whole.
        sd_error: the standard deviation of the whole is so many times that of the fit, less 1; negative where the fit
            is too wide.
        parameter: its index.
    """

    mean_error: float = 0.0
    sd_error: float = 0.0
    parameter: int = 0

    @property
    def matters(self) -> bool:
        """Whether a mean or a standard deviation is wrong."""
        return self.mean_error > MEAN_ERROR or abs(self.sd_error) > SD_ERROR


def effect_of(found: Found, draws: Float[np.ndarray, "s p"]) -> Effect:
    """Compare the moments of a fit, by its draws, with those of the fit and what was found together."""
    share = found.share
    if share == 0.0:
        return Effect()
    draws = draws[np.isfinite(draws).all(1)]
    with np.errstate(over="ignore", invalid="ignore"):
        center, variance = np.mean(draws, 0), np.var(draws, 0)
        offset = found.points - center
        weights = share * found.weights()
        shift = weights @ offset
        whole = (1.0 - share) * variance + weights @ offset**2 - shift**2
        sd = np.sqrt(np.maximum(whole, np.finfo(float).tiny))
        means = np.nan_to_num(np.abs(shift) / sd)
        sds = np.nan_to_num(sd / np.sqrt(np.maximum(variance, np.finfo(float).tiny)) - 1.0)
    size = np.maximum(means / MEAN_ERROR, np.abs(sds) / SD_ERROR)
    for worst in map(int, np.argsort(-size)[:MAX_CANDIDATES]):
        if size[worst] <= 1.0 or not _has_heavy_tails(draws[:, worst]):
            return Effect(float(means[worst]), float(sds[worst]), worst)
    return Effect()


def _has_heavy_tails(values: Float[np.ndarray, " s"]) -> bool:
    """Tell whether a fit's own tails are such that a standard deviation may not exist."""
    distances = np.abs(values - np.median(values))
    return psis(np.log(np.maximum(distances, np.finfo(float).tiny)))[1] > HEAVIEST


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """Where a fit was looked at outside of its draws, and the mass found there.

    Attributes:
        looked: the places, as words: "4,000 heated draws", "64 starts".
        share: share of the posterior mass that was found and that the fit does not cover.
        effect: what that does to the moments.
        label: the parameter whose moments change most.
        modes: whether the mass was found around other starts, and not by draws that were spread.
    """

    looked: tuple[str, ...]
    share: float = 0.0
    effect: Effect = Effect()
    label: str = ""
    modes: bool = False

    def places(self) -> str:
        """Return the places as one phrase."""
        return join(self.looked)


# The result where a search was not possible.
NOT_SEARCHED = Elsewhere(())


def join(words: Sequence[str]) -> str:
    """Join phrases by commas and a final "and"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))
