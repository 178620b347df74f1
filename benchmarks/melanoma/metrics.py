"""How good probabilities of a rare outcome are: log score, ROC, AUC and calibration, with intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import beta, norm, rankdata

from bernflow import ArgumentError

LEVEL = 0.95


class Interval(NamedTuple):
    """An estimate and the ends of its interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.4f} ({self.low:.4f}, {self.high:.4f})"


class Difference(NamedTuple):
    """A difference of two predictions of the same rows, the ends of its interval, and its two-sided p-value."""

    estimate: float
    low: float
    high: float
    p_value: float


class Roc(NamedTuple):
    """A ROC curve from (0, 0) to (1, 1): the rates of the rule "score at least the threshold"."""

    false_positive: np.ndarray
    true_positive: np.ndarray
    threshold: np.ndarray


class Calibration(NamedTuple):
    """Mean probability and observed rate in bins of about as many rows each.

    Attributes:
        predicted: mean probability of every bin.
        observed: share of positives.
        low: lower end of the Jeffreys interval of that share.
        high: upper end.
        num_rows: rows of every bin.
    """

    predicted: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_rows: np.ndarray


def log_score(target: np.ndarray, probability: np.ndarray) -> float:
    """Return the mean log predictive probability of the outcomes; -inf where one was held impossible.

    Example:
        >>> round(log_score([1, 0], [0.5, 0.5]), 4)
        -0.6931
    """
    return float(np.mean(_log_scores(*_probabilities(target, probability))))


def roc_curve(target: np.ndarray, score: np.ndarray) -> Roc:
    """Return the ROC curve, one point per distinct score and one at (0, 0)."""
    target, score = _two_classes(target, score)
    order = np.argsort(-score, kind="stable")
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    true = np.cumsum(target[order])[last]
    false = 1 + last - true
    return Roc(
        np.append(0.0, false / false[-1]), np.append(0.0, true / true[-1]), np.append(np.inf, score[order][last])
    )


def auc(target: np.ndarray, score: np.ndarray) -> float:
    """Return the probability that a positive scores above a negative, ties counted as one half.

    Example:
        >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
        0.75
    """
    target, score = _two_classes(target, score)
    num = np.count_nonzero(target)
    ranks = rankdata(score)[target].sum()
    return float((ranks - num * (num + 1) / 2) / (num * (len(target) - num)))


def delong(target: np.ndarray, score: np.ndarray, level: float = LEVEL) -> Interval:
    """Return the AUC with the interval of DeLong, DeLong and Clarke-Pearson (1988), normal and clipped to [0, 1].

    The placements of the positives among the negatives, and of these among those, come from ranks (Sun and Xu, 2014).
    """
    target, score = _two_classes(target, score)
    above, below = _placements(target, score)
    estimate = float(above.mean())
    error = np.sqrt(above.var(ddof=1) / len(above) + below.var(ddof=1) / len(below))
    half = float(norm.ppf(0.5 + level / 2) * error)
    return Interval(estimate, max(0.0, estimate - half), min(1.0, estimate + half))


def auc_difference(
    target: np.ndarray, one: np.ndarray, other: np.ndarray, groups: np.ndarray | None = None, level: float = LEVEL
) -> Difference:
    """Return the difference of the AUCs of two scores of the same rows, by DeLong, DeLong and Clarke-Pearson (1988).

    Args:
        target: 1 or 0 (N,).
        one: scores (N,).
        other: scores (N,).
        groups: group of every row (N,), such as the patient: groups, not rows, are then the independent units, and the
            placements of a group's rows are summed before they are squared (Obuchowski, 1997).
        level: level of the interval.
    """
    terms = np.zeros(len(target))
    estimates = []
    for sign, score in ((1.0, one), (-1.0, other)):
        truth, score = _two_classes(target, score)
        for rows, placements in zip((truth, ~truth), _placements(truth, score), strict=True):
            num = len(placements)
            terms[rows] += sign * (placements - placements.mean()) / np.sqrt(num * (num - 1.0))
        estimates.append(auc(truth, score))
    return _difference(estimates[0] - estimates[1], terms, groups, level)


def _placements(target: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of negatives below every positive, and of positives above every negative."""
    positive, negative = score[target], score[~target]
    if min(len(positive), len(negative)) < 2:
        raise ArgumentError("delong: expected at least two rows of each outcome.")
    ranks = rankdata(score)
    above = (ranks[target] - rankdata(positive)) / len(negative)
    return above, 1.0 - (ranks[~target] - rankdata(negative)) / len(positive)


def _difference(estimate: float, terms: np.ndarray, groups: np.ndarray | None, level: float) -> Difference:
    """Return the interval of an estimate whose error is the sum of independent terms, one per row or group."""
    if groups is not None:
        terms = np.bincount(np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1), terms)
    error = float(np.sqrt(np.sum(terms**2)))
    half = float(norm.ppf(0.5 + level / 2)) * error
    p_value = float(2 * norm.sf(abs(estimate) / error)) if error else 1.0
    return Difference(estimate, estimate - half, estimate + half, p_value)


def bootstrap(
    target: np.ndarray,
    probability: np.ndarray,
    *,
    seed: int,
    num: int = 2000,
    level: float = LEVEL,
    groups: np.ndarray | None = None,
) -> dict[str, Interval]:
    """Return percentile intervals of "log_score" and "auc" by resampling rows, or whole groups such as patients.

    Args:
        target: 1 or 0 (N,).
        probability: predictive probability of 1 (N,).
        seed: seed of the resampling.
        num: number of resamples; those without both outcomes do not count for the AUC.
        level: level of the intervals.
        groups: group of every row (N,); rows of one group are drawn together.
    """
    truth, p = _probabilities(target, probability)
    _two_classes(truth, p)
    rng = np.random.default_rng(seed)
    scores = _log_scores(truth, p)
    group = np.arange(len(p)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    if group.shape != p.shape:
        raise ArgumentError(f"bootstrap: groups has shape {group.shape}, expected {p.shape}.")
    num_groups = int(group.max()) + 1
    distinct = np.unique(p, return_inverse=True)[1]
    found = np.empty((2, num))
    for i in range(num):
        weight = np.bincount(rng.integers(num_groups, size=num_groups), minlength=num_groups)[group]
        found[0, i] = np.dot(weight, scores) / weight.sum()
        positive = np.bincount(distinct, weight * truth)
        negative = np.bincount(distinct, weight * ~truth)
        pairs = positive.sum() * negative.sum()
        below = np.cumsum(negative) - 0.5 * negative
        found[1, i] = np.dot(positive, below) / pairs if pairs else np.nan
    tail = (1.0 - level) / 2
    log_low, log_high = np.quantile(found[0], [tail, 1.0 - tail])
    auc_low, auc_high = np.nanquantile(found[1], [tail, 1.0 - tail])
    return {
        "log_score": Interval(float(scores.mean()), float(log_low), float(log_high)),
        "auc": Interval(auc(truth, p), float(auc_low), float(auc_high)),
    }


def paired_difference(
    target: np.ndarray, one: np.ndarray, other: np.ndarray, groups: np.ndarray | None = None, level: float = LEVEL
) -> Difference:
    """Return the difference of the mean log scores of two predictions of the same rows.

    The rows are the same, so that what makes some of them hard for both is no part of the uncertainty.

    Args:
        target: 1 or 0 (N,).
        one: probabilities of 1 (N,).
        other: probabilities of 1 (N,).
        groups: group of every row (N,), such as the patient: the independent units.
        level: level of the interval.

    Example:
        >>> y, p = np.array([0, 1, 0, 1]), np.array([0.2, 0.6, 0.4, 0.9])
        >>> paired_difference(y, p, p).estimate
        0.0
    """
    scores = [_log_scores(*_probabilities(target, probability)) for probability in (one, other)]
    rows = scores[0] - scores[1]
    terms = (rows - rows.mean()) / np.sqrt(len(rows) * (len(rows) - 1.0))
    return _difference(float(rows.mean()), terms, groups, level)


def adjust(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of several tests adjusted by Holm's method, so that none is significant by their number.

    Example:
        >>> adjust([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.minimum(np.maximum.accumulate(np.asarray(p_values, float)[order] * factors), 1.0)
    found = np.empty(len(p_values))
    found[order] = adjusted
    return found.tolist()


def calibration_curve(target: np.ndarray, probability: np.ndarray, num_bins: int = 10) -> Calibration:
    """Return the calibration in bins between quantiles of the probabilities; equal probabilities share a bin."""
    if num_bins < 1:
        raise ArgumentError(f"num_bins={num_bins}: expected a whole number of at least 1.")
    truth, p = _probabilities(target, probability)
    edges = np.unique(np.quantile(p, np.arange(1, num_bins) / num_bins, method="inverted_cdf"))
    used, place = np.unique(np.searchsorted(edges, p, side="left"), return_inverse=True)
    count = np.bincount(place, minlength=len(used))
    positives = np.bincount(place, truth)
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = (beta.ppf(tail, positives + 0.5, count - positives + 0.5) for tail in tails)
    return Calibration(np.bincount(place, p) / count, positives / count, low, high, count)


def _log_scores(target: np.ndarray, probability: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.where(target, np.log(probability), np.log1p(-probability))


def _probabilities(target: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    truth, p = _rows(target, probability)
    if np.any((p < 0.0) | (p > 1.0)):
        raise ArgumentError(f"probability is between {p.min():g} and {p.max():g}: expected values in [0, 1].")
    return truth, p


def _two_classes(target: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    truth, score = _rows(target, score)
    if truth.all() or not truth.any():
        raise ArgumentError(f"target is {int(truth[0])} in every row: expected both outcomes.")
    return truth, score


def _rows(target: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    target, score = np.asarray(target), np.asarray(score, dtype=np.float64)
    if target.ndim != 1 or target.shape != score.shape or not len(target):
        raise ArgumentError(
            f"target has shape {target.shape}, the scores {score.shape}: expected one number per row for both."
        )
    if not np.isin(target, (0, 1)).all():
        raise ArgumentError("target has other values than 0 and 1.")
    if np.isnan(score).any():
        raise ArgumentError(f"{np.isnan(score).sum()} of {len(score)} scores are not numbers (nan).")
    return target.astype(bool), score
