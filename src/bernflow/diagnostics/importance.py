"""Importance weights: how far the draws of q are from the posterior, from log p - log q at draws of q.

Every function takes the unnormalised log weights log w_s = log p(x_s, data) - log q(x_s) of draws x_s from
q. A log weight of -inf is a draw outside of the posterior's support (weight zero); NaN and +inf are refused,
because no estimate can be made of them.
"""

import warnings

import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Float
from numpy.typing import ArrayLike

from bernflow.errors import ArgumentError
from bernflow.filters import local_filters

# A spread of the log weights below this is rounding, not a difference between q and the posterior.
CONSTANT_SPREAD = 1e-8
# Ties in a tail that rises less than this over the median come from single precision.
TIED_SPREAD = 1e-3
# In a tail that spans more than this many nats most weights underflow beside the largest, and the generalized Pareto
# fit sees nothing but zeros. Hill's estimator works on the logs.
MAX_TAIL_SPREAD = 300.0
# Weights of a tail that differ by less than this factor are nearly constant.
CONSTANT_TAIL = 0.5
# Fewer draws of positive weight than this leave too few points in the tail for a generalized Pareto fit.
MIN_DRAWS = 25
# Above this k-hat the weights have no variance, and above 1 no mean: the mean of a tail is that of the second shape.
INFINITE_VARIANCE, MAX_SHAPE_OF_A_MEAN = 0.5, 0.95


def psis(log_weights: ArrayLike) -> tuple[Float[np.ndarray, " s"], float]:
    """Smooth the largest weights by a generalized Pareto fit (Vehtari et al. 2024, arXiv:1507.02646).

    Args:
        log_weights: log p - log q at draws of q, (s,).

    Returns:
        The smoothed log weights, normalised so that their exponentials sum to one, and k-hat, the shape of
        the tail. k-hat is 0 where the weights are constant to rounding: q is then the posterior and there is
        no tail to fit. It is inf where fewer than 25 draws have a positive weight. Where the tail spans hundreds of
        nats it is Hill's estimate, and nothing is smoothed.

    Example:
        >>> _, khat = psis(np.random.default_rng(1).normal(size=4000) * 0.1)
        >>> khat < 0.5
        True
    """
    raw = check_log_weights(log_weights)
    positive = np.isfinite(raw)
    kept = raw[positive]
    if kept.size < MIN_DRAWS:
        return normalize(raw), np.inf
    if np.ptp(kept) < CONSTANT_SPREAD:
        return normalize(raw), 0.0
    tail = _largest(kept, tail_size(kept.size) + 1)
    if tail[-1] - tail[0] > MAX_TAIL_SPREAD:
        return normalize(raw), float(np.mean(tail[1:] - tail[0]))
    # ArviZ expects the negative log ratio. Its advice on k-hat is replaced by our verdict, so warnings are
    # muted.
    with local_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            smoothed, khat = array_stats.psislw(kept.max() - kept)
        except ValueError:  # all weights of the tail are equal
            smoothed, khat = kept, np.nan
    khat = float(khat)
    if not np.isfinite(khat) or np.isnan(smoothed).any():
        # Ties among the largest weights: rounding where they are close to the rest, a few repeated giants
        # otherwise.
        return normalize(raw), 0.0 if kept.max() - np.median(kept) < TIED_SPREAD else np.inf
    out = np.full(raw.shape, -np.inf)
    out[positive] = smoothed
    return normalize(out), khat


def ess_fraction(log_weights: ArrayLike) -> float:
    """Estimate the effective sample size per draw, 1 / (s sum_i w_i^2), of the raw normalised weights.

    It estimates 1 / (1 + chi^2(p || q)): one where q is the posterior, towards zero where single draws carry
    all.
    """
    return 1.0 / _relative_second_moment(check_log_weights(log_weights))


def log_evidence(log_weights: ArrayLike) -> tuple[float, float]:
    """Estimate the log marginal likelihood log mean(w), with its standard error.

    The standard error is that of the delta method up to a k-hat of 0.5. Above, the weights have no variance, and what
    is missing is mostly what lies beyond the largest of them: the share of the mean that the fitted tail has there
    is added, in squares. That follows a tail as far as it is a Pareto one: above a k-hat of 0.7 it is a lower bound.
    Missing tails make an estimate too low, not too high.

    Returns:
        The estimate and its standard error, which is inf where k-hat is inf or only logs of the weights can be told.
        With 20,000 draws of a normal of sd 0.5, 0.4, 0.3 for one of sd 1 the error is within two standard errors
        for 90, 90, 78 % of the samples (by the delta method alone for 67, 48, 42 %).
    """
    raw = check_log_weights(log_weights)
    top = raw.max()
    if top == -np.inf:
        return -np.inf, np.inf
    variance = max(_relative_second_moment(raw) - 1.0, 0.0) / raw.size
    value = float(top + np.log(np.mean(np.exp(raw - top))))
    return value, float(np.hypot(np.sqrt(variance), _share_beyond(raw)))


def _share_beyond(raw: Float[np.ndarray, " s"]) -> float:
    """Return the share of the mean weight that the tail is expected to hold beyond the largest of as many draws."""
    khat = psis(raw)[1]
    if khat <= INFINITE_VARIANCE:
        return 0.0
    if khat == np.inf:
        return np.inf
    kept = raw[np.isfinite(raw)]
    num = tail_size(kept.size)
    ordered = _largest(kept, num + 1)
    if ordered[-1] - ordered[0] > MAX_TAIL_SPREAD:
        return np.inf
    weights = np.exp(ordered - ordered[-1])
    # Above the threshold u the excesses have the quantiles scale / k (r^k - 1), one of r being larger; their median
    # gives the scale. Of `num` excesses one is expected beyond that of r = num.
    excess = np.median(weights[1:]) - weights[0]
    scale = khat * excess / np.expm1(khat * np.log(2.0))
    reached = excess * np.expm1(khat * np.log(num)) / np.expm1(khat * np.log(2.0))
    beyond = weights[0] + reached + (scale + khat * reached) / (1.0 - min(khat, MAX_SHAPE_OF_A_MEAN))
    # Nearly constant weights have a k-hat of noise: no tail is believed to hold more than what was seen above it.
    if weights[0] > CONSTANT_TAIL:
        beyond = min(beyond, np.sum(weights[1:] - weights[0]))
    return float(beyond / np.sum(np.exp(kept - ordered[-1])))


def elbo(log_weights: ArrayLike) -> tuple[float, float]:
    """Estimate the evidence lower bound mean(log w), with its standard error."""
    raw = check_log_weights(log_weights)
    if not np.all(np.isfinite(raw)):
        return -np.inf, np.inf
    with np.errstate(over="ignore"):  # log densities of 1e200 have no variance that could be told
        return float(np.mean(raw)), float(np.std(raw, ddof=1) / np.sqrt(raw.size))


def bootstrap_errors(log_weights: ArrayLike, num_resamples: int = 50, seed: int = 0) -> tuple[float, float]:
    """Estimate the standard errors of k-hat and of `ess_fraction` by resampling the draws.

    Returns:
        Both standard errors; inf where an estimate is not finite in a resample.
    """
    # Sorted once: a resample that comes in order is sorted again, inside of ArviZ, in a fraction of the time.
    raw = np.sort(check_log_weights(log_weights))
    rng = np.random.default_rng(seed)
    khats, fractions = [], []
    for _ in range(num_resamples):
        resample = np.repeat(raw, np.bincount(rng.integers(raw.size, size=raw.size), minlength=raw.size))
        khats.append(psis(resample)[1])
        fractions.append(ess_fraction(resample))
    return _spread(khats), _spread(fractions)


def normalize(log_weights: Float[np.ndarray, " s"]) -> Float[np.ndarray, " s"]:
    """Shift log weights so that their exponentials sum to one; all -inf stay -inf."""
    top = np.max(log_weights)
    if top == -np.inf:
        return log_weights
    return log_weights - (top + np.log(np.sum(np.exp(log_weights - top))))


def check_log_weights(log_weights: ArrayLike) -> Float[np.ndarray, " s"]:
    """Return the log weights in double precision, or refuse what is not a vector of them."""
    raw = np.asarray(log_weights, dtype=np.float64)
    if raw.ndim != 1 or raw.size < 2:
        raise ArgumentError(f"log_weights has shape {raw.shape}: expected a vector of at least two log weights.")
    bad = int(np.sum(np.isnan(raw) | (raw == np.inf)))
    if bad:
        raise ArgumentError(
            f"{bad} of {raw.size} log_weights are NaN or +inf: expected finite values, or -inf for a weight of zero. "
            "Check the log density of the model at these draws."
        )
    return raw


def _relative_second_moment(raw: Float[np.ndarray, " s"]) -> float:
    """Return mean(w^2) / mean(w)^2 >= 1; inf where all weights are zero."""
    top = raw.max()
    if top == -np.inf:
        return np.inf
    weights = np.exp(raw - top)
    return float(np.mean(weights**2) / np.mean(weights) ** 2)


def _largest(values: Float[np.ndarray, " s"], num: int) -> Float[np.ndarray, " n"]:
    """Return the largest values in increasing order, without sorting all others."""
    num = min(num, values.size)
    return np.sort(np.partition(values, values.size - num)[values.size - num :])


def tail_size(num: int) -> int:
    """Return the number of draws that the generalized Pareto distribution is fitted to."""
    return int(np.ceil(min(0.2 * num, 3.0 * np.sqrt(num))))


def _spread(values: list[float]) -> float:
    with np.errstate(over="ignore"):  # the tail of log densities of 1e200
        return float(np.std(values, ddof=1)) if np.all(np.isfinite(values)) else np.inf
