"""Fit a block of simulated data sets as `fit` fits one: a stage for the bulk, and one that covers the tails."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from bernflow.calibrate import blocks
from bernflow.calibrate.blocks import Sample
from bernflow.calibrate.simulators import AbstractSimulator
from bernflow.diagnostics.importance import ess_fraction
from bernflow.fit.chunk import CHUNK, Trainee, steps_at_once
from bernflow.fit.loop import COVERING_ESS, Method
from bernflow.fit.settings import Settings
from bernflow.models.base import Theta
from bernflow.posterior import sampling
from bernflow.target import Target

# Draws behind the choice between the two stages of training.
NUM_CHOICE_DRAWS = 1000
# Draws times simulations times dimensions that are evaluated at once.
MAX_AT_ONCE = 2**23


def fit_block(
    simulator: AbstractSimulator,
    theta: Theta,
    data: PyTree,
    noise: Key[Array, ""],
    target: Target,
    settings: Settings,
    num_draws: int,
    weighted: bool,
) -> Sample:
    """Fit one posterior per simulated data set, as `fit` does with so many steps, and draw from each."""
    num = len(next(iter(theta.values())))
    start_keys = jax.random.split(jax.random.fold_in(noise, 2**31 + 2), num)
    trainee = blocks.begin_block(simulator, data, start_keys, settings)
    use_score = settings.trains_by_score(trainee.flow)
    rate = settings.rate_in(target.dim)
    method = Method(settings.optimizer, rate, settings.family.paper_recipe, settings.num_particles, use_score)
    num_steps = steps_at_once(trainee.flow, CHUNK, settings.num_particles)
    at_once = max(1, MAX_AT_ONCE // (num * max(1, target.dim)))

    def train(trainee: Trainee, length: int, powers: Float[np.ndarray, " n"], stage: int) -> Trainee:
        rates = method.rates(length)
        for start in range(0, length, num_steps):
            chunk = rates[start : start + num_steps]
            trainee = blocks.train_block(
                simulator,
                data,
                trainee,
                jax.random.split(jax.random.fold_in(noise, 2**20 * stage + start), num),
                jnp.asarray(np.pad(chunk, (0, num_steps - len(chunk)))),
                jnp.asarray(powers),
                settings,
                use_score,
            )
        return trainee

    def sample(trainee: Trainee, number: int, salt: int) -> Sample:
        noise_keys = jax.random.split(jax.random.fold_in(noise, 2**31 + salt), num)
        found = blocks.sample_block(simulator, theta, data, trainee.flow, noise_keys, number, at_once)
        return jax.tree.map(np.asarray, found)

    total = settings.steps
    assert total is not None  # _settings has made sure
    covers = use_score and settings.family.cover and total >= 2 * CHUNK
    bulk = total - total // 2 if covers else total
    trainee = train(trainee, bulk, np.zeros(num), 0)
    if covers:
        before = np.asarray(sample(trainee, NUM_CHOICE_DRAWS, 0).log_weights)
        powers = np.array([float(ess_fraction(_finite(row)) > COVERING_ESS) for row in before])
        after = train(trainee, total // 2, powers, 1)
        better = jnp.asarray(_is_better(before, np.asarray(sample(after, NUM_CHOICE_DRAWS, 0).log_weights)))
        trainee = jax.tree.map(
            lambda new, old: (
                jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old) if eqx.is_array(new) else new
            ),
            after,
            trainee,
        )
    return sample(trainee, num_draws * (sampling.OVERSAMPLING if weighted else 1), 1)


def _is_better(before: Float[np.ndarray, "n s"], after: Float[np.ndarray, "n s"]) -> Bool[np.ndarray, " n"]:
    """Tell of every fit whether its second stage is kept: where the log weights spread less."""
    old, new = (
        np.array([np.mean(np.clip(row - np.median(row), -1.0, 1.0) ** 2) for row in map(_finite, weights)])
        for weights in (before, after)
    )
    return new < old


def _finite(row: Float[np.ndarray, " s"]) -> Float[np.ndarray, " s"]:
    return np.nan_to_num(row, nan=-1e6, neginf=-1e6, posinf=-1e6)


def resampled(sample: Sample, num_draws: int, key: Key[Array, ""]) -> Sample:
    """Choose draws by their importance weights; of weights that are all zero, the first draws."""
    chosen = []
    for i, row in enumerate(sample.log_weights):
        row = np.where(np.isnan(row) | (row == np.inf), -np.inf, row)
        usable = np.any(row > -np.inf)
        chosen.append(sampling.resample(jax.random.fold_in(key, i), row, num_draws) if usable else np.arange(num_draws))
    rows, picked = np.arange(len(chosen))[:, None], np.stack(chosen)
    draws = {name: value[rows, picked] for name, value in sample.draws.items()}
    return sample._replace(draws=draws, draws_log_joint=sample.draws_log_joint[rows, picked])
