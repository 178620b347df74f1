"""A Gaussian start brought uphill its own ELBO, by Newton steps on averages over draws.

Curvature at a point says little where a density has kinks, as under Laplace priors, or where scales and what they
govern are found together. Averages over the draws of the Gaussian say what matters: with x = loc + F z and
r = F^T grad log p(x) + z, Stein's identity gives E[r] as the gradient of the ELBO, and E[r z^T] - I as its curvature.
Every round takes one gradient of the density at each of a few thousand draws, and nothing is compiled but that.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.diagnostics.importance import elbo
from bernflow.fit.conditionals import gradients
from bernflow.fit.deadline import Deadline
from bernflow.fit.score_regression import LEFT_FOR_ROUND, SHARE, cut_off, newton_step
from bernflow.fit.start import Gaussian
from bernflow.flows.base import LOG_2PI
from bernflow.keys import generator, nth
from bernflow.target import Target

# Draws of a round, and how many gradients are evaluated by one call.
NUM_DRAWS, BLOCK = 2000, 250
# The most rounds; after so many that gain less than this, in nats or in standard errors, they end.
MAX_ROUNDS, MAX_IN_VAIN, MIN_GAIN, MIN_GAIN_ERRORS = 80, 3, 0.05, 2.0
# The longest step, in standard deviations: at first, at most and at least; how it grows after a step uphill, and
# shrinks after one that led downhill. A precision changes by at most this factor.
FIRST, LONGEST, SHORTEST, GROWTH, SHRINKAGE, MAX_FACTOR = 1.0, 64.0, 0.25, 2.0, 0.25, 16.0


class Seen(NamedTuple):
    """A Gaussian, the noise of its draws, their residuals, and its ELBO with the standard error."""

    gaussian: Gaussian
    z: Float[np.ndarray, "s p"]
    r: Float[np.ndarray, "s p"]
    elbo: float
    error: float


def settle(target: Target, start: Gaussian, key: Key[Array, ""], deadline: Deadline) -> Gaussian:
    """Return a Gaussian with a higher ELBO, or the start.

    Args:
        target: the posterior.
        start: a Gaussian with a triangular factor, on the host.
        key: of the draws.
        deadline: ends the rounds early.
    """
    best = _look(target, start, nth(key, 0))
    length, in_vain = FIRST, 0
    for number in range(1, MAX_ROUNDS):
        if in_vain == MAX_IN_VAIN or not np.isfinite(best.elbo) or not deadline.has_left(LEFT_FOR_ROUND):
            break
        trial = _look(target, _stepped(best, length), nth(key, number))
        gain, noise = trial.elbo - best.elbo, MIN_GAIN_ERRORS * trial.error
        if gain > -noise:
            in_vain = 0 if gain > max(MIN_GAIN, noise) else in_vain + 1
            best, length = trial, min(GROWTH * length, LONGEST)
        elif length > SHORTEST:
            length = max(SHRINKAGE * length, SHORTEST)
        else:
            in_vain += 1
    return best.gaussian._replace(elbo=np.asarray(best.elbo)) if np.isfinite(best.elbo) else start


def _look(target: Target, gaussian: Gaussian, key: Key[Array, ""]) -> Seen:
    half = generator(key).standard_normal((NUM_DRAWS // 2, target.dim))
    z = np.concatenate([half, -half])
    value, gradient = gradients(target, gaussian.color(z), BLOCK)
    r = gradient @ gaussian.factor + z
    if not (np.isfinite(value).all() and np.isfinite(r).all()):
        return Seen(gaussian, z, r, -np.inf, 0.0)
    log_q = -0.5 * np.sum(z**2, 1) - 0.5 * target.dim * LOG_2PI - gaussian.log_det()
    return Seen(gaussian, z, cut_off(r), *elbo(value - log_q))


def _stepped(seen: Seen, length: float) -> Gaussian:
    mean, tril = newton_step(seen.z, seen.r, SHARE, longest=length, most=MAX_FACTOR)
    at = seen.gaussian
    return Gaussian(at.loc + at.factor @ mean, at.factor @ tril, at.elbo)
