"""Are ranks uniform? The empirical distribution function of ranks, its simultaneous band, and the band's own p-value.

Of N independent ranks, each uniform on 0, ..., L, the number c_k of those below k is Binomial(N, k / (L + 1)). A band
allows at every k the counts whose smaller tail probability exceeds gamma / 2 (Saeilynoja, Buerkner and Vehtari, 2022,
arXiv:2103.10522); gamma is chosen such that all counts together stay inside with the probability wanted. The p-value of
ranks is the probability that uniform ones come as close to the edge at some k, so it is below 0.05 exactly where the
ranks leave the band of 95 %.

Neither is simulated. Given their sum, the numbers of ranks in the gaps between the points are those of a Poisson
process, whose increments are independent; so the probability to stay inside is one convolution per point.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import special, stats

from bernflow.errors import ArgumentError

# More points add nothing that an eye or a test of a few hundred ranks could see.
MAX_POINTS = 100
MIN_P_VALUE = 1e-12


@dataclasses.dataclass(frozen=True)
class Band:
    """What the empirical distribution function of uniform ranks stays inside of, at all points together.

    Attributes:
        points: where it is evaluated, between 0 and 1.
        lower: lowest shares of ranks that are allowed.
        upper: highest shares of ranks that are allowed.
    """

    points: Float[np.ndarray, " k"]
    lower: Float[np.ndarray, " k"]
    upper: Float[np.ndarray, " k"]


def rank_points(num_draws: int) -> Int[np.ndarray, " k"]:
    """Choose the ranks at which the distribution function is looked at, out of 1, ..., num_draws."""
    return np.unique(np.linspace(1, num_draws, min(num_draws, MAX_POINTS)).round().astype(int))


def rank_ecdf(ranks: ArrayLike, num_draws: int) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return points k / (L + 1) and the share of ranks below k at each; both are equal on average if all is well."""
    sorted_ranks, points = np.sort(_check(ranks, num_draws)), rank_points(num_draws)
    counts = np.searchsorted(sorted_ranks, points, side="left")
    return points / (num_draws + 1), counts / sorted_ranks.size


def rank_band(num: int, num_draws: int, prob: float = 0.95) -> Band:
    """Return the band that holds the whole distribution function of `num` uniform ranks with at least `prob`.

    Args:
        num: number of ranks N.
        num_draws: largest rank L.
        prob: probability that uniform ranks stay inside at all points together.
    """
    if not 0.0 < prob < 1.0:
        raise ArgumentError(f"prob={prob!r}: expected a probability between 0 and 1.")
    points = rank_points(num_draws) / (num_draws + 1)
    low, high = 0.0, 1.0  # of gamma: everything inside, nothing inside
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _coverage(num, points, *_limits(num, points, middle)) >= prob else (low, middle)
    lower, upper = _limits(num, points, low)
    return Band(points, lower / num, upper / num)


def rank_p_value(ranks: ArrayLike, num_draws: int) -> float:
    """Return the probability that uniform ranks come as close to the edge of the band as these, or leave it further.

    Args:
        ranks: N independent ranks out of 0, ..., num_draws.
        num_draws: largest rank L.

    Example:
        >>> rank_p_value(np.arange(100), 99)
        1.0
    """
    points, shares = rank_ecdf(ranks, num_draws)
    num = np.size(ranks)
    counts = np.round(shares * num)
    extremity = float(np.min(2.0 * np.minimum(*_tails(counts, num, points))))
    # As close to the edge as observed counts as outside, so that the limit lies just above, beyond rounding.
    coverage = _coverage(num, points, *_limits(num, points, extremity * (1.0 + 1e-9)))
    return float(np.clip(1.0 - coverage, MIN_P_VALUE, 1.0))


def holm(p_values: ArrayLike) -> Float[np.ndarray, " m"]:
    """Adjust p-values for their number (Holm, 1979): the chance that any of many true hypotheses falls below.

    Example:
        >>> holm([0.01, 0.04, 0.03]).round(2)
        array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _tails(
    counts: Float[np.ndarray, "*s k"], num: int, points: Float[np.ndarray, " k"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return P(C <= c) and P(C >= c) of binomial counts."""
    above = np.where(counts > 0, special.bdtrc(np.maximum(counts - 1, 0), num, points), 1.0)
    return special.bdtr(counts, num, points), above


def _limits(num: int, points: Float[np.ndarray, " k"], gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest count at every point whose smaller tail, doubled, is at least gamma."""
    below, above = _tails(np.arange(num + 1.0)[:, None], num, points)
    inside = 2.0 * np.minimum(below, above) >= gamma
    # Where nothing is inside, the lower limit lies above the upper one.
    found = inside.any(axis=0)
    lower = np.where(found, inside.argmax(axis=0), 1)
    return lower, np.where(found, num - inside[::-1].argmax(axis=0), 0)


def _coverage(num: int, points: Float[np.ndarray, " k"], lower: np.ndarray, upper: np.ndarray) -> float:
    """Return the probability that uniform ranks keep all counts within the limits."""
    if np.any(lower > upper):
        return 0.0
    counts = np.arange(num + 1)
    # Rates of the Poisson process with num points on average; the last gap ends at one.
    rates = num * np.diff(np.concatenate([[0.0], points, [1.0]]))
    state = np.zeros(num + 1)
    state[0] = 1.0
    for k, rate in enumerate(rates):
        state = np.convolve(state, stats.poisson.pmf(counts, rate))[: num + 1]
        if k < len(points):
            state[(counts < lower[k]) | (counts > upper[k])] = 0.0
    return float(state[num] / stats.poisson.pmf(num, num))


def _check(ranks: ArrayLike, num_draws: int) -> Int[np.ndarray, " n"]:
    values = np.asarray(ranks)
    if values.ndim != 1 or values.size < 1 or values.min() < 0 or values.max() > num_draws:
        raise ArgumentError(
            f"The ranks have shape {values.shape}: expected a vector of whole numbers from 0 to num_draws={num_draws}."
        )
    return values
