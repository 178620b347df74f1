"""Skewed noise: polynomials and quadratic maps that start from third and fourth derivatives of a log density."""

from functools import lru_cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from bernflow.fit.variational import Skewness
from bernflow.flows.bernstein import increments, inverse_increments, log_binomials
from bernflow.flows.noise import NOISES
from bernflow.flows.structured import Conditional
from bernflow.placement import placed

# Derivatives are cut off here: beyond it the expansion of a log density is no density any more.
MAX_THIRD, MAX_FOURTH = 1.0, 1.0
# Where densities are evaluated, and where quantiles are matched.
GRID = np.linspace(-8.0, 8.0, 801)
MATCHED = np.linspace(-4.0, 4.0, 81)
# Degree of the polynomial that is fitted to them.
DEGREE = 5
# Increments of coefficients are at least this share of those at the start.
LEAST_SHARE = 0.05


def with_skewness(conditional: Conditional, skewness: Skewness) -> Conditional:
    """Return the flow of the locals with noise of this skewness."""
    flat, order = conditional.structure.flat, conditional.raw.shape[1]
    raw, shift = skewed_shapes(flat(skewness.third), flat(skewness.fourth), order, conditional.noise)
    conditional = eqx.tree_at(lambda c: (c.raw, c.drift.shift), conditional, placed((raw, shift)))
    if conditional.curved is None:
        return conditional
    terms = (0.5 * np.clip(part, -MAX_THIRD, MAX_THIRD) for part in (skewness.by_squares, skewness.by_products))
    return eqx.tree_at(lambda c: (c.curved.shift, c.curved.log_scale), conditional, placed(tuple(terms)))


def skewed_shapes(
    third: Float[np.ndarray, " n"], fourth: Float[np.ndarray, " n"], order: int, noise: str
) -> tuple[Float[np.ndarray, "n m"], Float[np.ndarray, " n"]]:
    """Return raw increments and shifts of polynomials that map standard noise to skewed noise.

    Its density is proportional to exp(-z^2 / 2 + third He3(z) / 6 + fourth He4(z) / 24), with Hermite's polynomials.
    """
    quantiles = _quantiles(np.clip(third, -MAX_THIRD, MAX_THIRD), np.clip(fourth, -MAX_FOURTH, MAX_FOURTH))
    start = NOISES[noise].start(order)
    solve, middle = _projection(order, noise)
    # What differs from the start is projected: the start itself stays exact.
    theta = start + (quantiles - MATCHED) @ solve.T
    increments = np.maximum(np.diff(theta, axis=1), LEAST_SHARE * np.diff(start))
    return inverse_increments(increments), theta @ middle


def displaced_shapes(
    raw: Float[np.ndarray, "n m"], second: Float[np.ndarray, " n"], third: Float[np.ndarray, " n"], noise: str
) -> tuple[Float[np.ndarray, "n m"], Float[np.ndarray, " n"]]:
    """Return raw increments and changes of the shift of polynomials at z + second He2(z) + third He3(z)."""
    order = raw.shape[1]
    solve, middle = _projection(order, noise)
    theta = np.concatenate([np.zeros((len(raw), 1)), np.cumsum(np.asarray(increments(jnp.asarray(raw))), 1)], 1)
    z = np.clip(MATCHED, -3.0, 3.0)
    moved = MATCHED + np.outer(second, z**2 - 1.0) + np.outer(third, z**3 - 3.0 * z)
    t = 0.5 + 0.5 * np.stack([np.broadcast_to(MATCHED, moved.shape), moved]) / NOISES[noise].half_width
    before, after = np.einsum("knqm,nm->knq", _basis(np.clip(t, 0.0, 1.0), order), theta)
    change = (after - before) @ solve.T
    least = LEAST_SHARE * np.diff(NOISES[noise].start(order))
    return inverse_increments(np.maximum(np.diff(theta + change, axis=1), least)), change @ middle


def _quantiles(third: Float[np.ndarray, " n"], fourth: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n q"]:
    """Return the quantiles of skewed noise at the levels of standard noise at `MATCHED`."""
    # Far out the expansion is cut off, so that the density decays.
    z = np.clip(GRID, -3.5, 3.5)
    he3, he4 = z**3 - 3.0 * z, z**4 - 6.0 * z**2 + 3.0
    log_density = -0.5 * GRID**2 + np.outer(third / 6.0, he3) + np.outer(fourth / 24.0, he4)
    density = np.exp(log_density - log_density.max(1, keepdims=True))
    below = np.cumsum(0.5 * (density[:, 1:] + density[:, :-1]), 1)
    below = np.concatenate([np.zeros_like(below[:, :1]), below], 1)
    levels = ndtr(MATCHED)
    return np.stack([np.interp(levels, row / row[-1], GRID) for row in below])


@lru_cache
def _projection(order: int, noise: str) -> tuple[Float[np.ndarray, "m q"], Float[np.ndarray, " m"]]:
    """Return the matrix that fits coefficients to values at `MATCHED`, and the basis in the middle.

    The fit is a polynomial of low degree, written as one of the order of the flow: a free fit would oscillate.
    """
    scaled = MATCHED / NOISES[noise].half_width
    weights = np.exp(-0.25 * MATCHED**2)[:, None]
    powers = scaled[:, None] ** np.arange(DEGREE + 1)
    fit = np.linalg.pinv(powers * weights) * weights.T
    nodes = np.cos(np.pi * (np.arange(order + 1) + 0.5) / (order + 1))
    elevate = np.linalg.solve(_basis(0.5 + 0.5 * nodes, order), nodes[:, None] ** np.arange(DEGREE + 1))
    return elevate @ fit, _basis(np.array([0.5]), order)[0]


def _basis(t: Float[np.ndarray, "*q"], order: int) -> Float[np.ndarray, "*q m"]:
    i = np.arange(order + 1)
    inside = np.clip(t, 1e-12, 1.0 - 1e-12)[..., None]
    return np.exp(log_binomials(order) + i * np.log(inside) + (order - i) * np.log1p(-inside))
