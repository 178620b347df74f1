"""When to stop: how a cycle changed the fit, and how far from the posterior it is."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.diagnostics.importance import log_evidence, psis
from bernflow.diagnostics.verdict import judge
from bernflow.fit.chunk import Trainee
from bernflow.fit.evaluation import log_weights_of, num_diagnostic_draws, pick
from bernflow.target import Target

# Below this many nats from the posterior, more steps change nothing that a user could see.
CLOSE_ENOUGH = 5e-4
# ... provided that the tails are met: clearly so before any covering, usably after it.
UNCOVERED_KHAT, COVERED_KHAT = 0.3, 0.7
# Above this k-hat of few draws, as many as for the verdict decide whether the posterior would be called good.
DOUBTFUL_KHAT = 0.4
# What is hard to see in any plot.
A_LITTLE = 5e-3
# So near that no tail can matter.
NEGLIGIBLE = 1e-5
# Within this many nats half the variance of the log weights estimates the distance.
NEAR = 0.1
# A distance estimated from few draws must be below this share of a tolerance: rare draws, which it does not see, add
# to it.
SAFETY = 0.8
# A cycle is the last if it gains less than this, or less than twice its Monte Carlo error, and if it leaves more
# than this share of the distance.
WORTHWHILE_GAIN = 5e-4
WORTHWHILE_SHARE = 0.8
# Deviations of single log weights count up to this many nats: a few tail draws must not decide.
MAX_DEVIATION = 1.0


class Comparison(NamedTuple):
    """How a cycle changed the best restart.

    Attributes:
        better: keep the new flows.
        worthwhile: another cycle may gain something.
    """

    better: bool
    worthwhile: bool


def compare(before: Float[np.ndarray, "r s"] | None, after: Float[np.ndarray, "r s"]) -> Comparison:
    """Compare log weights before and after a cycle; both were made from the same noise.

    Far from the posterior the ELBO decides. Near it the spread of the log weights does: it is the same quantity with a
    far smaller Monte Carlo error.
    """
    if before is None:
        return Comparison(better=True, worthwhile=True)
    distance, old_distance = _distance(best_of(after)), _distance(best_of(before))
    difference = best_of(after) - best_of(before)
    gain, error = np.mean(difference), np.std(difference) / np.sqrt(difference.size)
    better = distance < old_distance if old_distance < NEAR else gain > 0.0
    significant = gain > max(WORTHWHILE_GAIN, 2.0 * error) or distance < WORTHWHILE_SHARE * old_distance
    return Comparison(bool(better), bool(significant))


def has_arrived(weights: Float[np.ndarray, " s"], khat_allowed: float) -> bool:
    """Tell whether q is so near to the posterior that more steps change nothing visible."""
    distance = _distance(weights)
    return distance < NEGLIGIBLE or (distance < CLOSE_ENOUGH and psis(weights)[1] < khat_allowed)


def is_close(weights: Float[np.ndarray, " s"]) -> bool:
    """Tell whether only a little can be gained, with tails that importance weights can mend."""
    return _distance(weights) < A_LITTLE and psis(weights)[1] < COVERED_KHAT


def is_within(weights: Float[np.ndarray, " s"], tolerance: float) -> bool:
    """Tell whether q is within a tolerance, in nats, with tails that importance weights can mend."""
    # Two estimates: the first does not see tails that were cut off, the second is noisy.
    missing = log_evidence(weights)[0] - np.mean(weights)
    return max(_distance(weights), missing) < SAFETY * tolerance and psis(weights)[1] < COVERED_KHAT


def is_good(trainee: Trainee, weights: Float[np.ndarray, "r s"], target: Target, key: Key[Array, ""]) -> bool:
    """Tell whether the best restart would be called good, looking closer only where that is in doubt."""
    if psis(best_of(weights))[1] < DOUBTFUL_KHAT:
        return True
    best = pick(trainee.flow, best_index(weights))
    return judge(log_weights_of(best, target, key, num_diagnostic_draws(target.model))).verdict == "good"


def _distance(weights: Float[np.ndarray, " s"]) -> float:
    """Estimate KL(q || posterior) near the posterior: half the variance of the log weights, of tail draws clipped."""
    deviation = np.clip(weights - np.median(weights), -MAX_DEVIATION, MAX_DEVIATION)
    return 0.5 * float(np.mean(deviation**2))


def best_index(weights: Float[np.ndarray, "r s"]) -> int:
    """Return the restart with the highest ELBO."""
    return int(np.argmax(np.mean(weights, 1)))


def best_of(weights: Float[np.ndarray, "r s"]) -> Float[np.ndarray, " s"]:
    """Return the log weights of the restart with the highest ELBO."""
    return weights[best_index(weights)]
