"""Compiled functions of a calibration: simulate data sets together, and weight the draws of every fit."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from bernflow.calibrate.simulators import AbstractSimulator
from bernflow.compiled import filter_jit
from bernflow.keys import portable
from bernflow.models.base import AbstractModel, Theta
from bernflow.posterior import Posterior, sampling
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


def sample_of(posterior: Posterior, model: AbstractModel, theta: Theta, key: Key[Array, ""], num: int) -> Sample:
    """Draw from one fitted posterior, and weight the draws; the leading axis has length one."""
    layout = posterior.layout
    x, log_q = sampling.sample(posterior.distribution, key, num)
    log_p = sampling.log_density(layout, model, x)
    draws, log_jacobian = sampling.in_blocks(lambda part, _: _constrain(layout, part), x)
    sample = Sample(np.asarray(_log_joint(model, theta)), draws, log_p - log_jacobian, log_p - log_q)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], sample)


@filter_jit
def _constrain(layout: AbstractLayout, x: Float[Array, "s p"]) -> tuple[Theta, Float[Array, " s"]]:
    return jax.vmap(layout.constrain)(x)


@filter_jit
def _log_joint(model: AbstractModel, theta: Theta) -> Float[Array, ""]:
    return model.log_density(theta)
