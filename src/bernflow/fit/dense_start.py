"""One dense block of locals: its moments at values of the globals, and the moments of the globals that follow."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.special import ndtri
from scipy.stats.qmc import Halton

from bernflow.fit.averages import Averaged, averaged_moments
from bernflow.fit.conditionals import Moments, conditional_moments, join
from bernflow.fit.global_flow import draw_globals
from bernflow.fit.interpolation import fit_interpolant
from bernflow.fit.marginal import GlobalGaussian, flattened
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.dense import num_points
from bernflow.flows.structure import Structure
from bernflow.target import Target

# How much wider than the globals the values are; of every so many, one is farther out than most draws, by so much.
SPREAD, FAR_EVERY, BEYOND = 1.4, 4, (1.0, 3.0)
# At this share of the values a mode must be found.
MIN_SOUND = 0.5
# Draws from the interpolated marginal, how much wider than the Gaussian they are, and how many must be effective.
NUM_DRAWS, WIDER, MIN_EFFECTIVE = 4096, 1.2, 400


class DenseDesign(NamedTuple):
    """A dense block at values of the globals.

    Attributes:
        gaussian: has the moments of the globals.
        leaders: the flow of the globals.
        averaged: moments of the block.
    """

    gaussian: GlobalGaussian
    leaders: BernsteinFlow
    averaged: Averaged


def averaged_design(
    target: Target,
    structure: Structure,
    gaussian: GlobalGaussian,
    flow_of: Callable[[GlobalGaussian, Moments | None], BernsteinFlow],
    random: np.random.Generator,
) -> DenseDesign | None:
    """Return a flow of the globals, and moments of a dense block at values of the globals.

    Half of the values are spread evenly around the mode; the flow of the globals that follows from them places the
    other half. This returns None where a conditional mode is found at too few of them.

    Args:
        target: the posterior.
        structure: its structure, with one block.
        gaussian: of the globals, from the curvature at their mode.
        flow_of: returns the flow of the globals at a Gaussian, trained where the marginal is known.
        random: of the values of the globals and of the noise in averages.
    """
    num, own = num_points(structure.num_leaders), list(structure.leaders)
    sequence = Halton(structure.num_leaders, seed=random)
    found: list[Moments] = []
    leaders = flow_of(gaussian, None)
    for count in (num // 2, num - num // 2):
        z = SPREAD * ndtri(sequence.random(count))
        far = slice(0, count, FAR_EVERY)
        radius = np.linalg.norm(z[far], axis=1, keepdims=True)
        z[far] *= (np.sqrt(z.shape[1]) + random.uniform(*BEYOND, radius.shape)) / radius
        x = np.repeat(gaussian.x[None], count, 0)
        x[:, own] = draw_globals(leaders, z)[0]
        moments = conditional_moments(target, structure, x, gaussian.locals)
        found.append(moments.at(np.isfinite(moments.log_density)))
        if len(found[-1].x) < MIN_SOUND * count:
            return None
        together = join(found)
        gaussian = _match_marginal(gaussian, together.x[:, own], together.log_density, random)
        leaders = flow_of(gaussian, together)
    averaged = averaged_moments(target, structure, together, random)
    sound = np.isfinite(averaged.moments.log_density)
    return DenseDesign(gaussian, leaders, averaged.at(sound)) if np.sum(sound) >= MIN_SOUND * num else None


def _match_marginal(
    gaussian: GlobalGaussian,
    globals_: Float[np.ndarray, "k c"],
    log_marginal: Float[np.ndarray, " k"],
    random: np.random.Generator,
) -> GlobalGaussian:
    """Return the Gaussian with the moments of the marginal that is interpolated between values of the globals.

    The curvature at the mode of a skewed marginal, such as that of a scale, tells little of its mean and width.
    """
    u = solve_triangular(gaussian.tril, (globals_ - gaussian.loc).T, lower=True).T
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
