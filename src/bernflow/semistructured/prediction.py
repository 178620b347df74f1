"""Predictions averaged over draws of coefficients and last layers, in blocks of rows."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bernflow.compiled import filter_jit
from bernflow.keys import portable
from bernflow.semistructured.lastlayer import Kind
from bernflow.semistructured.likelihoods import distribution, log_prob

# Largest number of rows times draws times predictors that are evaluated at once.
MAX_ELEMENTS = 2**22


class Draws(NamedTuple):
    """Draws for one network: parameters of the standardized regression, and its last layer.

    Attributes:
        kind: of the outcome.
        theta: parameters (s, t).
        w: last layers (s, q * d).
        origin: of the linear predictor in the user's units.
        unit: of the linear predictor.
    """

    kind: Kind
    theta: Float[np.ndarray, "s t"]
    w: Float[np.ndarray, "s v"]
    origin: float
    unit: float


class Inputs(NamedTuple):
    """Inputs of some rows: standardized columns, and the columns of the network."""

    x: Float[np.ndarray, "n p"]
    z: Float[np.ndarray, "n q"]


def _predictors(draws: Draws, x: Array, z: Array) -> tuple[Array, Array]:
    """Return linear predictors (s, n, d) and extra parameters (s, e) in the user's units."""
    d, size = draws.kind.num_predictors, x.shape[1]
    beta = draws.theta[:, : size * d].reshape(-1, size, d)
    eta = x @ beta + z @ draws.w.reshape(len(draws.w), -1, d)
    extra = jnp.asarray(draws.theta[:, size * d :])
    if draws.kind.outcome == "gaussian":
        extra = extra + jnp.log(draws.unit)
    return draws.origin + draws.unit * eta, extra


@filter_jit
def _means(draws: Draws, x: Array, z: Array) -> Array:
    def one(eta: Array, extra: Array) -> Array:
        fn = distribution(draws.kind.outcome, eta, extra)
        return fn.probs if hasattr(fn, "probs") else fn.mean

    return jnp.mean(jax.vmap(one)(*_predictors(draws, x, z)), 0)


@filter_jit
def _scores(draws: Draws, x: Array, z: Array, y: Array) -> Array:
    values = jax.vmap(lambda eta, extra: log_prob(draws.kind.outcome, eta, extra, y))(*_predictors(draws, x, z))
    return jax.nn.logsumexp(values, axis=0) - jnp.log(values.shape[0])


@filter_jit
def _outcomes(draws: Draws, key: Array, x: Array, z: Array) -> Array:
    # JAX draws Poisson counts only with keys of its default generator.
    keys = jax.random.split(portable(key), len(draws.theta))
    sample = lambda eta, extra, key: distribution(draws.kind.outcome, eta, extra).sample(key)  # noqa: E731
    return jax.vmap(sample)(*_predictors(draws, x, z), keys).T


@filter_jit
def _linear(draws: Draws, x: Array, z: Array) -> Array:
    return jnp.moveaxis(_predictors(draws, x, z)[0], 0, 1)


@filter_jit
def _images(draws: Draws, x: Array, z: Array) -> Array:
    d = draws.kind.num_predictors
    return draws.unit * jnp.moveaxis(z @ draws.w.reshape(len(draws.w), -1, d), 0, 1)


def predict_mean(draws: Draws, inputs: Inputs) -> np.ndarray:
    """Average the mean, or the probabilities of the classes, over draws; (N,) or (N, K)."""
    return _by_rows(lambda _, *rows: _means(draws, *rows), draws, inputs)


def predict_scores(draws: Draws, inputs: Inputs, y: np.ndarray) -> np.ndarray:
    """Evaluate the log of the average probability (density) of y over draws, (N,)."""
    return _by_rows(lambda _, *rows: _scores(draws, *rows), draws, (*inputs, y))


def predict_draws(draws: Draws, inputs: Inputs, key: Array) -> np.ndarray:
    """Draw one outcome per row and draw, (s, N)."""
    return _by_rows(lambda start, *rows: _outcomes(draws, jax.random.fold_in(key, start), *rows), draws, inputs).T


def predict_linear(draws: Draws, inputs: Inputs, images_only: bool) -> np.ndarray:
    """Evaluate the linear predictor, or the part of it that comes from the images, (s, N) or (s, N, d)."""
    function = _images if images_only else _linear
    values = np.swapaxes(_by_rows(lambda _, *rows: function(draws, *rows), draws, inputs), 0, 1)
    return values[..., 0] if draws.kind.num_predictors == 1 else values


def _by_rows(function: Callable, draws: Draws, rows: tuple) -> np.ndarray:
    """Apply a compiled function to blocks of rows of one shape; copies of the final row pad the last block."""
    num = len(rows[0])
    size = len(draws.theta) * max(draws.kind.num_predictors, draws.kind.num_classes)
    block = min(num, max(1, MAX_ELEMENTS // size))
    outputs = []
    for start in range(0, num, block):
        chosen = np.minimum(np.arange(start, start + block), num - 1)
        part = function(start, *(jnp.asarray(leaf[chosen]) for leaf in rows))
        outputs.append(np.asarray(part)[: num - start])
    return np.concatenate(outputs)
