"""The posterior of coefficients and last layers together, with the last layers integrated out.

Every row i of fold k was left out when network k was trained. With the columns x of the table, and the columns z of
that network (its output, its predictions of the table, the features of its last layer),

    eta_i = x_i^T beta + z_i^T w_k,        w_k ~ Normal(0, diag(scales^2)),

is a regression on columns that are independent of y_i. The scale of the features maximizes the marginal likelihood.
Given theta = (beta, extra), w_k is integrated out by Laplace's method; with the conditional mode w_k(theta) linear in
theta, which is exact for "gaussian", the result is a posterior of theta alone, as cheap as that of a regression.
All functions here can be mapped over repeats by `jax.vmap`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bernflow.semistructured.likelihoods import information, log_prob

NUM_STEPS = 30
# Fractions of a Newton step to try.
STEP_SIZES = (1.0, 0.5, 0.25, 0.1, 0.02)
# Candidate prior scales of a feature, per square root of the number of features.
FEATURE_SCALES = (0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0)


class Rows(NamedTuple):
    """The rows of all folds; padded to one length with rows of weight zero."""

    x: Float[Array, "k n p"]
    z: Float[Array, "k n q"]
    y: Float[Array, "k n"]
    weight: Float[Array, "k n"]


class Kind(NamedTuple):
    """The kind of outcome: its name, number of classes, of predictors per row, of extra parameters."""

    outcome: str
    num_classes: int
    num_predictors: int
    num_extra: int


class Prior(NamedTuple):
    """A normal prior of theta, (p * d + e,), and the precision of w, (q,)."""

    mean: Float[Array, " t"]
    precision: Float[Array, " t"]
    layer: Float[Array, " q"]


class Gaussian(NamedTuple):
    """The joint mode, and the curvature there.

    Attributes:
        theta: coefficients (p * d) and extra parameters.
        w: the last layers (k, q * d).
        precision: of theta with w integrated out.
        slope: derivative of the conditional mode of w with respect to theta, (k, q * d, t).
        layer_precision: of w given theta, (k, q * d, q * d).
        shift: gradient of -1/2 log det(layer_precision) along the conditional mode: the contribution of the
            integral to the gradient at the joint mode.
        log_evidence: Laplace's approximation up to a constant.
    """

    theta: Float[Array, " t"]
    w: Float[Array, "k v"]
    precision: Float[Array, "t t"]
    slope: Float[Array, "k v t"]
    layer_precision: Float[Array, "k v v"]
    shift: Float[Array, " t"]
    log_evidence: Float[Array, ""]

    def marginal(self) -> tuple[Float[Array, " t"], Float[Array, "t t"]]:
        """Return mean and covariance of theta in the normal approximation."""
        covariance = jnp.linalg.inv(self.precision)
        return self.theta + covariance @ self.shift, covariance


def predictors(rows: Rows, kind: Kind, theta: Array, w: Array) -> Float[Array, "k n d"]:
    """Evaluate the linear predictors."""
    d, p = kind.num_predictors, rows.x.shape[-1]
    beta = theta[: p * d].reshape(p, d)
    return rows.x @ beta + rows.z @ w.reshape(w.shape[0], -1, d)


def log_joint(rows: Rows, kind: Kind, prior: Prior, theta: Array, w: Array) -> Float[Array, ""]:
    """Evaluate log likelihood + log prior up to a constant."""
    extra = theta[rows.x.shape[-1] * kind.num_predictors :]
    points = log_prob(kind.outcome, predictors(rows, kind, theta, w), extra, rows.y)
    layer = jnp.repeat(prior.layer, kind.num_predictors)
    penalty = jnp.sum(prior.precision * (theta - prior.mean) ** 2) + jnp.sum(layer * w**2)
    return jnp.sum(jnp.where(rows.weight > 0, points, 0.0)) - 0.5 * penalty


def _curvature(rows: Rows, kind: Kind, prior: Prior, theta: Array, w: Array) -> tuple[Array, Array, Array]:
    """Return the blocks theta-theta, theta-w and w-w of the expected negative Hessian."""
    d, p, q = kind.num_predictors, rows.x.shape[-1], rows.z.shape[-1]
    weight = information(kind.outcome, kind.num_classes, predictors(rows, kind, theta, w), theta[p * d :])
    weight = weight * rows.weight[..., None, None]
    eta, cross, extra = weight[..., :d, :d], weight[..., :d, d:], weight[..., d:, d:].sum((0, 1))

    def product(a: Array, b: Array) -> Array:
        blocks = [
            [jnp.swapaxes(a, 1, 2) @ (eta[..., i, j, None] * b) for j in range(d)] for i in range(d)
        ]  # each (k, a, b)
        out = jnp.stack([jnp.stack(row, -1) for row in blocks], -2)  # k a b i j
        return jnp.moveaxis(out, 3, 2).reshape(a.shape[0], a.shape[2] * d, b.shape[2] * d)

    top = product(rows.x, rows.x).sum(0)
    x_extra = jnp.einsum("knp,knie->pie", rows.x, cross).reshape(p * d, -1)
    tt = jnp.block([[top, x_extra], [x_extra.T, extra]]) + jnp.diag(prior.precision)
    z_extra = jnp.einsum("knq,knie->kqie", rows.z, cross).reshape(rows.z.shape[0], q * d, -1)
    tw = jnp.concatenate([product(rows.x, rows.z), jnp.swapaxes(z_extra, 1, 2)], 1)
    ww = product(rows.z, rows.z) + jnp.diag(jnp.repeat(prior.layer, d))
    return tt, tw, ww


def _schur(tt: Array, tw: Array, ww: Array) -> tuple[Array, Array, Array]:
    """Return w-w^-1 w-theta, the precision of theta, and the Cholesky factors of w-w."""
    factor = jnp.linalg.cholesky(ww)
    gain = jax.vmap(lambda f, b: jax.scipy.linalg.cho_solve((f, True), b))(factor, jnp.swapaxes(tw, 1, 2))
    return gain, tt - jnp.einsum("ktv,kvs->ts", tw, gain), factor


def solve(rows: Rows, kind: Kind, prior: Prior, theta: Array, w: Array | None = None) -> Gaussian:
    """Find the joint mode by Fisher scoring, and the curvature there.

    Args:
        rows: all folds.
        kind: of the outcome.
        prior: of coefficients and last layers.
        theta: starting point.
        w: starting point; zero if None.
    """
    size = rows.z.shape[-1] * kind.num_predictors
    w = jnp.zeros((rows.x.shape[0], size), rows.x.dtype) if w is None else w
    value = lambda theta, w: log_joint(rows, kind, prior, theta, w)  # noqa: E731

    def step(carry: tuple) -> tuple:
        theta, w, current, _, count = carry
        g, h = jax.grad(value, (0, 1))(theta, w)
        tt, tw, ww = _curvature(rows, kind, prior, theta, w)
        gain, precision, factor = _schur(tt, tw, ww)
        rest = jax.vmap(lambda f, b: jax.scipy.linalg.cho_solve((f, True), b))(factor, h)
        move = jnp.linalg.solve(precision, g - jnp.einsum("ktv,kv->t", tw, rest))
        layer = rest - gain @ move
        sizes = jnp.asarray(STEP_SIZES, rows.x.dtype)
        values = jax.vmap(lambda a: value(theta + a * move, w + a * layer))(sizes)
        best = jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
        better = values[best] > current
        a = jnp.where(better, sizes[best], 0.0)
        gained = jnp.where(better, values[best] - current, 0.0)
        return theta + a * move, w + a * layer, jnp.where(better, values[best], current), gained, count + 1

    tolerance = 1e-9 if rows.x.dtype == jnp.float64 else 1e-4
    start = (theta, w, value(theta, w), jnp.asarray(jnp.inf, rows.x.dtype), 0)
    theta, w, best, *_ = jax.lax.while_loop(lambda c: (c[3] > tolerance) & (c[4] < NUM_STEPS), step, start)
    tt, tw, ww = _curvature(rows, kind, prior, theta, w)
    gain, precision, factor = _schur(tt, tw, ww)
    slope = -gain

    def half_log_det(theta_: Array) -> Array:
        _, _, ww = _curvature(rows, kind, prior, theta_, w + slope @ (theta_ - theta))
        return jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(ww), axis1=1, axis2=2)))

    log_det = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2))) + 0.5 * jnp.linalg.slogdet(precision)[1]
    prior_det = 0.5 * kind.num_predictors * rows.x.shape[0] * jnp.sum(jnp.log(prior.layer))
    return Gaussian(theta, w, precision, slope, ww, -jax.grad(half_log_det)(theta), best + prior_det - log_det)


def solve_with_scale(
    rows: Rows, kind: Kind, prior: Prior, num_features: int, theta: Array
) -> tuple[Gaussian, Float[Array, ""]]:
    """Solve with the scale of the last `num_features` columns of z that has the highest marginal likelihood."""
    if not num_features:
        return solve(rows, kind, prior, theta), jnp.zeros(())
    scales = jnp.asarray(FEATURE_SCALES, rows.x.dtype) / num_features**0.5

    def at(scale: Array, theta: Array, w: Array | None) -> Gaussian:
        return solve(rows, kind, prior._replace(layer=prior.layer.at[-num_features:].set(scale**-2)), theta, w)

    def visit(carry: tuple, scale: Array) -> tuple:
        best, chosen, theta, w = carry
        found = at(scale, theta, w)
        better = found.log_evidence > best.log_evidence
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), found, best)
        return (best, jnp.where(better, scale, chosen), found.theta, found.w), None

    first = at(scales[0], theta, None)
    (best, chosen, *_), _ = jax.lax.scan(visit, (first, scales[0], first.theta, first.w), scales[1:])
    return best, chosen


def predict_columns(
    features: Float[Array, "n f"], columns: Float[Array, "n p"], weight: Float[Array, " n"]
) -> Float[Array, "f p"]:
    """Return weights (f, p) that predict the columns of the table from features: ridge, generalized cross-validation.

    With these predictions in the regression, the effect of a column is that of the part that the images do not show: an
    error of the network's output is then no longer confounded with the column.
    """
    n, share = jnp.sum(weight), weight[:, None]
    centered = (features - jnp.sum(share * features, 0) / n) * share
    target = (columns - jnp.sum(share * columns, 0) / n) * share
    values, vectors = jnp.linalg.eigh(centered.T @ centered)
    values = jnp.maximum(values, 0.0)
    rotated, projected = centered @ vectors, vectors.T @ (centered.T @ target)
    penalties = n * jnp.logspace(-5, 1, 9, dtype=features.dtype)

    def score(penalty: Array) -> Array:
        shrink = values / (values + penalty)
        rest = target - rotated @ (projected / (values + penalty)[:, None])
        return jnp.sum(rest**2, 0) / (1.0 - (jnp.sum(shrink) + 1.0) / n) ** 2

    chosen = penalties[jnp.argmin(jax.vmap(score)(penalties), 0)]
    return vectors @ (projected / (values[:, None] + chosen))
