"""Blocks of a calibration: data sets are simulated together, each is fitted as by `bf.fit`, its draws are weighed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from bernflow.calibrate.simulators import AbstractSimulator
from bernflow.compiled import filter_jit
from bernflow.fit.judging import DIAGNOSTIC_PRECISION
from bernflow.fit.settings import Settings
from bernflow.fit.together import fit_together
from bernflow.keys import portable, spawn
from bernflow.models.base import AbstractModel, Theta
from bernflow.posterior import Posterior, sampling
from bernflow.precision import use_precision
from bernflow.target import AbstractLayout


class Sample(NamedTuple):
    """Draws and weights of fits; leading axis: simulations.

    Attributes:
        log_joint: the log density of the true parameters and of the data.
        draws: draws of the fitted posteriors; the second axis is that of draws.
        draws_log_joint: the log density at the draws.
        log_weights: log p - log q at the draws.
    """

    log_joint: Float[np.ndarray, " n"]
    draws: Theta
    draws_log_joint: Float[np.ndarray, "n s"]
    log_weights: Float[np.ndarray, "n s"]


@filter_jit
def simulate_block(simulator: AbstractSimulator, keys: Key[Array, " n"]) -> tuple[Theta, PyTree]:
    """Draw parameters and data."""
    # Keys of our own generator draw different numbers inside and outside of vmap, and cannot draw counts.
    return jax.vmap(lambda key: simulator.draw(portable(key)))(keys)


@filter_jit
def prior_variance(simulator: AbstractSimulator, keys: Key[Array, " n"]) -> Theta:
    """Estimate the prior variance of every parameter, without drawing data."""
    draws = jax.vmap(lambda key: simulator.draw(portable(key))[0])(keys)
    return jax.tree.map(lambda value: jnp.var(value, axis=0, ddof=1), draws)


def fit_block(
    simulator: AbstractSimulator, theta: Theta, data: PyTree, noise: Key[Array, ""], settings: Settings, num_draws: int
) -> Sample:
    """Fit one posterior per simulated data set, as `fit` does, and draw from each."""
    num = len(next(iter(theta.values())))
    each = [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], (theta, data)) for i in range(num)]
    models = [simulator.model(values) for _, values in each]
    keys = [spawn(key, 2) for key in spawn(noise, num)]
    samples: dict[int, Sample] = {}
    for i, posterior in fit_together(models, settings, [key for key, _ in keys], num):
        with use_precision(DIAGNOSTIC_PRECISION):
            samples[i] = sample_of(posterior, models[i], each[i][0], keys[i][1], num_draws)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(samples[i] for i in range(num)))


def sample_of(posterior: Posterior, model: AbstractModel, theta: Theta, key: Key[Array, ""], num: int) -> Sample:
    """Draw from one fitted posterior, and weight the draws; the leading axis has length one."""
    layout = posterior.layout
    x, log_q = sampling.sample(posterior.distribution, key, num)
    log_p = sampling.log_density(layout, model, x)
    draws, log_jacobian = sampling.in_blocks(lambda part, _: _constrain(layout, part), x)
    sample = Sample(np.asarray(_log_joint(model, theta)), draws, log_p - log_jacobian, log_p - log_q)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], sample)


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


@filter_jit
def _constrain(layout: AbstractLayout, x: Float[Array, "s p"]) -> tuple[Theta, Float[Array, " s"]]:
    return jax.vmap(layout.constrain)(x)


@filter_jit
def _log_joint(model: AbstractModel, theta: Theta) -> Float[Array, ""]:
    return model.log_density(theta)
