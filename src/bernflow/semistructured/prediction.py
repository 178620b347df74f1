"""Predictions averaged over posterior draws, in blocks of rows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.compiled import filter_jit
from bernflow.fit.train.state import TrainState
from bernflow.keys import portable
from bernflow.models.base import Theta
from bernflow.semistructured.outcomes import Likelihood
from bernflow.target import AbstractLayout

# Rows times draws times classes that are evaluated at once.
MAX_ELEMENTS = 2**22


class Inputs(NamedTuple):
    """What is known of some rows: matrix of the table, output of the network (orthogonalized where asked for)."""

    table: Float[np.ndarray, "n p"]
    h: np.ndarray


@filter_jit
def _means(likelihood: Likelihood, theta: Theta, table: Array, h: Array) -> Array:
    def one(theta: Theta) -> Array:
        return likelihood.mean(likelihood.distribution(theta, table, h))

    return jnp.mean(jax.vmap(one)(theta), 0)


@filter_jit
def _log_scores(likelihood: Likelihood, theta: Theta, table: Array, h: Array, y: Array) -> Array:
    log_p = jax.vmap(lambda theta: likelihood.distribution(theta, table, h).log_prob(y))(theta)
    return jax.nn.logsumexp(log_p, axis=0) - jnp.log(log_p.shape[0])


@filter_jit
def _draws(likelihood: Likelihood, theta: Theta, table: Array, h: Array, key: Key[Array, ""]) -> Array:
    # JAX draws Poisson counts with keys of its own default generator only.
    key = portable(key)
    keys = jax.random.split(key, jax.tree.leaves(theta)[0].shape[0])
    out = jax.vmap(lambda theta, key: likelihood.distribution(theta, table, h).sample(key))(theta, keys)
    return out.T


@filter_jit
def _sample(flow: Any, layout: AbstractLayout, key: Key[Array, ""], num: int) -> Theta:
    x, _ = flow.sample_and_log_prob(key, num)
    return jax.vmap(lambda x: layout.constrain(x)[0])(x)


def predict_mean(likelihood: Likelihood, theta: Theta, inputs: Inputs, num_classes: int) -> np.ndarray:
    """Average the mean, or the probabilities of the classes, over draws; (N,) or (N, K)."""
    return _by_rows(lambda _, *rows: _means(likelihood, theta, *rows), theta, inputs, num_classes)


def log_scores(likelihood: Likelihood, theta: Theta, inputs: Inputs, y: np.ndarray, num_classes: int) -> np.ndarray:
    """Evaluate the log of the average probability (density) of y over draws, (N,)."""
    return _by_rows(lambda _, *rows: _log_scores(likelihood, theta, *rows), theta, (*inputs, y), num_classes)


def predict_draws(
    likelihood: Likelihood, theta: Theta, inputs: Inputs, key: Key[Array, ""], num_classes: int
) -> np.ndarray:
    """Draw one outcome per row and draw of theta, (num, N)."""

    def block(start: int, *rows: Array) -> Array:
        return _draws(likelihood, theta, *rows, jax.random.fold_in(key, start))  # type: ignore[call-arg]

    return _by_rows(block, theta, inputs, num_classes).T


def score_of_trainee(
    trainee: TrainState,
    layout: AbstractLayout,
    likelihood: Likelihood,
    inputs: Inputs,
    y: np.ndarray,
    classes: int,
    num: int,
) -> float:
    """Evaluate the mean log score of rows during training, with draws of the flow as it is."""
    # Always the same noise: epochs are compared with each other.
    theta = _sample(trainee.flow, layout, jax.random.key(0), num)
    return float(np.mean(log_scores(likelihood, theta, inputs, y, classes)))


def _by_rows(function: Callable, theta: Theta, rows: tuple, num_classes: int) -> np.ndarray:
    """Apply a compiled function to blocks of rows of one shape; copies of the final row fill up the last."""
    num, num_draws = len(rows[0]), jax.tree.leaves(theta)[0].shape[0]
    block = min(num, max(1, MAX_ELEMENTS // (num_draws * num_classes)))
    outputs = []
    for start in range(0, num, block):
        chosen = np.minimum(np.arange(start, start + block), num - 1)
        part = function(start, *(jnp.asarray(leaf[chosen]) for leaf in rows))
        outputs.append(np.asarray(part)[: num - start])
    return np.concatenate(outputs)
