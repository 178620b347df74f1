"""Figures of merit of a fitted approximation, from log p - log q at fresh draws of q.

They are computed here and not by `bernflow.diagnostics`, so that the judge is independent of what is judged.
"""

import warnings

import numpy as np
from arviz_stats.base import array_stats


def score(log_weights, log_evidence=None):
    """Return ELBO, KL, k-hat and ESS fraction as plain floats.

    Args:
        log_weights: log p(x, data) - log q(x) at draws x of q, (num,).
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
    return {
        "elbo": elbo,
        "elbo_se": elbo_se,
        "kl": None if log_evidence is None else log_evidence - elbo,
        "khat": khat(log_weights),
        "ess_fraction": float(np.mean(weights) ** 2 / np.mean(weights**2)),
    }


def khat(log_weights):
    """Estimate the Pareto shape of the importance weights; inf where the fit to the tail fails."""
    finite = log_weights[np.isfinite(log_weights)]
    if np.ptp(finite) < 1e-10:
        return 0.0  # Constant weights have no tail.
    # ArviZ takes the logs of the inverse weights, as in leave-one-out cross-validation.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        _, shape = array_stats.psislw(finite.max() - finite)
    return float(shape) if np.isfinite(shape) else float("inf")
