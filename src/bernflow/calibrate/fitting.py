"""Fit a block of simulated data sets as by `bf.fit`, and draw from each posterior."""

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from bernflow.calibrate.blocks import Sample, sample_of
from bernflow.calibrate.simulators import AbstractSimulator
from bernflow.fit.judging import DIAGNOSTIC_PRECISION
from bernflow.fit.settings import Settings
from bernflow.fit.together import fit_together
from bernflow.keys import spawn
from bernflow.models.base import Theta
from bernflow.posterior import sampling
from bernflow.precision import use_precision


def fit_block(
    simulator: AbstractSimulator, theta: Theta, data: PyTree, noise: Key[Array, ""], settings: Settings, num_draws: int
) -> Sample:
    """Fit one posterior per simulated data set, as by `fit`, and draw from each."""
    num = len(next(iter(theta.values())))
    each = [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], (theta, data)) for i in range(num)]
    models = [simulator.model(values) for _, values in each]
    keys = [spawn(key, 2) for key in spawn(noise, num)]
    samples: dict[int, Sample] = {}
    for i, posterior in fit_together(models, settings, [key for key, _ in keys], num):
        with use_precision(DIAGNOSTIC_PRECISION):
            samples[i] = sample_of(posterior, models[i], each[i][0], keys[i][1], num_draws)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(samples[i] for i in range(num)))


def resampled(sample: Sample, num_draws: int, key: Key[Array, ""]) -> Sample:
    """Resample draws by their importance weights; if all weights are zero, return the first draws."""
    chosen = []
    for i, row in enumerate(sample.log_weights):
        row = np.where(np.isnan(row) | (row == np.inf), -np.inf, row)
        usable = np.any(row > -np.inf)
        chosen.append(sampling.resample(jax.random.fold_in(key, i), row, num_draws) if usable else np.arange(num_draws))
    rows, picked = np.arange(len(chosen))[:, None], np.stack(chosen)
    draws = {name: value[rows, picked] for name, value in sample.draws.items()}
    return sample._replace(draws=draws, draws_log_joint=sample.draws_log_joint[rows, picked])
