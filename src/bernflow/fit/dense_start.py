"""One dense block of locals: its moments at values of the globals, and the moments of the globals that follow."""

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri
from scipy.stats.qmc import Halton

from bernflow.fit.averages import Averaged, averaged_moments
from bernflow.fit.conditionals import conditional_moments
from bernflow.fit.interpolation import fit_interpolant
from bernflow.fit.marginal import GlobalGaussian, flattened
from bernflow.flows.dense import num_points
from bernflow.flows.structure import Structure
from bernflow.target import Target

# How much wider than the Gaussian of the globals the values are; of every so many, one is still farther out.
SPREAD, WIDEST, FAR_EVERY = 1.4, 2.2, 4
# At this share of the values a mode must be found.
MIN_SOUND = 0.5
# Draws from the interpolated marginal, how much wider than the Gaussian they are, and how many must be effective.
NUM_DRAWS, WIDER, MIN_EFFECTIVE = 4096, 1.2, 400


def averaged_design(
    target: Target, structure: Structure, gaussian: GlobalGaussian, random: np.random.Generator
) -> tuple[GlobalGaussian, Averaged] | None:
    """Return the Gaussian that has the moments of the globals, and moments of a dense block at values of the globals.

    These are spread evenly. None where a mode is found at too few of them.

    Args:
        target: the posterior.
        structure: its structure, with one block.
        gaussian: of the globals, from the curvature at their mode.
        random: of the values of the globals and of the noise in averages.
    """
    num = num_points(structure.num_leaders)
    far = np.arange(num) % FAR_EVERY == 0
    u = ndtri(Halton(structure.num_leaders, seed=random).random(num)) * np.where(far, WIDEST, SPREAD)[:, None]
    x = np.repeat(gaussian.x[None], num, 0)
    x[:, list(structure.leaders)] = gaussian.loc + u @ gaussian.tril.T
    moments = conditional_moments(target, structure, x, gaussian.locals)
    sound = np.isfinite(moments.log_density)
    if not sound.any():
        return None
    averaged = averaged_moments(target, structure, moments.at(sound), random)
    u, sound = u[sound], np.isfinite(averaged.moments.log_density)
    if np.sum(sound) < MIN_SOUND * num:
        return None
    averaged = averaged.at(sound)
    return _match_marginal(gaussian, u[sound], averaged.moments.log_density, random), averaged


def _match_marginal(
    gaussian: GlobalGaussian,
    u: Float[np.ndarray, "k c"],
    log_marginal: Float[np.ndarray, " k"],
    random: np.random.Generator,
) -> GlobalGaussian:
    """Return the Gaussian with the moments of the marginal that is interpolated between standardized globals u.

    The curvature at the mode of a skewed marginal, such as that of a scale, tells little of its mean and width.
    """
    # What the marginal adds to the Gaussian is smooth, and stays as it is beyond the values.
    excess = log_marginal + 0.5 * np.sum(u**2, 1)
    functions = fit_interpolant(u, (excess - np.median(excess))[:, None])
    v = WIDER * random.normal(size=(NUM_DRAWS, u.shape[1]))
    log_weights = (functions.features(v, np) @ functions.weights)[:, 0] - 0.5 * np.sum(v**2, 1)
    weights = flattened(log_weights + 0.5 * np.sum((v / WIDER) ** 2, 1), MIN_EFFECTIVE)
    if weights is None:
        return gaussian
    mean = weights @ v
    centered = np.sqrt(weights)[:, None] * (v - mean)
    tril = np.linalg.cholesky(centered.T @ centered)
    return gaussian._replace(loc=gaussian.loc + gaussian.tril @ mean, tril=gaussian.tril @ tril)
