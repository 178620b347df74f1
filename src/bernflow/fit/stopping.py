"""When to stop: how a cycle changed the fit, and how far from the posterior it is."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Key
from scipy.special import logsumexp

from bernflow.diagnostics.importance import log_evidence, psis
from bernflow.diagnostics.verdict import judge
from bernflow.fit.chunk import Trainee
from bernflow.fit.evaluation import finite, log_weights_of, num_diagnostic_draws, pick, weigh_widened
from bernflow.fit.settings import default_tolerance
from bernflow.target import Target

# Below this many nats from the posterior, more steps change nothing that a user could see.
CLOSE_ENOUGH = 5e-4
# ... provided that the tails are met: clearly so before any covering, usably after it.
UNCOVERED_KHAT, COVERED_KHAT = 0.3, 0.7
# What is hard to see in any plot.
A_LITTLE = 2e-3
# So near that no tail can matter.
NEGLIGIBLE = 1e-5
# A distance estimated from few draws must be below this share of a tolerance: rare draws, which it does not see, add
# to it.
SAFETY = 0.8
# A fit that is farther from the posterior than so many default tolerances is seldom good: who allows more does not ask
# for that.
MAX_GOOD = 2.0
# A fit that is farther away than so many tolerances, and comes no nearer, will not meet it.
OUT_OF_REACH = 2.0
# A cycle was worthwhile if it gained more nats than this, and than this share of the distance.
WORTHWHILE_GAIN = 2e-4
WORTHWHILE_SHARE = 0.05
# To a tolerance, the next cycle takes as many steps as all before it: a smaller share does not lead there.
WORTHWHILE_SHARE_TO_TOLERANCE = 0.25
# ... and, to a tolerance, more than this share of it.
WORTHWHILE_SHARE_OF_TOLERANCE = 0.1
# Log weights above the mean count up to this many nats: a few tail draws must not decide.
MAX_EXCESS = 1.0


class Comparison(NamedTuple):
    """How a cycle changed the best restart.

    Attributes:
        better: keep the new flows.
        worthwhile: another cycle may gain something.
    """

    better: bool
    worthwhile: bool


def compare(
    before: Float[np.ndarray, "r s"] | None, after: Float[np.ndarray, "r s"], tolerance: float | None = None
) -> Comparison:
    """Compare log weights before and after a cycle; both were made from the same noise.

    The ELBO sees all that was gained. Distances are known with a far smaller Monte Carlo error, but they do not see
    what both leave out.
    """
    if before is None:
        return Comparison(better=True, worthwhile=True)
    old, new = best_of(before), best_of(after)
    gain, error = _mean_and_error(new - old)
    before_it = distances(old)
    nearer, nearer_error = _mean_and_error(before_it - distances(new))
    better = gain > error or (gain > -error and nearer > 0.0)
    visible = max(WORTHWHILE_GAIN, WORTHWHILE_SHARE_OF_TOLERANCE * (tolerance or 0.0))
    share = float(np.mean(before_it)) * (WORTHWHILE_SHARE if tolerance is None else WORTHWHILE_SHARE_TO_TOLERANCE)
    least_gain = visible if tolerance is None else max(visible, share)
    worthwhile = gain > max(least_gain, error) or nearer > max(visible, share, nearer_error)
    return Comparison(better=bool(better), worthwhile=bool(better and worthwhile))


def _mean_and_error(values: Float[np.ndarray, " s"]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values) / np.sqrt(values.size))


def has_arrived(weights: Float[np.ndarray, " s"], khat_allowed: float) -> bool:
    """Tell whether q is so near to the posterior that more steps change nothing visible."""
    nats = distance(weights)
    return nats < NEGLIGIBLE or (nats < CLOSE_ENOUGH and psis(weights)[1] < khat_allowed)


def is_close(weights: Float[np.ndarray, " s"]) -> bool:
    """Tell whether only a little can be gained, with tails that importance weights can mend."""
    return distance(weights) < A_LITTLE and psis(weights)[1] < COVERED_KHAT


def asks_for_good(tolerance: float | None, dim: int) -> bool:
    """Tell whether a fit to this tolerance has to be good."""
    return tolerance is not None and tolerance <= MAX_GOOD * default_tolerance(dim)


def is_within(weights: Float[np.ndarray, " s"], tolerance: float, dim: int) -> bool:
    """Tell whether q is within a tolerance, in nats, as far as these draws show it."""
    # Two estimates: the first does not see tails that were cut off, the second is noisy.
    missing = log_evidence(weights)[0] - np.mean(weights)
    if max(distance(weights), missing) >= SAFETY * tolerance:
        return False
    # Where "good" is asked for, more draws than these decide on the tails.
    return asks_for_good(tolerance, dim) or psis(weights)[1] < COVERED_KHAT


def is_out_of_reach(weights: Float[np.ndarray, " s"], tolerance: float) -> bool:
    """Tell whether a fit that gains nothing more is usable, though clearly farther away than the tolerance."""
    return distance(weights) > OUT_OF_REACH * tolerance and judge(weights).verdict != "poor"


def is_confirmed(
    trainee: Trainee,
    weights: Float[np.ndarray, "r s"],
    target: Target,
    key: Key[Array, ""],
    num_particles: int | None = None,
) -> bool:
    """Tell whether as many draws as for the verdict call the best restart good, and as near as few draws did.

    What is left in the neck of a funnel shows in few draws only, and most of it in those that count up to a limit.
    Trained with so many particles by the score, a flow must be as near by draws that visit the tails, without a limit.
    """
    closer = look_closer(trainee, weights, target, key)[0]
    if distance(closer) > CLOSE_ENOUGH or judge(closer).verdict != "good":
        return False
    if num_particles is None:
        return True
    widened, log_shares = weigh_widened(trainee, best_index(weights), target, key, closer.size, num_particles)
    return unlimited_distance(finite(widened), log_shares) < CLOSE_ENOUGH


def look_closer(
    trainee: Trainee,
    weights: Float[np.ndarray, "r s"],
    target: Target,
    key: Key[Array, ""],
    tolerance: float | None = None,
) -> Float[np.ndarray, "1 n"]:
    """Return log weights of as many draws as for the verdict, of the best restart alone."""
    best = pick(trainee.flow, best_index(weights))
    return finite(log_weights_of(best, target, key, num_diagnostic_draws(target.model, tolerance, target.dim)))[None]


def distance(weights: Float[np.ndarray, " s"]) -> float:
    """Estimate KL(q || posterior)."""
    return float(np.mean(distances(weights)))


def distances(weights: Float[np.ndarray, " s"]) -> Float[np.ndarray, " s"]:
    """Return what every draw adds to KL(q || posterior) = E_q[r - 1 - log r], r its weight over their mean.

    It is the mean of -log r, whose terms are of either sign; of these none is negative, and their Monte Carlo error is
    far smaller near the posterior. Draws where q has too much count in full. Of those where it has too little a single
    one could decide: they count up to a limit.
    """
    log_mean = logsumexp(weights) - np.log(weights.size)
    excess = np.minimum(weights - log_mean, MAX_EXCESS)
    return np.expm1(excess) - excess


def unlimited_distance(weights: Float[np.ndarray, " s"], log_shares: Float[np.ndarray, " s"]) -> float:
    """Estimate KL(q || posterior) by draws of which not all count as much, and none only up to a limit."""
    log_shares = log_shares - logsumexp(log_shares)
    excess = weights - logsumexp(weights + log_shares)
    return float(np.exp(log_shares) @ (np.expm1(excess) - excess))


def best_index(weights: Float[np.ndarray, "r s"]) -> int:
    """Return the restart with the highest ELBO."""
    return int(np.argmax(np.mean(weights, 1)))


def best_of(weights: Float[np.ndarray, "r s"]) -> Float[np.ndarray, " s"]:
    """Return the log weights of the restart with the highest ELBO."""
    return weights[best_index(weights)]
