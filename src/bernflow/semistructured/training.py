"""Train one network beside point estimates of the coefficients, by penalized likelihood on batches of rows."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from bernflow.compiled import filter_jit
from bernflow.fit.train.scan import scan
from bernflow.models.network import Network
from bernflow.semistructured.lastlayer import Kind
from bernflow.semistructured.likelihoods import log_prob

WARM_UP = 100
# One instance for all fits: compiled functions identify an optimizer by its object.
WEIGHTS_OPTIMIZER = optax.chain(optax.scale_by_adam(), optax.scale(-1.0))
# The coefficients belong to standardized columns, and start at their values without images.
COEFFICIENTS_OPTIMIZER, COEFFICIENTS_RATE = optax.chain(optax.scale_by_adam(), optax.scale(-1.0)), 5e-3


class Trainee(NamedTuple):
    """A network in training: weights, state, coefficients with extra parameters, and both optimizers."""

    weights: PyTree
    state: PyTree
    theta: Float[Array, " t"]
    weights_optimizer: PyTree
    theta_optimizer: PyTree


class Kept(NamedTuple):
    """The state that is kept of an epoch."""

    weights: PyTree
    state: PyTree
    theta: Float[Array, " t"]


@dataclasses.dataclass(frozen=True)
class Objective:
    """The loss: minus the mean log likelihood of a batch, plus the penalty of the prior per row.

    Attributes:
        apply: as in `Network`.
        kind: of the outcome.
        optimizer: of the weights.
        rate: its peak learning rate.
        num_rows: number of training rows.
    """

    apply: Callable
    kind: Kind
    optimizer: optax.GradientTransformation
    rate: float
    num_rows: int

    def begin(self, network: Network, theta: Array) -> Trainee:
        """Return a network at its start."""
        weights, state = jax.tree.map(jnp.asarray, (network.weights, network.state))
        return Trainee(weights, state, theta, self.optimizer.init(weights), COEFFICIENTS_OPTIMIZER.init(theta))

    def scores(self, out: Array, theta: Array, x: Array, y: Array) -> Float[Array, " n"]:
        """Evaluate the log likelihood of rows given the output of the network."""
        d, p = self.kind.num_predictors, x.shape[-1]
        eta = x @ theta[: p * d].reshape(p, d) + out.reshape(x.shape[0], d)
        return log_prob(self.kind.outcome, eta, theta[p * d :], y)


def rate_at(step: Any, planned: Any) -> Any:
    """Return the factor on the learning rates at each step: linear warm-up, then a cosine decay to zero."""
    return jnp.minimum(1.0, (step + 1) / jnp.minimum(WARM_UP, planned)) * 0.5 * (1.0 + jnp.cos(jnp.pi * step / planned))


def middle_epoch(epochs: int) -> int:
    """Return the midpoint of the training in learning rates: the epoch with half of their sum.

    Doubling the training would change about as much as its second half did. With a decaying rate
    the midpoint is at 27 % of the epochs.
    """
    done = np.cumsum(np.asarray(rate_at(np.arange(200 * epochs), 200 * epochs)).reshape(epochs, -1).sum(1))
    return int(np.searchsorted(done, 0.5 * done[-1])) + 1


def take_steps(
    objective: Objective,
    prior: tuple[Array, Array],
    trainee: Trainee,
    rows: dict[str, Array],
    indices: Int[Array, "c b"] | None,
    keys: Key[Array, " c"],
    rates: Float[Array, " c"],
) -> tuple[Trainee, Float[Array, " c"]]:
    """Take one step per batch, and also return the losses. It can be mapped by `jax.vmap`.

    Args:
        objective: the loss.
        prior: mean and precision of theta.
        trainee: current state of the training.
        rows: "x", "images" and "y" of all rows, or of the batches (c, b, ...) if `indices` is None.
        indices: rows of the batches.
        keys: for dropout and augmentation.
        rates: factors on the learning rates.
    """
    mean, precision = prior

    def step(trainee: Trainee, inputs: tuple) -> tuple[Trainee, Array]:
        chosen, key, rate = inputs
        batch = chosen if indices is None else {name: values[chosen] for name, values in rows.items()}

        def loss(trained: tuple) -> tuple[Array, PyTree]:
            weights, theta = trained
            out, state = objective.apply(weights, trainee.state, batch["images"], key, True)
            points = objective.scores(out.astype(theta.dtype), theta, batch["x"], batch["y"])
            penalty = 0.5 * jnp.sum(precision * (theta - mean) ** 2) / objective.num_rows
            return penalty - jnp.mean(points), state

        (value, state), (g_weights, g_theta) = jax.value_and_grad(loss, has_aux=True)((trainee.weights, trainee.theta))
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((g_weights, g_theta))]))
        updates, optimizer = objective.optimizer.update(g_weights, trainee.weights_optimizer, trainee.weights)
        moves, own = COEFFICIENTS_OPTIMIZER.update(g_theta, trainee.theta_optimizer, trainee.theta)
        size = rate * objective.rate
        weights = optax.apply_updates(trainee.weights, jax.tree.map(lambda u: size.astype(u.dtype) * u, updates))
        theta = trainee.theta + (rate * COEFFICIENTS_RATE).astype(trainee.theta.dtype) * moves
        moved = Trainee(weights, state, theta, optimizer, own)
        # A batch with a non-finite gradient is skipped.
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, trainee), value

    return scan(step, trainee, (rows if indices is None else indices, keys, rates))


# For one training. A study compiles a map of `take_steps` over many of them.
run_chunk = filter_jit(take_steps)


@filter_jit
def score_block(objective: Objective, trainee: Trainee, x: Array, images: Any, y: Array) -> Float[Array, " n"]:
    """Evaluate the log likelihood of held-out rows with the frozen network."""
    out, _ = objective.apply(trainee.weights, trainee.state, images, jax.random.key(0), False)
    return objective.scores(out.astype(trainee.theta.dtype), trainee.theta, x, y)
