"""Cross-fitting: every row is evaluated only by networks that were not trained on it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bernflow.compiled import filter_jit
from bernflow.semistructured.features import Reduction, find_reduction
from bernflow.semistructured.lastlayer import (
    Gaussian,
    Kind,
    Prior,
    Rows,
    predict_columns,
    predictors,
    solve_with_scale,
)

# Prior sd of the coefficients of a network's scaled output and of its predictions of the columns.
OUTPUT_SCALE = 2.5


class Layers(NamedTuple):
    """The map from output and features of every network to columns, from all rows of its fold; leading axis: networks.

    Attributes:
        reduction: scales output and features.
        columns: weights (k, r, p) that predict the columns of the table from the scaled features.
    """

    reduction: Reduction
    columns: Float[Array, "k r p"]

    def __call__(self, out: Any, features: Any) -> Float[Array, "k n q"]:
        """Return the columns z of every network for n rows."""
        return jax.vmap(_columns_of)(self.reduction, self.columns, out, features)


def _columns_of(reduction: Reduction, weights: Array, out: Array, features: Array) -> Array:
    first, rest = reduction(out, features)
    return jnp.concatenate([first, rest @ weights, rest], 1)


def find_layers(x: Array, out: Array, features: Array, weight: Array) -> Layers:
    """Find the columns of every network: its output, its predictions of the table, and the features of its last layer.

    Args:
        x: columns of the table without the constant (k, n, p), by fold.
        out: output (k, n, d) of the network that has not seen the fold.
        features: features (k, n, f) of its last layer.
        weight: one, or zero for padding (k, n).
    """

    def one(x: Array, out: Array, features: Array, weight: Array) -> Layers:
        reduction = find_reduction(out, features, weight)
        _, rest = reduction(out, features)
        weights = predict_columns(rest, x, weight)
        said, share = rest @ weights, (weight / jnp.sum(weight))[:, None]
        spread = jnp.sqrt(jnp.sum(share * (said - jnp.sum(share * said, 0)) ** 2, 0))
        # Unit variance, as for all other columns; columns that cannot be predicted at all are omitted.
        return Layers(reduction, jnp.where(spread > 1e-6, weights / jnp.maximum(spread, 1e-6), 0.0))

    return jax.vmap(one)(x, out, features, weight)


def layer_precision(num_weak: int, num_features: int, dtype: Any) -> Float[Array, " q"]:
    """Return the prior precision of the columns of a network; that of the features is estimated later."""
    return jnp.concatenate([jnp.full(num_weak, OUTPUT_SCALE**-2, dtype), jnp.ones(num_features, dtype)])


def solve_folds(
    x: Array,
    constant: bool,
    out: Array,
    features: Array,
    y: Array,
    weight: Array,
    kind: Kind,
    prior: tuple[Array, Array],
    theta: Array,
) -> tuple[Gaussian, Layers, Prior, Rows]:
    """Find the posterior of coefficients and last layers from all folds; it can be mapped by `jax.vmap`.

    Args:
        x: standardized columns of the table (k, n, p), the constant last if there is one.
        constant: whether there is one.
        out: as in `find_layers`.
        features: as in `find_layers`.
        y: outcomes (k, n).
        weight: as in `find_layers`.
        kind: of the outcome.
        prior: mean and precision of theta.
        theta: starting point.
    """
    columns = x[..., :-1] if constant else x
    layers = find_layers(columns, out, features, weight)
    rows = Rows(x, layers(out, features), y, weight)
    num_features = layers.columns.shape[1]
    weak = rows.z.shape[-1] - num_features
    start = Prior(*prior, layer_precision(weak, num_features, x.dtype))
    found, scale = solve_with_scale(rows, kind, start, num_features, theta)
    if num_features:
        start = start._replace(layer=start.layer.at[-num_features:].set(scale**-2))
    return found, layers, start, rows


# Also accepts NumPy arrays.
def agreement(own: Any, other: Any, weight: Any) -> Float[Array, ""]:
    """Return the correlation of networks trained on different rows, without the effect of overfitting.

    Args:
        own: output (k, n) of every network on the rows of its fold, which it has not seen.
        other: output of the next network on the same rows, which it may have been trained on: its errors are
            still independent of those of the first, so the covariance is that of the signal.
        weight: one, or zero for padding.
    """
    share = weight / jnp.sum(weight, 1, keepdims=True)
    a, b = (values - jnp.sum(share * values, 1, keepdims=True) for values in (own, other))
    sd = jnp.sqrt(jnp.sum(share * a**2, 1))
    covariance = jnp.sum(share * a * b, 1)
    return jnp.sum(covariance) / jnp.maximum(jnp.sum(sd * jnp.roll(sd, -1)), 1e-12)


def dispersion(rows: Rows, kind: Kind, found: Gaussian) -> tuple[Array, Array]:
    """Return the mean squared Pearson residual of counts and its standard error; 1 and 0 for other outcomes."""
    if kind.outcome != "poisson":
        return jnp.ones(()), jnp.zeros(())
    mean = jnp.exp(predictors(rows, kind, found.theta, found.w)[..., 0])
    total = jnp.sum(rows.weight)
    squares = rows.weight * (rows.y - mean) ** 2 / mean
    value = jnp.sum(squares) / total
    return value, jnp.sqrt(jnp.sum(rows.weight * (squares - value) ** 2)) / total


def image_variance(rows: Rows, kind: Kind, found: Gaussian) -> Float[Array, ""]:
    """Return the variance of the contribution of the images to the (first) linear predictor."""
    d = kind.num_predictors
    part = jnp.einsum("knq,kq->kn", rows.z, found.w.reshape(found.w.shape[0], -1, d)[..., 0])
    share = rows.weight / jnp.sum(rows.weight)
    return jnp.sum(share * (part - jnp.sum(share * part)) ** 2)


solve_folds_compiled: Any = filter_jit(solve_folds)


def split_rows(num: int, num_folds: int, seed: Any, groups: np.ndarray | None = None) -> Int[np.ndarray, " n"]:
    """Return the fold of every row; rows of one group share a fold."""
    rng = np.random.default_rng(seed)
    if groups is None:
        return (rng.permutation(num) % num_folds).astype(np.int32)
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    sizes, fold = np.zeros(num_folds, int), np.zeros(len(counts), np.int32)
    for number in sorted(rng.permutation(len(counts)), key=lambda i: -counts[i]):
        fold[number] = int(np.argmin(sizes))
        sizes[fold[number]] += counts[number]
    return fold[group.reshape(-1)]


def stack_folds(fold: Int[np.ndarray, " n"], num_folds: int) -> tuple[Int[np.ndarray, "k m"], Float[np.ndarray, "k m"]]:
    """Return the rows of every fold, padded to one length, and weights of one or zero."""
    members = [np.flatnonzero(fold == k) for k in range(num_folds)]
    longest = max(map(len, members))
    rows = np.stack([np.resize(own, longest) for own in members])
    return rows, np.stack([(np.arange(longest) < len(own)).astype(float) for own in members])
