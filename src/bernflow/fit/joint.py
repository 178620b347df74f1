"""Train a flow and the weights of a network together, on batches of rows."""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from bernflow.compiled import filter_jit
from bernflow.fit.batches import Batches
from bernflow.fit.chunk import CHUNK, Trace
from bernflow.fit.deadline import PIECE, Deadline, Pace
from bernflow.fit.loop import WARM_UP
from bernflow.fit.steps import network_steps_at_once, scan
from bernflow.flows.base import AbstractFlow
from bernflow.keys import grid, nth
from bernflow.models.base import AbstractJointModel
from bernflow.objectives import antithetic_noise, joint_gradient
from bernflow.placement import over_particles, replicated
from bernflow.target import AbstractLayout


class JointTrainee(NamedTuple):
    """A flow and weights in training; weights and state are None where the model has no network."""

    flow: AbstractFlow
    weights: PyTree
    state: PyTree
    flow_optimizer: PyTree
    weights_optimizer: PyTree
    num_skipped: Int[Array, ""]


class JointMethod(NamedTuple):
    """How to train.

    Attributes:
        flow_optimizer: turns gradients in the flow into updates; `flow_rate` multiplies them.
        flow_rate: peak learning rate of the flow.
        weights_optimizer: the same for the weights of the network.
        weights_rate: peak learning rate of the weights.
        num_particles: draws of the posterior per step.
        use_score: leave out the score of q at its own parameters.
        constant_rate: no warm-up and no decay.
    """

    flow_optimizer: optax.GradientTransformation
    flow_rate: float
    weights_optimizer: optax.GradientTransformation
    weights_rate: float
    num_particles: int
    use_score: bool
    constant_rate: bool = False

    def rates(self, num: int) -> Float[np.ndarray, " num"]:
        """Return the factor on both learning rates: linear warm-up, then a cosine down to zero."""
        if self.constant_rate:
            return np.ones(num)
        step = np.arange(num)
        return np.minimum(1.0, (step + 1) / min(WARM_UP, num)) * 0.5 * (1.0 + np.cos(np.pi * step / num))


# Hears of every finished chunk: steps done, steps planned, and what the chunk saw.
Report = Callable[[int, int, Trace], None]
# Hears of every finished epoch with the weights and the state as they are; returns True to stop.
EpochEnd = Callable[[int, JointTrainee], bool]


class BatchDensity(eqx.Module):
    """The estimate of the log density on R^p from one batch, weights and key held fixed: what a start is found for."""

    layout: AbstractLayout
    model: AbstractJointModel
    weights: PyTree
    state: PyTree
    batch: PyTree

    @property
    def dim(self) -> int:
        """Number of unconstrained dimensions p."""
        return self.layout.dim

    def log_density(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the estimate at one point; NaN counts as -inf."""
        theta, log_jacobian = self.layout.constrain(x)
        value, _ = self.model.log_density_of_batch(theta, self.weights, self.state, self.batch, jax.random.key(0))
        value = value + log_jacobian
        return jnp.where(jnp.isnan(value), -jnp.inf, value)


class Anchor(NamedTuple):
    """The log density of all rows at one point near the mode, and its gradient there.

    Batches then estimate only how the density differs from its tangent at the anchor, which near the anchor varies
    little from batch to batch: the noise of the batches nearly vanishes (control variates as in SVRG).
    """

    x: Float[Array, " p"]
    value: Float[Array, ""]
    gradient: Float[Array, " p"]


@filter_jit
def _value_and_gradient(density: BatchDensity, x: Float[Array, " p"]) -> tuple[Array, Array]:
    return replicated(jax.value_and_grad(density.log_density)(x))


def find_anchor(density: BatchDensity, batches: Batches, x: Float[Array, " p"], block: int | None = None) -> Anchor:
    """Evaluate the log density of all rows, batch by batch, or block by block of other size.

    The estimate of a batch of B rows is log prior + N / B sum of its rows, so that the mean of all estimates, weighted
    by B, is the density of all rows.
    """
    value, gradient = jnp.zeros(()), jnp.zeros_like(x)
    for rows in batches.in_order(block):
        part = eqx.tree_at(lambda d: d.batch, density, jax.tree.map(lambda leaf: leaf[0], batches.take(rows[None])))
        v, g = _value_and_gradient(part, x)
        share = len(rows) / batches.num_rows
        value, gradient = value + share * v, gradient + share * g
    return Anchor(x, value, gradient)


def on_device(tree: PyTree) -> PyTree:
    """Move the NumPy arrays of a tree to the device once, instead of with every chunk."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)


def begin(flow: AbstractFlow, model: AbstractJointModel, method: JointMethod) -> JointTrainee:
    """Give a flow and the weights of a model fresh optimiser states."""
    weights, state = on_device(model.trained())
    return JointTrainee(
        flow,
        weights,
        state,
        method.flow_optimizer.init(eqx.filter(flow, eqx.is_inexact_array)),
        method.weights_optimizer.init(weights),
        jnp.zeros((), jnp.int32),
    )


@filter_jit
def run_chunk(
    fixed: tuple[AbstractJointModel, AbstractLayout, Anchor | None, PyTree, PyTree],
    trainee: JointTrainee,
    keys: Key[Array, " c"],
    rates: Float[Array, " c"],
    method: JointMethod,
) -> tuple[JointTrainee, Trace]:
    """Take one step per rate; a rate of zero fills up the chunk and changes nothing."""
    model, layout, anchor, rows, indices = fixed
    flow_arrays, flow_fixed = eqx.partition(trainee.flow, eqx.is_inexact_array)

    def step(carry, inputs):
        arrays, weights, state, flow_state, weights_state, skipped = carry
        key, rate, chosen = inputs
        batch = chosen if indices is None else jax.tree.map(lambda leaf: leaf[chosen], rows)
        noise_key, network_key = jax.random.split(key)
        flow = eqx.combine(arrays, flow_fixed)

        def density(x, weights):
            def one(x):
                theta, log_jacobian = layout.constrain(x)
                value, new_state = model.log_density_of_batch(theta, weights, state, batch, network_key)
                return value + log_jacobian, new_state

            log_p, new_state = jax.vmap(one)(x)
            if anchor is not None:
                value, slope = jax.value_and_grad(lambda x: one(x)[0])(anchor.x)
                log_p += anchor.value - value + (x - anchor.x) @ (anchor.gradient - slope)
            # The state does not depend on theta: every particle has the same.
            return log_p, jax.tree.map(lambda leaf: leaf[0], new_state)

        z = over_particles(antithetic_noise(flow, noise_key, method.num_particles))
        estimate = joint_gradient(flow, density, weights, z, method.use_score)
        flow_updates, flow_state_new = method.flow_optimizer.update(
            eqx.filter(estimate.flow, eqx.is_inexact_array), flow_state, arrays
        )
        updates, weights_state_new = method.weights_optimizer.update(estimate.weights, weights_state, weights)
        leaves = jax.tree.leaves((flow_updates, updates))
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
        moved = (
            optax.apply_updates(
                arrays, jax.tree.map(lambda u: (rate * method.flow_rate).astype(u.dtype) * u, flow_updates)
            ),
            optax.apply_updates(
                weights, jax.tree.map(lambda u: (rate * method.weights_rate).astype(u.dtype) * u, updates)
            ),
            estimate.extra,
            flow_state_new,
            weights_state_new,
        )
        counts = rate > 0.0
        kept = jax.tree.map(lambda new, old: jnp.where(finite & counts, new, old), moved, carry[:-1])
        usable = jnp.isfinite(estimate.log_weights)
        values = jnp.where(usable, estimate.log_weights, 0.0)
        elbo = jnp.sum(values) / jnp.maximum(jnp.sum(usable), 1)
        spread = jnp.sum(jnp.where(usable, (values - elbo) ** 2, 0.0)) / jnp.maximum(jnp.sum(usable), 1)
        return (*kept, skipped + (counts & ~finite)), (elbo, spread)

    carry = (flow_arrays, *trainee[1:])
    chosen = rows if indices is None else indices
    carry, trace = scan(step, carry, (keys, rates, chosen))
    return replicated((JointTrainee(eqx.combine(carry[0], flow_fixed), *carry[1:]), Trace(*trace)))


def train_jointly(
    trainee: JointTrainee,
    model: AbstractJointModel,
    layout: AbstractLayout,
    batches: Batches,
    key: Key[Array, ""],
    method: JointMethod,
    steps: int,
    report: Report,
    epoch_end: EpochEnd | None = None,
    anchor: Anchor | None = None,
    first_step: int = 0,
    keep: Callable[[int, JointTrainee], None] = lambda done, trainee: None,
    pace: Pace | None = None,
) -> tuple[JointTrainee, int]:
    """Train for a number of steps, or until `epoch_end` says that it is enough; `first_step` of them are done already.

    `keep` hears of the trainee after every chunk. Under the time limit of `pace` there may be fewer steps; the learning
    rate then decays with the time.

    Returns:
        The trained flow and weights, and the number of steps taken.
    """
    light = on_device(model.without_rows())
    has_network = trainee.weights is not None
    # Chunks end with the epochs where somebody listens to them.
    unit = batches.steps_per_epoch if epoch_end is not None else steps
    pace = pace or Pace(Deadline.start())
    at_once = network_steps_at_once() if has_network else PIECE if pace.is_limited else CHUNK
    lengths = _chunk_lengths(steps, unit, at_once)
    longest = max(lengths, default=0)
    lengths = _remaining(lengths, first_step)
    rates = method.rates(steps)
    done = first_step
    for (rows, indices), length in zip(batches.chunks(lengths, first_step), lengths, strict=True):
        if not pace.may_step():
            break
        pad = longest - length
        at = min(max(done, int(pace.progress() * steps)), steps - length)
        chunk_rates = jnp.asarray(np.pad(rates[at : at + length], (0, pad)))
        if indices is None:
            rows = (
                jax.tree.map(lambda leaf, pad=pad: jnp.concatenate([leaf, *[leaf[-1:]] * pad]), rows) if pad else rows
            )
        elif pad:
            indices = jnp.concatenate([indices, *[indices[-1:]] * pad])
        keys = grid(nth(key, done), (longest,))
        with pace.stepping():
            trainee, trace = run_chunk((light, layout, anchor, rows, indices), trainee, keys, chunk_rates, method)
            seen = Trace(*(np.asarray(leaf)[None, :length] for leaf in trace))
        done += length
        report(done, steps, seen)
        keep(done, trainee)
        at_end = done % batches.steps_per_epoch == 0 or done == steps
        if epoch_end is not None and at_end and epoch_end(math.ceil(done / batches.steps_per_epoch), trainee):
            break
    return trainee, done


def _remaining(lengths: list[int], first_step: int) -> list[int]:
    """Return the chunks after so many steps; the same chunks see the same noise as without an interruption."""
    while lengths and first_step > 0:
        first_step -= lengths[0]
        lengths = lengths[1:] if first_step >= 0 else [-first_step, *lengths[1:]]
    return lengths


def _chunk_lengths(steps: int, unit: int, longest: int) -> list[int]:
    """Cut steps into chunks of nearly equal length that end with every unit."""
    lengths = []
    for start in range(0, steps, unit):
        num = min(unit, steps - start)
        parts = math.ceil(num / longest)
        lengths += [num // parts + (i < num % parts) for i in range(parts)]
    return lengths
