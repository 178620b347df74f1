"""The log density of the globals as a sum of simple functions of them, to which a flow of the globals is trained.

A few hundred values of the marginal of the globals are known without noise, once the locals are integrated out there.
A sparse regression through them costs next to nothing to evaluate: a flow of the globals trained on it takes no
gradient of the model, and its compilation does not wait for anything that the model must be asked first.
"""

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Bool, Float, Int

# With more globals there are too few points for a regression.
MAX_GLOBALS = 12
# Functions of every global g, with v = (g - center) / unit: v, v^2, exp(a (g - center)), and log(1 + exp(2 (g - center)
# - 2 b unit)), which is how the log density of a scale goes from one power of the scale to another.
EXPONENTS, BENDS = (-2.0, -1.0, 1.0, 2.0), (-0.7, 0.0, 0.7)
NUM_FUNCTIONS = 2 + len(EXPONENTS) + len(BENDS)
V, V_SQUARED = 0, 1
# Exponentials may grow by so many nats among the points.
MAX_GROWTH = 25.0
# Factors of one term, most terms, and points for each of them. Beside quadratic terms, which are always there, products
# of up to so many v are tried, and products of two other functions up to so many globals.
MAX_FACTORS, MAX_TERMS, POINTS_PER_TERM, MAX_DEGREE, MAX_PAIRED = 4, 128, 2, 4, 6
# The sum of functions holds up to this quantile of the radii of its points.
REACH_QUANTILE = 0.95
# Beyond that the log density falls along every ray at least this fast, per standard deviation.
LEAST_SLOPE = 0.5
# Points count by the root of their density, and those with fewer nats than this below the highest, not at all.
FARTHEST, LEAST_WEIGHT = 60.0, 0.01
# Every so many points one is left out to see how well the others predict it, and the largest error in nats, weighted
# by the density.
HELD_EVERY, MAX_ERROR = 5, 0.3
# Regressions, each without one part of the points, and how much a value is lowered by what they differ.
NUM_PARTS, CAUTION = 4, 2.0
# Of all numbers of terms the smallest is taken whose error exceeds the least by no more than this factor.
SIMPLER = 1.1
# Terms that differ from those before them by less than this, in units of themselves, are left out.
MIN_NEW = 1e-5

Term = tuple[int, ...]


class Surrogate(eqx.Module):
    """A log density on R^c: a sum of products of functions of single globals, within a radius.

    With u = L^-1 (g - loc), it holds for |u| up to `reach`. Farther out it goes on linearly along the ray from the
    center, with the slope that it has there, so that its tails are exponential: those of a Gaussian would be too light
    for scales near zero.

    Attributes:
        loc: center of the globals.
        tril: triangular factor L of their covariance.
        inverse_tril: its inverse.
        factors: for every term, its factors as numbers in the table of all functions; 0 is the constant 1.
        coefficients: of the terms, found from one part of the points each.
        reach: radius in units of u.
    """

    loc: Float[Array | np.ndarray, " c"]
    tril: Float[Array | np.ndarray, "c c"]
    inverse_tril: Float[Array | np.ndarray, "c c"]
    factors: Int[Array | np.ndarray, "t 4"]
    coefficients: Float[Array | np.ndarray, "t m"]
    reach: Float[Array | np.ndarray, ""]

    @classmethod
    def empty(cls, loc: Float[np.ndarray, " c"], tril: Float[np.ndarray, "c c"]) -> "Surrogate":
        """Return a constant."""
        factors = np.zeros((MAX_TERMS, MAX_FACTORS), np.int32)
        return cls(loc, tril, np.linalg.inv(tril), factors, np.zeros((MAX_TERMS, NUM_PARTS)), np.ones(()))

    def table(self, g: Any, xp: Any = jnp) -> Any:
        """Evaluate the constant 1 and all functions of all globals, those of the first global first."""
        unit = xp.sqrt(xp.sum(self.tril**2, 1))
        moved = g - self.loc
        v = moved / unit
        powers = xp.exp(xp.clip(xp.asarray(EXPONENTS) * moved[..., None], -MAX_GROWTH, MAX_GROWTH))
        bends = xp.logaddexp(0.0, 2.0 * (moved[..., None] - xp.asarray(BENDS) * unit[:, None]))
        functions = xp.concatenate([xp.stack([v, v**2], -1), powers, bends], -1)
        flat = functions.reshape(*functions.shape[:-2], -1)
        return xp.concatenate([xp.ones_like(flat[..., :1]), flat], -1)

    def log_density(self, g: Float[Array, " c"]) -> Float[Array, ""]:
        """Evaluate the log density, up to a constant."""
        u = self.inverse_tril @ (g - self.loc)
        radius = jnp.sqrt(jnp.sum(u**2) + 1e-12)
        inside = jnp.minimum(radius, self.reach)
        step = 1e-3 * inside
        ends = (u / radius) * jnp.stack([inside, inside - step])[:, None]
        found = jnp.prod(self.table(self.loc + ends @ self.tril.T)[:, self.factors], -1) @ self.coefficients
        # Where the points say nothing, different parts of them say different things: there a value counts as small.
        value, before = jnp.mean(found, 1) - CAUTION * jnp.sqrt(jnp.var(found, 1) + 1e-6)
        slope = jax.lax.stop_gradient(jnp.minimum((value - before) / step, -LEAST_SLOPE))
        return value + (radius - inside) * slope


def fit_surrogate(
    loc: Float[np.ndarray, " c"],
    tril: Float[np.ndarray, "c c"],
    globals_: Float[np.ndarray, "k c"],
    log_density: Float[np.ndarray, " k"],
) -> Surrogate | None:
    """Fit a sum of functions to known values; None where it does not predict values that it has not seen.

    Args:
        loc: center of the globals.
        tril: triangular factor of their covariance.
        globals_: where the values are known.
        log_density: the values, up to a constant.
    """
    empty = Surrogate.empty(loc, tril)
    below = log_density - np.max(log_density)
    radius = np.linalg.norm((globals_ - loc) @ empty.inverse_tril.T, axis=1)
    reach = float(np.quantile(radius[below > -FARTHEST], REACH_QUANTILE))
    used = (below > -FARTHEST) & (radius <= reach)
    g, below = globals_[used], below[used]
    table, weights = np.asarray(empty.table(g, np)), np.maximum(np.exp(0.5 * below), LEAST_WEIGHT)
    fixed, more = _terms(empty, g)
    held = np.arange(len(g)) % HELD_EVERY == 0
    most = min(MAX_TERMS, int(np.sum(~held)) // POINTS_PER_TERM)
    if len(fixed) > most:
        return None
    columns = np.stack([np.prod(table[:, list(term)], 1) for term in (*fixed, *more)], 1) * weights[:, None]
    values = below * weights
    path = _pursue(columns[~held], values[~held], len(fixed), most)
    errors = _held_errors(columns[:, path], values, held)
    errors = np.sqrt(np.sum(errors**2, 1) / np.sum(weights[held] ** 2))
    num = len(fixed) + int(np.argmax(errors[len(fixed) - 1 :] < SIMPLER * np.min(errors[len(fixed) - 1 :])))
    if not errors[num - 1] < MAX_ERROR:
        return None
    path = path[:num]
    factors, coefficients = np.array(empty.factors), np.array(empty.coefficients)
    for row, index in enumerate(path):
        term = (*fixed, *more)[index]
        factors[row, : len(term)] = term
    scale = np.linalg.norm(columns[:, path], axis=0)
    for part in range(NUM_PARTS):
        kept = np.arange(len(g)) % NUM_PARTS != part
        found = np.linalg.lstsq(columns[kept][:, path] / scale, values[kept], rcond=1e-10)[0]
        coefficients[:num, part] = found / scale
    return Surrogate(loc, tril, empty.inverse_tril, factors, coefficients, np.asarray(reach))


def _terms(surrogate: Surrogate, g: Float[np.ndarray, "k c"]) -> tuple[list[Term], list[Term]]:
    """Return the terms that are always there, and others that are worth a try, as numbers in the table."""
    num = g.shape[1]
    reach = np.max(np.abs(g - surrogate.loc), 0)
    fixed = [tuple(_v(part) for part in term) for degree in range(3) for term in _monomials(num, degree)]
    more = [_factored(term) for degree in range(3, MAX_DEGREE + 1) for term in _monomials(num, degree)]
    if num > MAX_PAIRED:
        more = [_factored(term) for term in _monomials(num, 3)]
    usable = {
        j: [1 + j * NUM_FUNCTIONS + i for i in range(2, NUM_FUNCTIONS) if _growth(i) * reach[j] < MAX_GROWTH]
        for j in range(num)
    }
    for j, own in usable.items():
        for function in own:
            more.append((function,))
            more += [(function, _v(k) + squared) for k in range(num) if k != j for squared in (V, V_SQUARED)]
    if num <= MAX_PAIRED:
        more += [(a, b) for j, k in combinations(range(num), 2) for a in usable[j] for b in usable[k]]
    return fixed, more


def _growth(function: int) -> float:
    return abs(EXPONENTS[function - 2]) if function - 2 < len(EXPONENTS) else 0.0


def _v(number: int) -> int:
    return 1 + number * NUM_FUNCTIONS + V


def _monomials(num: int, degree: int) -> Iterator[tuple[int, ...]]:
    return combinations_with_replacement(range(num), degree)


def _factored(term: tuple[int, ...]) -> Term:
    return tuple(_v(part) for part in term)


def _pursue(columns: Float[np.ndarray, "k t"], values: Float[np.ndarray, " k"], num_fixed: int, most: int) -> list[int]:
    """Return columns in the order of what they explain of the values given those before; the first are fixed."""
    norms = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    columns = columns / norms
    chosen: list[int] = []
    left, open_ = np.array(values), np.ones(columns.shape[1], bool)
    while len(chosen) < most:
        size = np.linalg.norm(columns, axis=0)
        usable = open_ & (size > MIN_NEW)
        gains = np.where(usable, (columns.T @ left) ** 2 / np.maximum(size, MIN_NEW) ** 2, -1.0)
        if len(chosen) < num_fixed:
            best = len(chosen)
        else:
            best = int(np.argmax(gains))
            if gains[best] <= 0.0:
                break
        direction = columns[:, best] / max(size[best], 1e-300)
        columns = columns - np.outer(direction, direction @ columns)
        left = left - direction * (direction @ left)
        open_[best] = False
        chosen.append(best)
    return chosen


def _held_errors(
    columns: Float[np.ndarray, "k t"], values: Float[np.ndarray, " k"], held: Bool[np.ndarray, " k"]
) -> Float[np.ndarray, "t h"]:
    """Return the errors at points that are held out, by the number of columns that are taken."""
    basis, triangle = np.linalg.qr(columns[~held])
    diagonal = np.diag(triangle)
    np.fill_diagonal(triangle, np.where(np.abs(diagonal) < 1e-300, 1e-300, diagonal))
    # Of both, k columns need the first k: one pass shows the errors of all numbers of them.
    seen = scipy.linalg.solve_triangular(triangle, columns[held].T, trans=1)
    return values[held] - np.cumsum(seen * (basis.T @ values[~held])[:, None], 0)
