"""Compiled work behind a calibration: many data sets are simulated and fitted at once.

Every function takes the data of a block of simulations, with a leading axis, and maps over them.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from bernflow.calibrate.simulators import AbstractSimulator
from bernflow.compiled import filter_jit
from bernflow.fit.chunk import Trainee, begin, draw_noise, run_chunk
from bernflow.fit.engine import num_starts
from bernflow.fit.settings import Settings
from bernflow.fit.wide_start import finder
from bernflow.flows.base import AbstractDistribution, AbstractFlow
from bernflow.flows.factors import unit_factor
from bernflow.keys import portable, quick
from bernflow.models.base import Theta
from bernflow.preflight import RADIUS, draw_starts
from bernflow.target import Target


class Sample(NamedTuple):
    """What the fits of a block know; leading axis: simulations.

    Attributes:
        log_joint: the log density of the true parameters and of the data.
        draws: draws of the fitted posteriors, with an axis of draws behind the first.
        draws_log_joint: the log density at the draws.
        log_weights: log p - log q at the draws.
    """

    log_joint: Float[Array, " n"]
    draws: Theta
    draws_log_joint: Float[Array, "n s"]
    log_weights: Float[Array, "n s"]


@filter_jit
def simulate_block(simulator: AbstractSimulator, keys: Key[Array, " n"]) -> tuple[Theta, PyTree]:
    """Draw parameters and data."""
    # Keys of our own generator draw other numbers inside of vmap than outside, and cannot draw counts.
    return jax.vmap(lambda key: simulator.draw(portable(key)))(keys)


@filter_jit
def prior_variance(simulator: AbstractSimulator, keys: Key[Array, " n"]) -> Theta:
    """Estimate the prior variance of every parameter; the data are not drawn, because nothing asks for them."""
    draws = jax.vmap(lambda key: simulator.draw(portable(key))[0])(keys)
    return jax.tree.map(lambda value: jnp.var(value, axis=0, ddof=1), draws)


@filter_jit
def begin_block(
    simulator: AbstractSimulator, data: PyTree, start_keys: Key[Array, " n"], settings: Settings
) -> Trainee:
    """Start one flow per simulated data set, as `fit` starts it."""

    def one(data: PyTree, key: Key[Array, ""]) -> AbstractFlow:
        target = Target(simulator.model(data))
        points_key, path_key, flow_key = jax.random.split(key, 3)
        num, (uniform_key, prior_key) = num_starts(target.dim), jax.random.split(quick(points_key))
        uniform = jax.random.uniform(uniform_key, (num, target.dim), minval=-RADIUS, maxval=RADIUS)
        points = draw_starts(target, uniform, jax.random.split(prior_key, num // 2))
        initial = target.model.initial()
        if initial is not None:
            points = points.at[0].set(target.layout.unconstrain(initial)[0])
        if settings.family.use_start:
            loc, factor, _ = finder(target.dim)(target, points, path_key).at(0)
        else:
            loc, factor = points[0], unit_factor(target.dim, jnp)
        return settings.family.build(flow_key, settings.spec(target.dim), loc, factor)

    return begin(eqx.filter_vmap(one)(data, start_keys), settings.optimizer)


@filter_jit
def train_block(
    simulator: AbstractSimulator,
    data: PyTree,
    trainee: Trainee,
    noise_keys: Key[Array, " n"],
    rates: Float[Array, " c"],
    powers: Float[Array, " n"],
    settings: Settings,
    use_score: bool,
) -> Trainee:
    """Take one step per learning rate, all simulations at once, as `fit` takes them."""
    num_steps, num_particles = rates.shape[0], settings.num_particles

    def one(data, trainee, noise_key, power):
        trainee = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, trainee)
        keys = jax.random.split(noise_key, (1, 2))
        after, _ = run_chunk(
            trainee,
            Target(simulator.model(data)),
            draw_noise(trainee.flow, keys, num_steps=num_steps, num_particles=num_particles, use_score=use_score),
            rates,
            power[None],
            optimizer=settings.optimizer,
            use_score=use_score,
        )
        return jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, after)

    return eqx.filter_vmap(one)(data, trainee, noise_keys, powers)


@filter_jit
def sample_block(
    simulator: AbstractSimulator,
    theta: Theta,
    data: PyTree,
    flows: AbstractDistribution,
    noise_keys: Key[Array, " n"],
    num: int,
    at_once: int,
) -> Sample:
    """Draw from every fitted posterior, and weigh the draws; densities of `at_once` draws are computed together."""

    def one(theta, data, flow, noise_key):
        target = Target(simulator.model(data))
        x, log_q = flow.sample_and_log_prob(noise_key, num)
        draws, log_jacobian = jax.vmap(target.layout.constrain)(x)
        log_p = jax.lax.map(target.log_density, x, batch_size=min(at_once, num))
        return Sample(target.model.log_density(theta), draws, log_p - log_jacobian, log_p - log_q)

    return eqx.filter_vmap(one)(theta, data, flows, noise_keys)
