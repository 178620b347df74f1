"""Training steps: one compiled chunk of them for all restarts at once."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from bernflow.background import BackgroundJit, Effort, zeros_of
from bernflow.flows.base import AbstractFlow
from bernflow.keys import as_key, grid
from bernflow.objectives import Estimate, Noise, antithetic_noise, path_gradient, pathwise_gradient, stratified_noise
from bernflow.placement import over_particles, replicated
from bernflow.target import Target

CHUNK = 250
# Most numbers of noise that are drawn at once, for all restarts together.
MAX_NOISE = 2**22


class Trainee(NamedTuple):
    """Flows in training; every leaf has a leading axis of restarts."""

    flow: AbstractFlow
    optimizer_state: PyTree
    num_skipped: Int[Array | np.ndarray, " r"]


class Trace(NamedTuple):
    """What the steps of one chunk saw: mean and variance of the log weights, (restarts, steps)."""

    elbo: Float[np.ndarray, "r c"]
    variance: Float[np.ndarray, "r c"]


def begin(flows: AbstractFlow, optimizer: optax.GradientTransformation) -> Trainee:
    """Give stacked flows a fresh optimiser state: that of one vector with all of a flow's parameters.

    A loop over few and long arrays runs and compiles far faster than one over many short ones.
    """
    return Trainee(flows, _initial_state(flows, optimizer), np.zeros(num_stacked(flows), np.int32))


def _fresh(flows: AbstractFlow, optimizer: optax.GradientTransformation) -> PyTree:
    return jax.vmap(lambda arrays: optimizer.init(ravel_pytree(arrays)[0]))(eqx.filter(flows, eqx.is_inexact_array))


_initial_state = BackgroundJit(_fresh, Effort.LEAST)


def num_stacked(flows: AbstractFlow) -> int:
    """Count the stacked flows."""
    return jax.tree.leaves(eqx.filter(flows, eqx.is_array))[0].shape[0]


@BackgroundJit
def run_chunk(
    trainee: Trainee,
    target: Target,
    keys: Key[Array, "r n 2"],
    rates: Float[Array, " c"],
    powers: Float[Array, " r"],
    *,
    optimizer: optax.GradientTransformation,
    num_particles: int,
    use_score: bool,
) -> tuple[Trainee, Trace]:
    """Take one step per learning rate, all restarts at once; a rate of zero leaves the flow as it is.

    A step whose update is not finite is skipped and counted. Keys have the `key_shape` of so many steps.
    """
    at_once = rates.shape[0] // keys.shape[1]
    # Integers, such as the permutations of a coupling flow, differ between restarts and are not trained.
    arrays, fixed = eqx.partition(trainee.flow, eqx.is_inexact_array)

    def one_restart(arrays, fixed, state, skipped, keys, power):
        start, unravel = ravel_pytree(arrays)

        def step(carry, inputs):
            vector, state, skipped = carry
            noise, rate = inputs
            flow = eqx.combine(unravel(vector), fixed)
            estimate, log_weights = _estimate(flow, target, noise, use_score, power)
            gradient, _ = ravel_pytree(eqx.filter(estimate.gradient, eqx.is_array))
            updates, new_state = optimizer.update(gradient, state, vector)
            finite = jnp.all(jnp.isfinite(updates))
            counts = rate > 0.0  # a rate of zero fills up the chunk
            vector, state = jax.tree.map(
                lambda new, old: jnp.where(finite & counts, new, old),
                (vector + rate * updates, new_state),
                (vector, state),
            )
            return (vector, state, skipped + (counts & ~finite)), log_weights

        def several_steps(carry, inputs):
            keys, rates = inputs
            flow = eqx.combine(unravel(carry[0]), fixed)
            return jax.lax.scan(step, carry, (_draw(flow, keys, num_particles, at_once, use_score), rates))

        inputs = (keys, rates.reshape(-1, at_once))
        (vector, state, skipped), trace = jax.lax.scan(several_steps, (start, state, skipped), inputs)
        return (unravel(vector), state, skipped), jax.tree.map(jnp.ravel, trace)

    (arrays, state, skipped), trace = _over_restarts(
        one_restart, arrays, fixed, trainee.optimizer_state, trainee.num_skipped, keys, powers
    )
    return replicated((Trainee(eqx.combine(arrays, fixed), state, skipped), Trace(*trace)))


def _over_restarts(function: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """Map a function over restarts; one alone is traced and compiled in less time without an axis of its own."""
    arrays, others = eqx.partition(args, eqx.is_array)
    if all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(arrays)):
        first = eqx.combine(jax.tree.map(lambda leaf: leaf[0], arrays), others)
        return jax.tree.map(lambda leaf: leaf[None], function(*first))
    return eqx.filter_vmap(function)(*args)


def key_shape(flow: AbstractFlow, num_restarts: int, num_steps: int, num_particles: int) -> tuple[int, int, int]:
    """Return the shape of the keys of `run_chunk`: noise is drawn for as many steps at once as memory allows."""
    size = num_restarts * num_particles * flow.dim
    at_once = max(n for n in range(1, num_steps + 1) if num_steps % n == 0 and (n == 1 or n * size <= MAX_NOISE))
    return num_restarts, num_steps // at_once, 2


def effort_for(tolerance: float | None) -> Effort:
    """Choose how hard to compile `run_chunk`: the few hundred steps to a tolerance take less time than compiling."""
    return Effort.FULL if tolerance is None else Effort.LIGHT


def prepare_chunk(
    flows: AbstractFlow,
    target: Target,
    *,
    optimizer: optax.GradientTransformation,
    num_particles: int,
    use_score: bool,
    tolerance: float | None = None,
) -> None:
    """Begin to compile `run_chunk` in the background, for flows of these shapes."""
    num = num_stacked(flows)
    _initial_state.prepare(flows, optimizer)
    run_chunk.with_effort(effort_for(tolerance)).prepare(
        Trainee(flows, zeros_of(_fresh, flows, optimizer), np.zeros(num, np.int32)),  # type: ignore[arg-type]
        target,
        grid(as_key(0), key_shape(flows, num, CHUNK, num_particles)),
        np.zeros(CHUNK),
        np.zeros(num),
        optimizer=optimizer,
        num_particles=num_particles,
        use_score=use_score,
    )


def _draw(flow, keys, num_particles: int, num_steps: int, use_score: bool) -> Noise:
    """Draw the noise of several steps."""
    if use_score:
        return stratified_noise(flow, keys, num_particles, (num_steps,))
    z = antithetic_noise(flow, keys[0], num_particles, (num_steps,))
    return Noise(z, jnp.zeros(z.shape[:-1]))


def _estimate(flow, target, noise: Noise, use_score: bool, power) -> tuple[Estimate, tuple[Array, Array]]:
    """Estimate the gradient, and the mean and variance of the log weights under q."""
    noise = Noise(over_particles(noise.z), noise.log_ratio)
    estimate = path_gradient(flow, target, noise, power) if use_score else pathwise_gradient(flow, target, noise.z)
    usable = jnp.isfinite(estimate.log_weights)
    share = jnp.where(usable, jnp.exp(noise.log_ratio), 0.0)
    share = share / jnp.maximum(jnp.sum(share), 1e-30)
    log_weights = jnp.where(usable, estimate.log_weights, 0.0)
    elbo = jnp.sum(share * log_weights)
    return estimate, (elbo, jnp.sum(share * (log_weights - elbo) ** 2))
