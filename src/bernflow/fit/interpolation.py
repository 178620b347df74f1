"""The conditional part of a structured flow with one dense block: moments interpolated between values of the globals.

In coordinates that are whitened at one value of the globals, mean and factor of the block are near zero and one, and
smooth. Their main components are interpolated by Gaussian kernels, whose widths are those that predict every point best
from all others.
"""

from collections.abc import Iterator

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

from bernflow.fit.averages import Averaged
from bernflow.fit.marginal import GlobalGaussian
from bernflow.flows.base import Fixed
from bernflow.flows.bernstein import inverse_increments
from bernflow.flows.dense import DenseConditional
from bernflow.flows.kernels import Interpolant
from bernflow.flows.noise import NOISES

# Widths of kernels that are tried, the same for all coordinates and then for each, and what is added to the diagonal.
WIDTHS, FACTORS, NUGGETS = (1.5, 2.5, 4.0, 6.5, 10.0), (0.6, 1.7), (1e-8, 1e-6, 1e-4)
# The functions go on for so much beyond the outermost points.
BEYOND = 0.25
# Squared errors of a point, in nats, above this count little more: what is far out must not decide.
LARGE_ERROR = 0.01


def interpolate(conditional: DenseConditional, gaussian: GlobalGaussian, averaged: Averaged) -> DenseConditional:
    """Return the conditional flow with the moments of a dense block.

    Args:
        conditional: the flow without them.
        gaussian: of the globals; the locals at its mean give the whitened coordinates.
        averaged: moments at several values of the globals, and the skewness of whitened coordinates.
    """
    structure, at = conditional.structure, averaged.moments
    u = scipy.linalg.solve_triangular(gaussian.tril, (at.x[:, list(structure.leaders)] - gaussian.loc).T, lower=True).T
    center, factor = gaussian.x[structure.order[structure.num_leaders :]], gaussian.locals.factor[0, 0]
    inverse = scipy.linalg.solve_triangular(factor, np.eye(len(center)), lower=True)
    whitened = inverse @ at.locals.factor[:, 0]
    diagonal = np.diagonal(whitened, axis1=-2, axis2=-1)
    parts = {
        "mean": (at.mode[:, 0] - center) @ inverse.T,
        "log_diagonal": np.log(diagonal),
        "columns": np.swapaxes(np.tril(whitened / diagonal[..., None], -1), -1, -2),
    }
    shapes = {name: part.shape[1:] for name, part in parts.items()}
    rows = np.concatenate([part.reshape(len(u), -1) for part in parts.values()], 1)
    num_functions, num_points = conditional.mean.value.shape[0], conditional.functions.value.points.shape[0]
    scores, components = _components(rows, num_functions)
    functions = fit_interpolant(u, scores)
    spare = np.zeros((num_points - len(u), functions.weights.shape[1]))
    functions = eqx.tree_at(
        lambda f: [f.points, f.weights],
        functions,
        [
            np.concatenate([functions.points, np.zeros((len(spare), u.shape[1]))]),
            np.concatenate([functions.weights[: len(u)], spare, functions.weights[len(u) :]]),
        ],
    )
    ends = np.cumsum([np.prod(shape) for shape in shapes.values()])[:-1]
    split = np.split(components, ends, 1)
    new = {name: part.reshape(-1, *shape) for part, (name, shape) in zip(split, shapes.items(), strict=True)}
    new |= {"center": center, "factor": factor, "inverse": inverse}
    fixed: dict[str, Fixed] = {name: Fixed(jnp.asarray(value)) for name, value in new.items()}
    fixed["functions"] = Fixed(Interpolant(*map(jnp.asarray, vars(functions).values())))
    conditional = eqx.tree_at(lambda c: [getattr(c, name) for name in fixed], conditional, list(fixed.values()))
    return _skewed(conditional, np.median(averaged.skew, 0))


def fit_interpolant(u: Float[np.ndarray, "k c"], values: Float[np.ndarray, "k r"]) -> Interpolant:
    """Interpolate functions between points, with the widths at which the others predict every point best."""
    reach = np.stack([u.min(0) - BEYOND, u.max(0) + BEYOND])
    best: tuple[np.ndarray, float] = (np.ones(u.shape[1]), NUGGETS[-1])
    error = np.inf
    for nugget in NUGGETS:
        for width in WIDTHS:
            trial = np.full(u.shape[1], width), nugget
            found = _left_out_error(u, values, *trial)
            if found < error:
                best, error = trial, found
    for factors in _neighbors(u.shape[1]):
        width = best[0] * factors
        found = _left_out_error(u, values, width, best[1])
        if found < error:
            best, error = (width, best[1]), found
    inverse = _inverse(u, *best)
    weights = inverse[:, : len(u)] @ values
    return Interpolant(u, best[0], reach, weights)


def _neighbors(num: int) -> Iterator[Float[np.ndarray, " c"]]:
    """Yield factors of single widths."""
    for i in range(num if num > 1 else 0):
        for factor in FACTORS:
            yield np.where(np.arange(num) == i, factor, 1.0)


def _inverse(u: np.ndarray, width: np.ndarray, nugget: float) -> Float[np.ndarray, "f f"]:
    """Return the inverse of the system of interpolation with a linear trend."""
    num = len(u)
    features = Interpolant(u, width, np.array([[-np.inf], [np.inf]]), np.zeros(0)).features(u, np)
    kernel, trend = features[:, :num], features[:, num:]
    corner = np.zeros((trend.shape[1],) * 2)
    return np.linalg.pinv(np.block([[kernel + nugget * np.eye(num), trend], [trend.T, corner]]), rcond=1e-15)


def _left_out_error(u: np.ndarray, values: np.ndarray, width: np.ndarray, nugget: float) -> float:
    """Return how badly every point is predicted from the others."""
    inverse = _inverse(u, width, nugget)[: len(u), : len(u)]
    errors = (inverse @ values) / np.diag(inverse)[:, None]
    return float(np.sum(np.log1p(np.sum(errors**2, 1) / LARGE_ERROR)))


def _components(rows: Float[np.ndarray, "k d"], most: int) -> tuple[Float[np.ndarray, "k r"], Float[np.ndarray, "r d"]]:
    """Return scores and components whose products are nearly the rows; the first is constant.

    Rows that are far from the others have less weight.
    """
    center = np.median(rows, 0)
    moved = rows - center
    sizes = np.linalg.norm(moved, axis=1)
    weights = 1.0 / np.maximum(sizes, np.median(sizes) + 1e-300)
    weighted = moved * weights[:, None]
    _, left = np.linalg.eigh(weighted @ weighted.T)
    num = min(most - 1, len(rows))
    components = left[:, ::-1][:, :num].T @ weighted
    norms = np.maximum(np.linalg.norm(components, axis=1, keepdims=True), 1e-300)
    components = np.where(norms > 1e-9 * norms[0], components / norms, 0.0)
    scores = np.concatenate([np.ones((len(rows), 1)), moved @ components.T], 1)
    spare = most - 1 - num
    components = np.concatenate([center[None], components, np.zeros((spare, rows.shape[1]))])
    return np.concatenate([scores, np.zeros((len(rows), spare))], 1), components


def _skewed(conditional: DenseConditional, skew: Float[np.ndarray, " n"]) -> DenseConditional:
    """Return the flow with shapes z + skew / 3 (z^2 - 1), which have twice that skewness and mean zero."""
    order = conditional.raw.shape[1]
    if conditional.noise != "normal" or order < 2:
        return conditional
    half_width = NOISES[conditional.noise].half_width
    place = np.arange(order + 1)
    # Bernstein coefficients of t and t^2, t = (z / c + 1) / 2.
    line, parabola = place / order, place * (place - 1) / (order * (order - 1))
    straight, square = 2.0 * half_width * line, 4.0 * half_width**2 * (parabola - line)
    raw = inverse_increments(np.diff(straight) + skew[:, None] / 3.0 * np.diff(square))
    new = [jnp.asarray(raw), jnp.asarray(-skew / 3.0)]
    return eqx.tree_at(lambda c: [c.raw, c.drift.shift], conditional, new)
