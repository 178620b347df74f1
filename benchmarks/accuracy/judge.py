"""Figures of merit of a fit, and the truth about it.

They are computed here and not by `bernflow.diagnostics.verdict`, so that the judge is independent of what is judged.

What a verdict promises, and when it is wrong, with errors in units of the posterior's standard deviation (sd) and the
combined Monte Carlo standard error (MCSE) of draws and reference:

* A fit is truly good if the mean of every quantity is within 4 MCSE + 0.2 sd of the reference, and every standard
  deviation within 4 MCSE + 20 %.
* A false "good" is the verdict good on a fit that is not truly good.
* A false "bad" is the verdict poor although all means and standard deviations are within 4 MCSE + 0.01 sd.

Where there is no reference, nothing is said about the truth.
"""

import warnings
from typing import Any

import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Float
from scipy.cluster.vq import kmeans2, vq
from scipy.special import logsumexp

from benchmarks.accuracy.columns import Columns
from benchmarks.study.weights import largest_share
from bernflow.diagnostics import sliced_wasserstein
from bernflow.diagnostics.agreement import compare

GOOD_MEAN, GOOD_SD = 0.2, 0.2
EXACT = 0.01


def score(log_weights: Float[np.ndarray, " num"], log_evidence: float | None = None) -> dict[str, Any]:
    """Return ELBO, KL, k-hat, ESS fraction and an estimate of the evidence as plain floats.

    Args:
        log_weights: log p(x, data) - log q(x) at draws x of q.
        log_evidence: exact log p(data), or None; then `kl` is None.
    """
    log_weights = np.asarray(log_weights, dtype=np.float64)
    bad = np.isnan(log_weights) | (log_weights == np.inf)
    if bad.any():
        raise ValueError(f"{bad.sum()} of {bad.size} log weights are NaN or +inf: the fit cannot be judged.")
    with np.errstate(invalid="ignore"):
        elbo = float(np.mean(log_weights))
        elbo_se = float(np.std(log_weights, ddof=1) / np.sqrt(log_weights.size))
    weights = np.exp(log_weights - log_weights.max())
    ess_fraction = float(np.mean(weights) ** 2 / np.mean(weights**2))
    return {
        "elbo": elbo,
        "elbo_se": elbo_se,
        "largest_share": largest_share(log_weights),
        "kl": None if log_evidence is None else log_evidence - elbo,
        "khat": khat(log_weights),
        "ess_fraction": ess_fraction,
        "log_evidence_estimate": float(logsumexp(log_weights) - np.log(log_weights.size)),
        # The delta method for the logarithm of a mean of weights.
        "log_evidence_estimate_se": float(np.sqrt(max(0.0, 1.0 / ess_fraction - 1.0) / log_weights.size)),
    }


def khat(log_weights: Float[np.ndarray, " num"]) -> float:
    """Estimate the Pareto shape of the importance weights; inf where the fit to the tail fails."""
    finite = log_weights[np.isfinite(log_weights)]
    if finite.size == 0:
        return float("inf")
    if np.ptp(finite) < 1e-10:
        return 0.0  # Constant weights have no tail.
    # ArviZ takes the logs of the inverse weights, as in leave-one-out cross-validation.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        _, shape = array_stats.psislw(finite.max() - finite)
    return float(shape) if np.isfinite(shape) else float("inf")


def errors(
    draws: Columns, reference: Columns, verdict: str | None = None, num_effective: float | None = None
) -> dict[str, Any]:
    """Compare draws with the reference and say whether the verdict on them is right.

    Args:
        draws: one array per column, (num,) or (chains, draws); the columns of the reference are compared.
        reference: likewise.
        verdict: what the method says of its fit, if it says anything.
        num_effective: number of independent draws that `draws` are worth, where they repeat each other.
    """
    found = compare(draws, reference, num_effective=num_effective)
    mean, sd = found.worst_mean, found.worst_sd
    truly_good = found.within(GOOD_MEAN, GOOD_SD)
    false_good = verdict == "good" and not truly_good
    false_bad = verdict == "poor" and found.within(EXACT, EXACT)
    return {
        "mean_error": mean.mean_error,
        "mean_error_se": mean.mean_se,
        "mean_error_of": mean.name,
        "sd_error": sd.sd_error,
        "sd_error_se": sd.sd_se,
        "sd_error_of": sd.name,
        "truly_good": truly_good,
        "false_good": false_good,
        "false_bad": false_bad,
        "verdict_is_right": None if verdict is None else not (false_good or false_bad),
        **distance(draws, reference),
    }


def distance(draws: Columns, reference: Columns) -> dict[str, float]:
    """Return the sliced Wasserstein distance to one half of the reference, and that of its halves from each other.

    Both compare samples of the same size, of quantities in units of the reference's standard deviation, so that the
    second is what the first would be for a perfect fit.
    """
    names = list(reference)
    scale = np.array([np.std(reference[name]) for name in names])
    first, second = (_rows([half[i] for half in map(_halves, map(reference.get, names))]) / scale for i in (0, 1))
    ours = _rows([draws[name] for name in names]) / scale
    if not np.isfinite(ours).all():
        return {"wasserstein": float("nan"), "wasserstein_floor": sliced_wasserstein(first, second)}
    # Chains are thinned, not cut: their beginnings resemble each other.
    ours = ours[:: max(1, len(ours) // len(first))][: len(first)]
    return {
        "wasserstein": sliced_wasserstein(ours, first),
        "wasserstein_floor": sliced_wasserstein(first, second),
    }


def region_error(draws: Columns, reference: Columns, num_regions: int) -> dict[str, float]:
    """Compare how much mass lies near each mode: the largest difference of a share to that of the reference.

    The regions are clusters of the reference draws, and a draw belongs to the nearest center. Where modes are separate
    and the clusters found them, these are the weights of the modes.
    """
    names = list(reference)
    scale = np.array([np.std(reference[name]) for name in names])
    rows = _rows([reference[name] for name in names]) / scale
    centers, labels = kmeans2(rows, num_regions, minit="++", rng=np.random.default_rng(0))
    shares = np.bincount(labels, minlength=num_regions) / len(labels)
    ours = np.bincount(vq(_rows([draws[name] for name in names]) / scale, centers)[0], minlength=num_regions)
    return {"region_error": float(np.max(np.abs(ours / ours.sum() - shares)))}


def _halves(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Cut a column into two halves: of the chains, where there are any."""
    middle = len(values) // 2
    return values[:middle], values[middle : 2 * middle]


def _rows(columns: list[np.ndarray]) -> Float[np.ndarray, "num p"]:
    return np.stack([np.ravel(values) for values in columns], axis=1).astype(np.float64)
