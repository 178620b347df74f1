"""Estimates of how far flows are from the posterior, from the log weights of their draws."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

# Log weights above the mean count up to this many nats: a few tail draws must not decide.
MAX_EXCESS = 1.0


class Change(NamedTuple):
    """What a cycle changed, each with its Monte Carlo error; both sets of draws were made from the same noise.

    Attributes:
        gain: rise of the ELBO, which sees all that was gained.
        gain_error: its standard error.
        nearer: fall of the divergence, whose error is far smaller, but which does not see what both fits leave out.
        nearer_error: its standard error.
        before: the divergence before the cycle.
    """

    gain: float
    gain_error: float
    nearer: float
    nearer_error: float
    before: float

    @property
    def is_better(self) -> bool:
        """Whether the new flows are to be kept."""
        return self.gain > self.gain_error or (self.gain > -self.gain_error and self.nearer > 0.0)

    def exceeds(self, gain: float, nearer: float) -> bool:
        """Tell whether the ELBO rose, or the divergence fell, by more than this and by more than the error."""
        return self.gain > max(gain, self.gain_error) or self.nearer > max(nearer, self.nearer_error)


def change(before: Float[np.ndarray, "r s"], after: Float[np.ndarray, "r s"]) -> Change:
    """Compare the log weights of the best restart before and after a cycle."""
    old, new = best_of(before), best_of(after)
    divergence = distances(old)
    gain, nearer = _mean_and_error(new - old), _mean_and_error(divergence - distances(new))
    return Change(*gain, *nearer, float(np.mean(divergence)))


def _mean_and_error(values: Float[np.ndarray, " s"]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values) / np.sqrt(values.size))


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
