"""One dense block of locals: its moments at values of the globals, and the moments of the globals that follow."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.special import ndtri
from scipy.stats.qmc import Halton

from bernflow.diagnostics.importance import ess_fraction
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
# Shares of the values that are placed by the Gaussian of the globals, and by the flows that are trained one after the
# other on what is known by then.
SHARES = (0.5, 0.25, 0.25)
# A flow is replaced by the Gaussian below this share of the effective draws that the first Gaussian had: estimates from
# few values are noisy.
LEAST_SHARE = 0.5
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


class Placed(NamedTuple):
    """Moments of a block at values of the globals that a flow has placed, and how well the flow fits their marginal.

    Attributes:
        moments: where a conditional mode was found.
        ess: effective draws, as a fraction, when the values stand for draws of the flow.
    """

    moments: Moments
    ess: float


def averaged_design(
    target: Target,
    structure: Structure,
    gaussian: GlobalGaussian,
    flow_of: Callable[[GlobalGaussian, Moments | None], BernsteinFlow],
    random: np.random.Generator,
) -> DenseDesign | None:
    """Return a flow of the globals, and moments of a dense block at values of the globals.

    The first values are spread evenly around the mode. Flows of the globals that are trained on what is known place the
    others, which show whether a flow fits: a regression through few values can be wrong between and beyond them. A
    flow that fits clearly worse than the Gaussian it began with is replaced by the Gaussian. This returns None where a
    conditional mode is found at too few values.

    Args:
        target: the posterior.
        structure: its structure, with one block.
        gaussian: of the globals, from the curvature at their mode.
        flow_of: returns the flow of the globals at a Gaussian, trained where the marginal is known.
        random: of the values of the globals and of the noise in averages.
    """
    total, own = num_points(structure.num_leaders), list(structure.leaders)
    sequence = Halton(structure.num_leaders, seed=random)

    def place(leaders: BernsteinFlow, gaussian: GlobalGaussian, count: int) -> Placed | None:
        z = _spread_noise(sequence.random(count), random)
        x = np.repeat(gaussian.x[None], count, 0)
        x[:, own], minus_log_q = draw_globals(leaders, z)
        moments = conditional_moments(target, structure, x, gaussian.locals)
        sound = np.isfinite(moments.log_density)
        if np.sum(sound) < MIN_SOUND * count:
            return None
        return Placed(moments.at(sound), _ess_as_draws(np.where(sound, moments.log_density + minus_log_q, -np.inf), z))

    leaders = flow_of(gaussian, None)
    first = place(leaders, gaussian, round(SHARES[0] * total))
    if first is None:
        return None
    together = first.moments
    for share in SHARES[1:]:
        gaussian = _match_marginal(gaussian, together.x[:, own], together.log_density, random)
        leaders = flow_of(gaussian, together)
        more = place(leaders, gaussian, round(share * total))
        if more is None or more.ess < LEAST_SHARE * first.ess:
            leaders = flow_of(gaussian, None)
            more = place(leaders, gaussian, round(share * total))
        if more is not None:
            together = join([together, more.moments])
    averaged = averaged_moments(target, structure, together, random)
    sound = np.isfinite(averaged.moments.log_density)
    return DenseDesign(gaussian, leaders, averaged.at(sound)) if np.sum(sound) >= MIN_SOUND * total else None


def _spread_noise(uniform: Float[np.ndarray, "k c"], random: np.random.Generator) -> Float[np.ndarray, "k c"]:
    """Return noise that is wider than that of draws, some of it on shells farther out."""
    z = SPREAD * ndtri(uniform)
    far = slice(0, len(z), FAR_EVERY)
    radius = np.linalg.norm(z[far], axis=1, keepdims=True)
    z[far] *= (np.sqrt(z.shape[1]) + random.uniform(*BEYOND, radius.shape)) / radius
    return z


def _ess_as_draws(log_weights: Float[np.ndarray, " k"], z: Float[np.ndarray, "k c"]) -> float:
    """Return the effective fraction of draws, seen at noise that is wider than theirs; shells do not count."""
    wide = np.arange(len(z)) % FAR_EVERY != 0
    to_normal = -0.5 * (1.0 - SPREAD**-2) * np.sum(z[wide] ** 2, 1)
    together = log_weights[wide] + to_normal
    return float(ess_fraction(together) / ess_fraction(to_normal)) if np.isfinite(together).any() else 0.0


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
