"""How far the margins of draws are off, as their importance weights tell.

The ESS of joint weights falls with the number of parameters even if every one of them is right: with a KL divergence of
0.001 nats for each, it is 0.98 with ten parameters and 0.8 with a hundred. What users read off a posterior are margins,
and the weights of the same draws estimate their errors: that of E[f] is

    sum_s (w_s - 1/S) f(x_s),    with standard error sqrt(sum_s (w_s - 1/S)^2 f(x_s)^2),

for standardized parameters f = x (means), (x^2 - 1) / 2 (standard deviations), 1[x < c] (probabilities), x_i x_j
(correlations).
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.importance import psis

# Largest errors of a right fit: of a mean in standard deviations, of a standard deviation (relative), of a probability
# below a cut, and of a correlation.
MEAN, SD, PROBABILITY, CORRELATION = 0.05, 0.05, 0.02, 0.1
# Cuts, in standard deviations from the mean, below which probabilities are compared.
CUTS = (-1.6, -1.2, -0.6, 0.0, 0.6, 1.2, 1.6)
# An error is known if its standard error is below this share of the largest that is allowed.
RESOLUTION = 0.3
# Parameters whose correlations are looked at: of more, so many evenly spaced ones.
MAX_CORRELATED = 1000
# Parameters that are looked at together, for memory.
AT_ONCE = 256


class Margins(NamedTuple):
    """The largest errors of margins over all parameters.

    Attributes:
        mean: of a mean, in standard deviations.
        sd: of a standard deviation, relative.
        probability: of the probability below a cut.
        correlation: of a correlation of two parameters.
        noise: standard error of the error of a mean, the largest.
    """

    mean: float
    sd: float
    probability: float
    correlation: float
    noise: float

    @property
    def are_right(self) -> bool:
        """Whether no margin is visibly wrong, and all are known well enough to tell."""
        return (
            self.noise <= RESOLUTION * MEAN
            and self.moments_are_within(1.0)
            and self.probability <= PROBABILITY
            and self.correlation <= CORRELATION
        )

    def moments_are_within(self, share: float) -> bool:
        """Tell whether no mean and no standard deviation is off by more than this share of what is allowed."""
        return self.mean <= share * MEAN and self.sd <= share * SD


def margins(draws: Float[np.ndarray, "s p"], log_weights: Float[np.ndarray, " s"]) -> Margins:
    """Estimate the errors of the margins of draws.

    Args:
        draws: unconstrained parameters, or some of them.
        log_weights: log p - log q at the same draws.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(20_000, 2))
        >>> found = margins(x, 0.2 * x[:, 0])  # the posterior's first mean is 0.2
        >>> abs(found.mean - 0.2) < 0.02, found.are_right
        (True, False)
    """
    change = np.exp(psis(log_weights)[0])
    change = change / np.sum(change) - 1.0 / len(change)
    with np.errstate(over="ignore", invalid="ignore"):  # draws that overflow are wrong, see below
        parts = [_own(draws[:, i : i + AT_ONCE], change) for i in range(0, draws.shape[1], AT_ONCE)]
        mean, sd, probability, noise = map(max, zip(*parts, strict=True))
        return Margins(mean, sd, probability, _correlations(draws, change), noise)


def _own(x: Float[np.ndarray, "s k"], change: Float[np.ndarray, " s"]) -> tuple[float, float, float, float]:
    """Return the largest errors of means, standard deviations and probabilities, and the largest standard error."""
    z = _standardized(x)
    mean = change @ z
    sd = 0.5 * (change @ z**2)
    probability = [change @ (z <= cut) for cut in CUTS]
    noise = np.sqrt(change**2 @ z**2)
    return _largest(mean), _largest(sd), _largest(probability), _largest(noise)


def _correlations(draws: Float[np.ndarray, "s p"], change: Float[np.ndarray, " s"]) -> float:
    """Return the largest error of a correlation."""
    num = draws.shape[1]
    some = np.unique(np.linspace(0, num - 1, min(num, MAX_CORRELATED)).astype(int))
    z = _standardized(draws[:, some])
    off = z.T @ (change[:, None] * z)
    np.fill_diagonal(off, 0.0)
    return _largest(off)


def _largest(errors: Any) -> float:
    """Return the largest absolute value; infinity where one is not a number."""
    return float(np.nan_to_num(np.max(np.abs(errors)), nan=np.inf))


def _standardized(x: Float[np.ndarray, "s k"]) -> Float[np.ndarray, "s k"]:
    return (x - np.mean(x, 0)) / np.maximum(np.std(x, 0), np.finfo(float).tiny)
