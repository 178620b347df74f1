"""Rank true values among draws, and compute z-scores and contraction."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bernflow.calibrate.blocks import Sample
from bernflow.calibrate.result import LOG_JOINT, Calibration, p_values_of
from bernflow.diagnostics.findings import Verdict
from bernflow.diagnostics.verdict import judge
from bernflow.errors import ModelError
from bernflow.models.base import Theta

# Bootstrap samples for the verdict on each fit.
NUM_RESAMPLES = 10


def verdict_of(log_weights: Float[np.ndarray, " s"]) -> Verdict:
    """Judge one fit by the weights of its draws."""
    return judge(log_weights, num_resamples=NUM_RESAMPLES).verdict


def collect(
    names: tuple[str, ...],
    thetas: list[Theta],
    samples: list[Sample],
    verdicts: list[Verdict],
    variance: dict[str, np.ndarray],
    num_draws: int,
    seed: int,
    settings: dict[str, Any],
) -> Calibration:
    """Rank the true values among the draws, and compute z-scores and contraction."""
    theta = {name: np.concatenate([t[name] for t in thetas]) for name in names}
    draws = {name: np.concatenate([s.draws[name] for s in samples]) for name in names}
    log_joint = np.concatenate([s.log_joint for s in samples])
    if not np.all(np.isfinite(log_joint)):
        raise ModelError(
            f"calibrate: the log density of {int(np.sum(~np.isfinite(log_joint)))} of {len(log_joint)} simulated pairs "
            "of parameters and data is not finite: prior draws are so wide that the data overflow, or the data lie "
            "outside of the support of their distribution. Use a prior that makes possible data only."
        )
    rng = np.random.default_rng(seed)
    ranks = {name: _ranks(theta[name], draws[name], rng) for name in names}
    ranks[LOG_JOINT] = _ranks(log_joint, np.concatenate([s.draws_log_joint for s in samples]), rng)
    mean, sd = ({name: f(draws[name], axis=1) for name in names} for f in (np.mean, np.std))
    with np.errstate(invalid="ignore", divide="ignore"):
        z_scores = {name: (mean[name] - theta[name]) / sd[name] for name in names}
        contraction = {name: 1.0 - sd[name] ** 2 / variance[name] for name in names}
    return Calibration(
        ranks, z_scores, contraction, p_values_of(ranks, num_draws), tuple(verdicts), num_draws, settings
    )


def _ranks(
    truth: Float[np.ndarray, "n ..."], draws: Float[np.ndarray, "n s ..."], rng: np.random.Generator
) -> Int[np.ndarray, "n ..."]:
    """Count the draws below the truth; ties, as for constants in a Cholesky factor, are broken at random."""
    below = np.sum(draws < truth[:, None], axis=1)
    return below + rng.integers(0, np.sum(draws == truth[:, None], axis=1) + 1)
