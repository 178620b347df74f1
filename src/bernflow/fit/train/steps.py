"""Training steps: one step function for everything that is trained, compiled a chunk at a time."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from bernflow.background import Effort, background_jit, zeros_of
from bernflow.fit.deadline import Pace
from bernflow.fit.train.objective import AbstractObjective
from bernflow.fit.train.recipe import CHUNK, Recipe, StepConfig
from bernflow.fit.train.scan import scan
from bernflow.fit.train.state import Trace, TrainState, fresh_state, initial_state, num_stacked
from bernflow.flows.base import AbstractDistribution, AbstractFlow, trained
from bernflow.flows.mixture import Mixture
from bernflow.keys import as_key, grid, nth
from bernflow.objectives import (
    Estimate,
    Noise,
    antithetic_noise,
    mixture_gradient,
    path_gradient,
    pathwise_gradient,
    stratified_noise,
)
from bernflow.placement import over_particles, placed, replicated

# Most numbers of noise that are drawn at once, for all restarts together.
MAX_NOISE = 2**22
# Draws of every part of a mixture in one step, at least.
MIN_OF_PART = 8
# The keys of batches are derived beside those of the noise.
BATCH_KEY = 2**20


class Inputs(NamedTuple):
    """What every step of a chunk is given.

    Attributes:
        noise: (restarts, steps, particles, p).
        rates: learning rates; zero fills up a chunk.
        batch: what the objective is given, see `AbstractObjective`; None where all rows are used.
        keys: for the randomness of a batch; None where all rows are used.
        weights_rates: learning rates of the weights of a network; None without one.
    """

    noise: Noise
    rates: Float[Array | np.ndarray, " c"]
    batch: PyTree = None
    keys: Key[Array, " c"] | None = None
    weights_rates: Float[Array | np.ndarray, " c"] | None = None


class Chunk(NamedTuple):
    """Steps that a training asks for.

    Attributes:
        state: where they start.
        objective: what is trained.
        key: of the noise.
        rates: one learning rate per step; zeros at the end fill up the chunk.
        powers: divergence of every restart, see `path_gradient`.
        recipe: how to train.
        pace: ends the training before the time limit.
        batch: see `Inputs`.
        weights_rates: learning rates of the weights of a network; None without one.
    """

    state: TrainState
    objective: AbstractObjective
    key: Key[Array, ""]
    rates: Float[np.ndarray, " c"]
    powers: Float[np.ndarray, " r"]
    recipe: Recipe
    pace: Pace
    batch: PyTree = None
    weights_rates: Float[np.ndarray, " c"] | None = None


@background_jit(Effort.FULL, is_long=True)
def run_chunk(
    state: TrainState,
    objective: AbstractObjective,
    inputs: Inputs,
    powers: Float[Array, " r"],
    *,
    config: StepConfig,
) -> tuple[TrainState, Trace]:
    """Take one step per learning rate, all restarts at once; a rate of zero leaves everything as it is.

    A step whose update is not finite is skipped and counted. The noise is that of `draw_noise`.
    """
    # Integers, such as the permutations of a coupling flow, differ between restarts and are not trained.
    arrays, fixed = trained(state.flow)

    def one_restart(arrays, fixed, rest, noise, power):
        start, unravel = ravel_pytree(arrays)

        def step(carry, inputs):
            *current, skipped = carry
            vector, weights, network = current[:3]
            noise, rate, batch, key, weights_rate = inputs
            density = objective.density(weights, network, batch, key)
            estimate = _estimate(eqx.combine(unravel(vector), fixed), density, noise, power, config)
            moved, updates = _moved(current, estimate, (rate, weights_rate), config)
            finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(updates)]))
            counts = rate > 0.0  # a rate of zero fills up the chunk
            kept = jax.tree.map(lambda new, old: jnp.where(finite & counts, new, old), moved, current)
            return [*kept, skipped + (counts & ~finite)], (estimate.log_weights, estimate.log_shares)

        (vector, *rest), seen = scan(step, [start, *rest], (noise, *inputs[1:]))
        return (unravel(vector), *rest), _seen(*seen)

    (arrays, *rest), trace = _over_restarts(one_restart, arrays, fixed, state[1:], inputs.noise, powers)
    return replicated((TrainState(eqx.combine(arrays, fixed), *rest), trace))


def _estimate(flow, density, noise: Noise, power: Array, config: StepConfig) -> Estimate:
    """Estimate the gradient."""
    if isinstance(flow, Mixture):
        return mixture_gradient(flow, density, noise, power)
    noise = Noise(over_particles(noise.z), noise.log_ratio)
    if config.use_score:
        return path_gradient(flow, density, noise, power)
    return pathwise_gradient(flow, density, noise.z)


def _moved(current: list, estimate: Estimate, rates: tuple, config: StepConfig) -> tuple[list, PyTree]:
    """Return parameters and optimizer states after a step, and the updates that led there."""
    vector, weights, network, optimizer_state, weights_state = current
    rate, weights_rate = rates
    gradient, _ = ravel_pytree(trained(estimate.gradient)[0])
    update, optimizer_state = config.optimizer.update(gradient, optimizer_state, vector)
    updates, network = None, network if estimate.state is None else estimate.state
    if config.weights_optimizer is not None:
        updates, weights_state = config.weights_optimizer.update(estimate.by_weights, weights_state, weights)
        scaled = jax.tree.map(lambda u: weights_rate.astype(u.dtype) * u, updates)
        weights = optax.apply_updates(weights, scaled)
    return [vector + rate * update, weights, network, optimizer_state, weights_state], (update, updates)


def _seen(log_weights: Float[Array, "c s"], log_shares: Float[Array, "c s"]) -> Trace:
    """Return mean and variance of the log weights of every step, under q."""
    usable = jnp.isfinite(log_weights)
    share = jnp.where(usable, jnp.exp(log_shares), 0.0)
    share = share / jnp.maximum(jnp.sum(share, -1, keepdims=True), 1e-30)
    log_weights = jnp.where(usable, log_weights, 0.0)
    elbo = jnp.sum(share * log_weights, -1)
    return Trace(elbo, jnp.sum(share * (log_weights - elbo[:, None]) ** 2, -1))


def _over_restarts(function: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """Map a function over restarts; one alone is traced and compiled in less time without an axis of its own."""
    arrays, others = eqx.partition(args, eqx.is_array)
    if all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(arrays)):
        first = eqx.combine(jax.tree.map(lambda leaf: leaf[0], arrays), others)
        return jax.tree.map(lambda leaf: leaf[None], function(*first))
    return eqx.filter_vmap(function)(*args)


@background_jit(Effort.FULL, is_long=True)
def run_chunks(
    states: TrainState,
    objectives: AbstractObjective,
    inputs: Inputs,
    powers: Float[Array, "n r"],
    *,
    config: StepConfig,
) -> tuple[TrainState, Trace]:
    """Do as `run_chunk` for several trainings at once, each on data of its own; all leaves have an axis for them."""
    return eqx.filter_vmap(functools.partial(run_chunk, config=config))(states, objectives, inputs, powers)


@background_jit(Effort.LIGHT)
def draw_noise(
    flows: AbstractDistribution, keys: Key[Array, "r 2"], *, num_steps: int, num_particles: int, widened: bool
) -> Noise:
    """Draw the noise of several steps of every restart, (restarts, steps, particles, p).

    Beside the steps and not inside of them: there it would be compiled after what else they are, and with their effort.
    """

    def one_restart(flow: AbstractDistribution, keys: Key[Array, "2"]) -> Noise:
        if isinstance(flow, Mixture):
            num, each = len(flow.components), particles_of_part(flow, num_particles)
            return stratified_noise(flow.components[0], keys, each, (num_steps, num))  # type: ignore[arg-type]
        if widened:
            return stratified_noise(flow, keys, num_particles, (num_steps,))  # type: ignore[arg-type]
        z = antithetic_noise(flow, keys[0], num_particles, (num_steps,))  # type: ignore[arg-type]
        return Noise(z, jnp.zeros(z.shape[:-1]))

    return replicated(_over_restarts(one_restart, flows, keys))


def noise_of_chunk(
    flows: AbstractDistribution, key: Key[Array, ""], num_particles: int, widened: bool, num_steps: int = CHUNK
) -> Noise:
    """Draw the noise of a chunk of steps, or of as many of them as fit in memory."""
    keys = grid(key, (num_stacked(flows), 2))
    at_once = steps_at_once(flows, num_steps, num_particles)
    return draw_noise(flows, keys, num_steps=at_once, num_particles=num_particles, widened=widened)


def take_steps(chunk: Chunk) -> tuple[TrainState, Trace]:
    """Take the steps of a chunk, in as many calls of `run_chunk` as it takes for their noise to fit in memory.

    There are fewer steps where the time limit does not allow more.
    """
    recipe, state, traces = chunk.recipe, chunk.state, [_no_trace(chunk.state)]
    run = functools.partial(run_chunk.with_effort(recipe.effort), config=recipe.config)
    for inputs in inputs_of(chunk):
        if not _may_step(chunk, state, inputs):
            break
        with chunk.pace.stepping():
            state, trace = run(state, chunk.objective, inputs, chunk.powers)
            traces.append(Trace(*map(np.asarray, trace)))
    return state, _joined(traces)


def take_steps_together(chunks: Sequence[Chunk], size: int) -> list[tuple[TrainState, Trace]]:
    """Take the steps of several chunks of one shape in one call each; copies of the last fill up `size` places."""
    recipe, places = chunks[0].recipe, [*range(len(chunks)), *[len(chunks) - 1] * (size - len(chunks))]
    run = functools.partial(run_chunks.with_effort(recipe.effort), config=recipe.config)
    states, objectives, powers = (
        _stacked([each[i] for i in places])
        for each in ([c.state for c in chunks], [c.objective for c in chunks], [c.powers for c in chunks])
    )
    traces: list[list[Trace]] = [[_no_trace(chunk.state)] for chunk in chunks]
    for inputs in zip(*map(inputs_of, chunks), strict=True):
        states, trace = run(states, objectives, _stacked([inputs[i] for i in places]), powers)
        trace = jax.tree.map(np.asarray, trace)
        for i, seen in enumerate(traces):
            seen.append(Trace(*(leaf[i] for leaf in trace)))
    states = jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, states)
    return [(placed(_nth(states, i)), _joined(seen)) for i, seen in enumerate(traces)]


def _nth(stacked: PyTree, i: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[i] if isinstance(leaf, np.ndarray) else leaf, stacked)


def inputs_of(chunk: Chunk) -> Iterator[Inputs]:
    """Yield what each call of compiled steps is given."""
    recipe, flows, width = chunk.recipe, chunk.state.flow, len(chunk.rates)
    keys = None if chunk.batch is None else grid(nth(chunk.key, BATCH_KEY), (width,))
    more = chunk.batch, keys, chunk.weights_rates
    at_once = steps_at_once(flows, width, recipe.num_particles)
    num = _divisor(at_once, recipe.piece)
    for start in range(0, width, num):
        rates = chunk.rates[start : start + num]
        if not rates.any():
            return
        number, inner = divmod(start, at_once)
        if not inner:
            noise_key = nth(chunk.key, number) if number else chunk.key
            noise = noise_of_chunk(flows, noise_key, recipe.num_particles, recipe.widened, width)
        part = noise if num == at_once else _part(noise, inner, num=num, axis=1)
        yield Inputs(part, rates, *(more if num == width or keys is None else _part(more, start, num=num)))


def _may_step(chunk: Chunk, state: TrainState, inputs: Inputs) -> bool:
    """Tell whether the time allows another call, after its compilation."""
    pace, recipe = chunk.pace, chunk.recipe
    if not pace.is_limited:
        return True
    if not pace.has_stepped:
        # The host need not wait longer for a compilation than there is time.
        run = run_chunk.with_effort(recipe.effort)
        run.prepare(state, chunk.objective, inputs, chunk.powers, config=recipe.config)
        if not run.wait(pace.left_for_steps()):
            return False
    return pace.may_step()


@background_jit(Effort.LEAST)
def _part(tree: PyTree, start: Int[Array, ""], *, num: int, axis: int = 0) -> PyTree:
    """Return what belongs to some of the steps."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, num, axis=axis), tree)


def _no_trace(state: TrainState) -> Trace:
    return Trace(*np.zeros((2, len(state.num_skipped), 0)))


def _joined(traces: list[Trace]) -> Trace:
    return Trace(*(np.concatenate([np.asarray(leaf) for leaf in leaves], 1) for leaves in zip(*traces, strict=True)))


def _stacked(trees: list[PyTree]) -> PyTree:
    """Stack trees of one shape, on the host: JAX would compile something for every shape."""
    return jax.tree.map(
        lambda *leaves: np.stack(list(map(np.asarray, leaves))) if _is_array(leaves[0]) else leaves[0], *trees
    )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array)


def _divisor(num: int, most: int | None) -> int:
    """Return the largest divisor up to `most`."""
    return max(n for n in range(1, num + 1) if num % n == 0 and n <= (most or num))


def steps_at_once(flows: AbstractDistribution, num_steps: int, num_particles: int) -> int:
    """Return of how many steps the noise is drawn at once: as many as divide their number and as memory allows."""
    size = gradients_per_step(flows, num_particles) * flows.dim
    return max(n for n in range(1, num_steps + 1) if num_steps % n == 0 and (n == 1 or n * size <= MAX_NOISE))


def gradients_per_step(flows: AbstractDistribution, num_particles: int) -> int:
    """Count the gradients of the posterior that one step of stacked flows takes."""
    if isinstance(flows, Mixture):
        return num_stacked(flows) * len(flows.components) * particles_of_part(flows, num_particles)
    return num_stacked(flows) * num_particles


def particles_of_part(mixture: Mixture, num_particles: int) -> int:
    """Return the number of draws of every part of a mixture in one step: they share the particles of a flow."""
    return max(MIN_OF_PART, num_particles // len(mixture.components))


def prepare_chunk(flows: AbstractFlow, objective: AbstractObjective, recipe: Recipe) -> None:
    """Begin to compile `run_chunk` in the background, for flows of these shapes."""
    num, at_once = num_stacked(flows), steps_at_once(flows, CHUNK, recipe.num_particles)
    num_steps = _divisor(at_once, recipe.piece)
    shape = {"num_particles": recipe.num_particles, "widened": recipe.widened}
    keys = grid(as_key(0), (num, 2))
    draw_noise.prepare(flows, keys, num_steps=at_once, **shape)
    initial_state.prepare(flows, recipe.optimizer)
    noise = zeros_of(functools.partial(draw_noise, num_steps=num_steps, **shape), flows, keys)
    state = TrainState(flows, None, None, zeros_of(fresh_state, flows, recipe.optimizer), None, np.zeros(num, np.int32))
    run_chunk.with_effort(recipe.effort).prepare(
        state, objective, Inputs(noise, np.zeros(num_steps)), np.zeros(num), config=recipe.config
    )
