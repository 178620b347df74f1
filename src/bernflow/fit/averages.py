"""From the mode and curvature of a dense block to the Gaussian that is nearest to it: averages of gradients.

Laplace's method looks at one point. The Gaussian N(m, F F^T) of highest ELBO has E[grad log p] = 0 and E[hess log p] =
-(F F^T)^-1. With the residual r(z) = F^T grad log p(m + F z) + z of standard normal noise, that is E[r] = 0 and
E[z_i r_i] = 0; E[(z_i^2 - 1) r_i] tells how skewed a coordinate is.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from bernflow.fit.arrow import Locals
from bernflow.fit.conditionals import Moments, gradients
from bernflow.flows.structure import Structure
from bernflow.target import Target

# Pairs of opposite noise, and rounds.
NUM_PAIRS, NUM_ROUNDS = 16, 2
# Changes of a mean, in standard deviations, and of a precision, in units of itself, are bounded: averages of few draws
# say nothing beyond.
MAX_SHIFT, MAX_CHANGE = 1.0, 0.5
# The largest skewness coefficient for which the map of noise is increasing with room to spare.
MAX_SKEW = 0.25


class Averaged(NamedTuple):
    """Moments after averaging, and half the skewness of every whitened coordinate at all points."""

    moments: Moments
    skew: Float[np.ndarray, "k n"]

    def at(self, which: Any) -> "Averaged":
        """Return some of the points."""
        return Averaged(self.moments.at(which), self.skew[which])


def averaged_moments(target: Target, structure: Structure, at: Moments, random: np.random.Generator) -> Averaged:
    """Return the moments of the nearest Gaussians with the same correlations, for one dense block."""
    local = structure.order[structure.num_leaders :]
    noise = stratified_noise(random, structure.num_locals)
    mean, factor = at.x[:, local], at.locals.factor[:, 0]
    skew = np.zeros_like(mean)
    sound = np.isfinite(at.log_density)
    for _ in range(NUM_ROUNDS):
        moved = np.repeat(at.x[:, None], len(noise), 1)
        moved[:, :, local] = mean[:, None] + noise @ np.swapaxes(factor, -1, -2)
        gradient = gradients(target, moved.reshape(-1, structure.dim))[1].reshape(moved.shape)[:, :, local]
        residual = gradient @ factor + noise
        usable = np.isfinite(residual).all((1, 2))
        sound &= usable
        residual = np.where(usable[:, None, None], residual, 0.0)
        shift = np.clip(residual.mean(1), -MAX_SHIFT, MAX_SHIFT)
        change = np.clip(np.mean(noise * residual, 1), -MAX_CHANGE, MAX_CHANGE)
        skew = 0.5 * np.mean((noise**2 - 1.0) * residual, 1)
        mean = mean + (factor @ shift[..., None])[..., 0]
        factor = factor / np.sqrt(1.0 - change)[:, None, :]
    x = np.array(at.x)
    x[:, local] = mean
    log_density = np.where(sound, at.log_density, np.nan)
    locals_ = Locals(factor[:, None], None)
    return Averaged(Moments(x, at.gradient, mean[:, None], locals_, log_density), np.clip(skew, -MAX_SKEW, MAX_SKEW))


def stratified_noise(random: np.random.Generator, num: int) -> Float[np.ndarray, "s n"]:
    """Draw pairs of opposite standard normal vectors, every coordinate of which has the right second moment.

    A coordinate takes the same values in an order of its own: averages of functions of one coordinate have no noise.
    """
    values = ndtri(0.5 + (np.arange(NUM_PAIRS) + 0.5) / (2.0 * NUM_PAIRS))
    values /= np.sqrt(np.mean(values**2))
    order = np.argsort(random.random((NUM_PAIRS, num)), 0)
    half = values[order] * random.choice([-1.0, 1.0], (NUM_PAIRS, num))
    return np.concatenate([half, -half])
