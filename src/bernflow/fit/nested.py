"""Where many globals lie that have scales of their own: scales first, with all the others integrated out.

The joint density of effects and their scale grows without bound as the scale goes to zero, so that a climb over both
ends there. With the other globals integrated out by Laplace's method, as the locals are, scales have a mode near their
mass. They are few, and the marginal of every one of them is followed by parabolas.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize

from bernflow.fit.conditionals import Moments, conditional_moments, gradients
from bernflow.fit.marginal import FLOOR, SCALE_SHIFTS, GlobalGaussian, with_hessian
from bernflow.flows.structure import Structure
from bernflow.target import Target

# Most steps toward the mode of all but the scales.
MAX_CLIMB = 100
# Half-widths of the parabolas, and the longest move in units of them. With the first one, rounds go on as long as they
# gain so many nats, up to so many of them.
HALF_WIDTHS, LONGEST = (1.0, 0.5), 1.0
MIN_GAIN, MAX_ROUNDS = 0.5, 8
# The least curvature along a scale: flatter ones count as two standard units wide.
LEAST_CURVATURE = 0.25


class Given(NamedTuple):
    """What is known at some values of the scales.

    Attributes:
        value: their log marginal, up to a constant.
        at: the other globals at their mode, and the locals given them.
        covariance: of the other globals, those of the scales left out.
    """

    value: float
    at: Moments
    covariance: Float[np.ndarray, "o o"]


def find_nested(
    target: Target, structure: Structure, points: Float[np.ndarray, "k p"], scales: Sequence[int]
) -> GlobalGaussian:
    """Return a Gaussian of globals of which some are scales."""
    leaders = np.array(structure.leaders)
    is_scale = np.isin(leaders, scales)

    def given(x: Float[np.ndarray, " p"], moved: Float[np.ndarray, " s"] | float) -> Given:
        x = np.array(x)
        x[leaders[is_scale]] += moved
        return _given(target, structure, _climb(target, x, scales), ~is_scale)

    best = max((given(x, shift) for x in points[:1] for shift in SCALE_SHIFTS), key=lambda found: found.value)
    for _ in range(MAX_ROUNDS):
        before = best.value
        best = _along_scales(given, best, leaders, is_scale, HALF_WIDTHS[0]).best
        if best.value < before + MIN_GAIN:
            break
    best, curvature, slopes = _along_scales(given, best, leaders, is_scale, HALF_WIDTHS[1])
    covariance = np.zeros((len(leaders), len(leaders)))
    covariance[np.ix_(is_scale, is_scale)] = np.diag(1.0 / curvature)
    crossed = slopes / curvature[:, None]
    covariance[np.ix_(is_scale, ~is_scale)], covariance[np.ix_(~is_scale, is_scale)] = crossed, crossed.T
    covariance[np.ix_(~is_scale, ~is_scale)] = best.covariance + slopes.T @ crossed
    x = best.at.x[0]
    return GlobalGaussian(x[leaders], np.linalg.cholesky(covariance), x, best.at.locals)


class Along(NamedTuple):
    """Parabolas along every scale.

    Attributes:
        best: the highest point that was met.
        curvature: of the log marginal.
        slopes: changes of the modes of the other globals.
    """

    best: Given
    curvature: Float[np.ndarray, " s"]
    slopes: Float[np.ndarray, "s o"]


def _along_scales(
    given: Callable[[Float[np.ndarray, " p"], Float[np.ndarray, " s"]], Given],
    best: Given,
    leaders: Int[np.ndarray, " c"],
    is_scale: Bool[np.ndarray, " c"],
    half: float,
) -> Along:
    """Follow the marginal along one scale after the other, by parabolas of this half-width."""
    others = leaders[~is_scale]
    curvature, slopes = [], []
    for along in np.eye(int(is_scale.sum())):
        below, above = (given(best.at.x[0], move * along) for move in (-half, half))
        curvature.append(max((2.0 * best.value - below.value - above.value) / half**2, LEAST_CURVATURE))
        slopes.append((above.at.x[0, others] - below.at.x[0, others]) / (2.0 * half))
        move = np.clip((above.value - below.value) / (2.0 * half) / curvature[-1], -LONGEST * half, LONGEST * half)
        there = given(best.at.x[0], move * along)
        best = max((best, below, above, there), key=lambda found: found.value)
    return Along(best, np.array(curvature), np.stack(slopes))


def _given(target: Target, structure: Structure, x: Float[np.ndarray, " p"], others: np.ndarray) -> Given:
    """Integrate locals and other globals out around their mode, to which one Newton step leads from near by."""
    at = conditional_moments(target, structure, x[None])
    here, hessian = with_hessian(target, structure, at)
    values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.T)[np.ix_(others, others)])
    curvature = np.maximum(np.abs(values), FLOOR)
    covariance = (vectors / curvature) @ vectors.T
    moved = np.array(here.at.x[:1])
    moved[:, np.array(structure.leaders)[others]] += covariance @ here.gradient[0, others]
    there = conditional_moments(target, structure, moved, at.locals)
    if there.log_density[0] > at.log_density[0]:
        at = there
    value = float(np.nan_to_num(at.log_density[0], nan=-np.inf)) - 0.5 * float(np.sum(np.log(curvature)))
    return Given(value, at, covariance)


def _climb(target: Target, x: Float[np.ndarray, " p"], scales: Sequence[int]) -> Float[np.ndarray, " p"]:
    """Climb to the joint mode of all parameters but the scales, or near it: given scales it is useful."""
    free = np.setdiff1d(np.arange(target.dim), scales)

    def descend(values: np.ndarray) -> tuple[float, np.ndarray]:
        moved = np.array(x)
        moved[free] = values
        value, gradient = gradients(target, moved[None], block=1)
        sound = np.isfinite(value[0]) and np.isfinite(gradient[0, free]).all()
        return (-float(value[0]), -gradient[0, free]) if sound else (np.inf, np.zeros(len(free)))

    found = minimize(descend, x[free], jac=True, method="L-BFGS-B", options={"maxiter": MAX_CLIMB})
    climbed = np.array(x)
    climbed[free] = found.x
    return climbed
