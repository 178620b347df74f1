"""Training steps: one compiled chunk of them for all restarts at once."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from bernflow.background import BackgroundJit, Effort, background_jit, zeros_of
from bernflow.fit.deadline import Pace
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
from bernflow.placement import over_particles, replicated
from bernflow.target import Density

CHUNK = 250
# Most numbers of noise that are drawn at once, for all restarts together.
MAX_NOISE = 2**22
# Draws of every part of a mixture in one step, at least.
MIN_OF_PART = 8


class Trainee(NamedTuple):
    """Flows in training, or one mixture of flows; every leaf has a leading axis of restarts."""

    flow: AbstractDistribution
    optimizer_state: PyTree
    num_skipped: Int[Array | np.ndarray, " r"]


class Trace(NamedTuple):
    """What the steps of one chunk saw: mean and variance of the log weights, (restarts, steps)."""

    elbo: Float[Array | np.ndarray, "r c"]
    variance: Float[Array | np.ndarray, "r c"]


def begin(flows: AbstractDistribution, optimizer: optax.GradientTransformation) -> Trainee:
    """Give stacked flows a fresh optimiser state: that of one vector with all of a flow's parameters.

    A loop over few and long arrays runs and compiles far faster than one over many short ones.
    """
    return Trainee(flows, _initial_state(flows, optimizer), np.zeros(num_stacked(flows), np.int32))


def _fresh(flows: AbstractDistribution, optimizer: optax.GradientTransformation) -> PyTree:
    return jax.vmap(lambda arrays: optimizer.init(ravel_pytree(arrays)[0]))(trained(flows)[0])


_initial_state = BackgroundJit(_fresh, Effort.LEAST)


def num_stacked(flows: AbstractDistribution) -> int:
    """Count the stacked flows."""
    return jax.tree.leaves(eqx.filter(flows, eqx.is_array))[0].shape[0]


@background_jit(Effort.FULL, is_long=True)
def run_chunk(
    trainee: Trainee,
    target: Density,
    noise: Noise,
    rates: Float[Array, " c"],
    powers: Float[Array, " r"],
    *,
    optimizer: optax.GradientTransformation,
    use_score: bool,
) -> tuple[Trainee, Trace]:
    """Take one step per learning rate, all restarts at once; a rate of zero leaves the flow as it is.

    A step whose update is not finite is skipped and counted. The noise is that of `draw_noise`.
    """
    # Integers, such as the permutations of a coupling flow, differ between restarts and are not trained.
    arrays, fixed = trained(trainee.flow)

    def one_restart(arrays, fixed, state, skipped, noise, power):
        start, unravel = ravel_pytree(arrays)

        def step(carry, inputs):
            vector, state, skipped = carry
            noise, rate = inputs
            flow = eqx.combine(unravel(vector), fixed)
            estimate = _estimate(flow, target, noise, use_score, power)
            gradient, _ = ravel_pytree(trained(estimate.gradient)[0])
            updates, new_state = optimizer.update(gradient, state, vector)
            finite = jnp.all(jnp.isfinite(updates))
            counts = rate > 0.0  # a rate of zero fills up the chunk
            vector, state = jax.tree.map(
                lambda new, old: jnp.where(finite & counts, new, old),
                (vector + rate * updates, new_state),
                (vector, state),
            )
            return (vector, state, skipped + (counts & ~finite)), (estimate.log_weights, estimate.log_shares)

        (vector, state, skipped), seen = jax.lax.scan(step, (start, state, skipped), (noise, rates))
        return (unravel(vector), state, skipped), _seen(*seen)

    (arrays, state, skipped), trace = _over_restarts(
        one_restart, arrays, fixed, trainee.optimizer_state, trainee.num_skipped, noise, powers
    )
    return replicated((Trainee(eqx.combine(arrays, fixed), state, skipped), trace))


@background_jit(Effort.LIGHT)
def draw_noise(
    flows: AbstractDistribution, keys: Key[Array, "r 2"], *, num_steps: int, num_particles: int, use_score: bool
) -> Noise:
    """Draw the noise of several steps of every restart, (restarts, steps, particles, p).

    Beside the steps and not inside of them: there it would be compiled after what else they are, and with their effort.
    """

    def one_restart(flow: AbstractDistribution, keys: Key[Array, "2"]) -> Noise:
        if isinstance(flow, Mixture):
            num, each = len(flow.components), particles_of_part(flow, num_particles)
            return stratified_noise(flow.components[0], keys, each, (num_steps, num))  # type: ignore[arg-type]
        if use_score:
            return stratified_noise(flow, keys, num_particles, (num_steps,))  # type: ignore[arg-type]
        z = antithetic_noise(flow, keys[0], num_particles, (num_steps,))  # type: ignore[arg-type]
        return Noise(z, jnp.zeros(z.shape[:-1]))

    return replicated(_over_restarts(one_restart, flows, keys))


def noise_of_chunk(
    flows: AbstractDistribution, key: Key[Array, ""], num_particles: int, use_score: bool, num_steps: int = CHUNK
) -> Noise:
    """Draw the noise of a chunk of steps, or of as many of them as fit in memory."""
    keys = grid(key, (num_stacked(flows), 2))
    at_once = steps_at_once(flows, num_steps, num_particles)
    return draw_noise(flows, keys, num_steps=at_once, num_particles=num_particles, use_score=use_score)


def take_steps(
    trainee: Trainee,
    target: Density,
    key: Key[Array, ""],
    rates: Float[np.ndarray, " c"],
    powers: Float[np.ndarray, " r"],
    *,
    optimizer: optax.GradientTransformation,
    num_particles: int,
    use_score: bool,
    effort: Effort = Effort.FULL,
    piece: int | None = None,
    pace: Pace | None = None,
) -> tuple[Trainee, Trace]:
    """Take one step per learning rate, in as many calls of `run_chunk` as it takes for their noise to fit in memory.

    With a `pace`, every call takes `piece` steps, and there are fewer steps where the time limit does not allow more.
    """
    at_once = steps_at_once(trainee.flow, len(rates), num_particles)
    run, how = run_chunk.with_effort(effort), {"optimizer": optimizer, "use_score": use_score}
    traces = [Trace(*np.zeros((2, num_stacked(trainee.flow), 0)))]
    for number, start in enumerate(range(0, len(rates), at_once)):
        noise_key = nth(key, number) if number else key
        noise = noise_of_chunk(trainee.flow, noise_key, num_particles, use_score, len(rates))
        now = rates[start : start + at_once]
        if pace is None or not pace.is_limited:
            trainee, trace = run(trainee, target, noise, now, powers, **how)
            traces.append(trace)
            continue
        trainee, pieces = _take_pieces(run, how, trainee, target, noise, now, powers, _divisor(at_once, piece), pace)
        traces += pieces
        if sum(trace.elbo.shape[1] for trace in pieces) < at_once:
            break
    return trainee, Trace(
        *(np.concatenate([np.asarray(leaf) for leaf in leaves], 1) for leaves in zip(*traces, strict=True))
    )


def _take_pieces(
    run: BackgroundJit,
    how: dict[str, Any],
    trainee: Trainee,
    target: Density,
    noise: Noise,
    rates: Float[np.ndarray, " c"],
    powers: Float[np.ndarray, " r"],
    num: int,
    pace: Pace,
) -> tuple[Trainee, list[Trace]]:
    """Take `num` steps at a time, until all are taken or the time is over."""
    traces: list[Trace] = []
    for start in range(0, len(rates), num):
        args = trainee, target, _part(noise, start, num=num), rates[start : start + num], powers
        if not pace.has_stepped:
            # The host need not wait longer for a compilation than there is time.
            run.prepare(*args, **how)
            if not run.wait(pace.left_for_steps()):
                break
        if not pace.may_step():
            break
        with pace.stepping():
            trainee, trace = run(*args, **how)
            traces.append(Trace(*map(np.asarray, trace)))
    return trainee, traces


@background_jit(Effort.LEAST)
def _part(noise: Noise, start: Int[Array, ""], *, num: int) -> Noise:
    """Return the noise of some of the steps."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, num, axis=1), noise)


def _divisor(num: int, most: int | None) -> int:
    """Return the largest divisor up to `most`."""
    return max(n for n in range(1, num + 1) if num % n == 0 and n <= (most or num))


def _over_restarts(function: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """Map a function over restarts; one alone is traced and compiled in less time without an axis of its own."""
    arrays, others = eqx.partition(args, eqx.is_array)
    if all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(arrays)):
        first = eqx.combine(jax.tree.map(lambda leaf: leaf[0], arrays), others)
        return jax.tree.map(lambda leaf: leaf[None], function(*first))
    return eqx.filter_vmap(function)(*args)


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


def effort_for(tolerance: float | None) -> Effort:
    """Choose how hard to compile `run_chunk`: the few hundred steps to a tolerance take less time than compiling."""
    return Effort.FULL if tolerance is None else Effort.LIGHT


def prepare_chunk(
    flows: AbstractFlow,
    target: Density,
    *,
    optimizer: optax.GradientTransformation,
    num_particles: int,
    use_score: bool,
    tolerance: float | None = None,
    piece: int | None = None,
) -> None:
    """Begin to compile `run_chunk` in the background, for flows of these shapes and `piece` steps per call."""
    num, at_once = num_stacked(flows), steps_at_once(flows, CHUNK, num_particles)
    num_steps = _divisor(at_once, piece)
    shape = {"num_particles": num_particles, "use_score": use_score}
    keys = grid(as_key(0), (num, 2))
    draw_noise.prepare(flows, keys, num_steps=at_once, **shape)
    _initial_state.prepare(flows, optimizer)
    run_chunk.with_effort(effort_for(tolerance)).prepare(
        Trainee(flows, zeros_of(_fresh, flows, optimizer), np.zeros(num, np.int32)),  # type: ignore[arg-type]
        target,
        zeros_of(functools.partial(draw_noise, num_steps=num_steps, **shape), flows, keys),
        np.zeros(num_steps),
        np.zeros(num),
        optimizer=optimizer,
        use_score=use_score,
    )


def _estimate(flow, target, noise: Noise, use_score: bool, power) -> Estimate:
    """Estimate the gradient."""
    if isinstance(flow, Mixture):
        return mixture_gradient(flow, target, noise, power)
    noise = Noise(over_particles(noise.z), noise.log_ratio)
    return path_gradient(flow, target, noise, power) if use_score else pathwise_gradient(flow, target, noise.z)


def _seen(log_weights: Float[Array, "c s"], log_shares: Float[Array, "c s"]) -> Trace:
    """Return mean and variance of the log weights of every step, under q."""
    usable = jnp.isfinite(log_weights)
    share = jnp.where(usable, jnp.exp(log_shares), 0.0)
    share = share / jnp.maximum(jnp.sum(share, -1, keepdims=True), 1e-30)
    log_weights = jnp.where(usable, log_weights, 0.0)
    elbo = jnp.sum(share * log_weights, -1)
    return Trace(elbo, jnp.sum(share * (log_weights - elbo[:, None]) ** 2, -1))
