"""Fresh draws of flows and their log weights: what every decision of a fit rests on."""

import itertools

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.fit.train.state import TrainState, num_stacked
from bernflow.fit.train.steps import noise_of_chunk
from bernflow.flows.base import AbstractDistribution, Module
from bernflow.flows.factors import is_dense
from bernflow.keys import nth
from bernflow.models.base import AbstractModel
from bernflow.placement import placed
from bernflow.posterior import sampling
from bernflow.target import Target

# Fresh draws behind each decision to go on or to stop, and behind the figures of the verdict.
NUM_EVALUATION_DRAWS = 4000
NUM_DIAGNOSTIC_DRAWS = 20_000
# To a tolerance the latter are fewer in more dimensions than this, where each takes longer.
HURRIED_DIAGNOSTIC_DRAWS, FEW_DIM = 10_000, 30
# They are fewer, but no fewer than the former, where the density of so many rows would take long.
MAX_ROWS_TIMES_DIAGNOSTIC_DRAWS = 10**8
# To a tolerance both are fewer with many rows. A distance of 0.01 nats is known to a tenth from the least of them.
HURRIED_ROWS_TIMES_DRAWS = 2 * 10**7
MIN_EVALUATION_DRAWS, MIN_DIAGNOSTIC_DRAWS = 1000, 2000
# In very many dimensions the latter are as many as have so many coordinates together, the former a fifth of that.
WIDE_NUMBERS = 10_000_000
# Coordinates of draws that are kept in very many dimensions, beside those of the first block: 160 MB.
MAX_DRAWN = 20_000_000
# A draw outside of the support counts like one of this log weight: fewer of them are better.
OUTSIDE = -1e6
MAX_LOG_WEIGHT = 1e100


def pick(flows: Module, index: int) -> Module:
    """Return one of the stacked flows, by the host: JAX would compile something for every shape."""
    return placed(jax.tree.map(lambda leaf: np.asarray(leaf)[index] if eqx.is_array(leaf) else leaf, flows))


def evaluate(flows: AbstractDistribution, target: Target, key: Key[Array, ""], num: int) -> Float[np.ndarray, "r s"]:
    """Return the log weights of `num` draws of every restart, all made from the same noise.

    It goes through the functions that later serve the posterior, so that nothing is compiled for this alone.
    """
    return np.stack([log_weights_of(pick(flows, i), target, key, num) for i in range(num_stacked(flows))])


def num_evaluation_draws(model: AbstractModel, tolerance: float | None = None, dim: int = 1) -> int:
    """Return how many draws are behind a decision to stop, at a tolerance or where nothing is gained any more."""
    most = NUM_EVALUATION_DRAWS
    if not is_dense(dim):
        most = min(most, max(MIN_EVALUATION_DRAWS, WIDE_NUMBERS // (5 * dim)))
    if tolerance is None:
        return most
    affordable = HURRIED_ROWS_TIMES_DRAWS // sampling.num_rows(model)
    return min(most, max(MIN_EVALUATION_DRAWS, affordable))


def num_diagnostic_draws(model: AbstractModel, tolerance: float | None = None, dim: int = 1) -> int:
    """Return how many draws are behind the verdict."""
    rows, least, most = sampling.num_rows(model), NUM_EVALUATION_DRAWS, NUM_DIAGNOSTIC_DRAWS
    if tolerance is not None and dim > FEW_DIM:
        most = HURRIED_DIAGNOSTIC_DRAWS
    if not is_dense(dim):
        least = MIN_DIAGNOSTIC_DRAWS
        most = min(most, max(least, WIDE_NUMBERS // dim))
    affordable = MAX_ROWS_TIMES_DIAGNOSTIC_DRAWS // rows
    if tolerance is not None and rows > sampling.MANY_ROWS:
        affordable, least = HURRIED_ROWS_TIMES_DRAWS // rows, MIN_DIAGNOSTIC_DRAWS
    return min(most, max(least, affordable))


def log_weights_of(
    distribution: AbstractDistribution, target: Target, key: Key[Array, ""], num: int
) -> Float[np.ndarray, " s"]:
    """Return the log weights of fresh draws."""
    return weigh(distribution, target, key, num)[1]


def weigh(
    distribution: AbstractDistribution, target: Target, key: Key[Array, ""], num: int
) -> tuple[Float[np.ndarray, "s p"], Float[np.ndarray, " s"]]:
    """Return fresh draws and their log weights; in very many dimensions, of the draws only the first."""
    block = num if is_dense(distribution.dim) else sampling.block_of(distribution.dim)
    draws, log_weights = [], []
    for first, start in enumerate(range(0, num, block)):
        x, log_q = sampling.sample(distribution, key, min(block, num - start), first)
        log_weights.append(sampling.log_density(target.layout, target.model, x) - log_q)
        if x.size * first <= MAX_DRAWN or not first:
            draws.append(x)
    return np.concatenate(draws), np.concatenate(log_weights)


def weigh_widened(
    trainee: TrainState, index: int, target: Target, key: Key[Array, ""], num: int, num_particles: int
) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"]]:
    """Return log weights of draws of one restart from the noise of its training, and how much each counts, as a log.

    Half of them have a coordinate widened and visit tails that few others see. Steps have made such noise before, so
    that nothing is compiled for this alone.
    """
    z, log_shares = np.empty((0, target.dim)), np.empty(0)
    for number in itertools.count():
        noise = noise_of_chunk(trainee.flow, nth(key, number), num_particles, widened=True)
        z = np.concatenate([z, np.asarray(noise.z[index]).reshape(-1, target.dim)])[:num]
        log_shares = np.append(log_shares, np.asarray(noise.log_ratio[index]))[:num]
        if len(z) == num:
            break
    x, minus_log_q = sampling.push(pick(trainee.flow, index), z, z)  # type: ignore[arg-type]
    return sampling.log_density(target.layout, target.model, x) + minus_log_q, log_shares


def evaluate_finite(trainee: TrainState, target: Target, key: Key[Array, ""], num: int) -> Float[np.ndarray, "r s"]:
    """Return log weights of every restart with which one can reckon."""
    return finite(evaluate(trainee.flow, target, key, num))


def finite(log_weights: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Return log weights with which one can reckon: finite, and in double precision."""
    # In double precision and within a range whose squares can be summed, also where single precision ends.
    known = np.nan_to_num(log_weights.astype(np.float64), nan=OUTSIDE, neginf=OUTSIDE, posinf=OUTSIDE)
    return np.clip(known, -MAX_LOG_WEIGHT, MAX_LOG_WEIGHT)
