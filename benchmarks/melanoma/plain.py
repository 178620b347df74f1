"""The network alone, trained by cross-entropy: model M1, and what the Bayesian part is timed against."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from bernflow.compiled import filter_jit
from bernflow.fit.batches.rows import Batches
from bernflow.fit.train.scan import network_steps_at_once, scan
from bernflow.models.network import Network

# RMSprop as in the paper, with the constants of its implementation.
RMSPROP = optax.chain(optax.scale_by_rms(decay=0.9, eps=1e-7), optax.scale(-1.0))


class PlainTrainee(NamedTuple):
    """A network in training."""

    weights: PyTree
    state: PyTree
    optimizer: PyTree


@filter_jit
def run_chunk(
    network: Network,
    trainee: PlainTrainee,
    rows: PyTree,
    indices: Int[Array, "c b"],
    keys: Key[Array, " c"],
    rate: float,
) -> tuple[PlainTrainee, Float[Array, " c"]]:
    """Take one step per batch of indices; return the losses, too."""

    def step(trainee, inputs):
        chosen, key = inputs
        images, target = rows["images"][chosen], rows["y"][chosen]

        def loss(weights):
            logit, state = network.apply(weights, trainee.state, images, key, True)
            return jnp.mean(optax.sigmoid_binary_cross_entropy(logit, target)), state

        (value, state), gradient = jax.value_and_grad(loss, has_aux=True)(trainee.weights)
        updates, optimizer = RMSPROP.update(gradient, trainee.optimizer, trainee.weights)
        weights = optax.apply_updates(trainee.weights, jax.tree.map(lambda u: rate * u, updates))
        return PlainTrainee(weights, state, optimizer), value

    return scan(step, trainee, (indices, keys))


def steps_of_a_call() -> int:
    """Return how many steps one call of `run_chunk` takes: a compiled loop of them, or single steps on a CPU."""
    return network_steps_at_once()


def train_plain(
    network: Network,
    batches: Batches,
    epochs: int,
    key: Key[Array, ""],
    epoch_end: Callable[[int, PyTree, PyTree], None],
    rate: float = 1e-3,
) -> np.ndarray:
    """Train a network by cross-entropy at a constant rate; return the mean loss of every epoch.

    Args:
        network: where to start.
        batches: of "images" and "y".
        epochs: number of passes over the rows.
        key: for dropout and augmentation.
        epoch_end: hears of every epoch: its number, the weights and the state.
        rate: learning rate.
    """
    trainee = PlainTrainee(network.weights, network.state, RMSPROP.init(network.weights))
    parts = -(-batches.steps_per_epoch // steps_of_a_call())
    length = batches.steps_per_epoch // parts
    lengths = [length] * (parts * epochs)
    losses: list[np.ndarray] = []
    for number, (rows, indices) in enumerate(batches.chunks(lengths), start=1):
        keys = jax.random.split(jax.random.fold_in(key, number), length)
        trainee, loss = run_chunk(network, trainee, rows, indices, keys, rate)
        losses.append(np.asarray(loss))
        if number % parts == 0:
            epoch_end(number // parts, trainee.weights, trainee.state)
    return np.concatenate(losses).reshape(epochs, -1).mean(1)
