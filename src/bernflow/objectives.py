"""Estimators of the ELBO's gradient and of the tail objective: pure functions of (noise, flow, target).

Each returns the gradient of a loss to minimise and the log weights log p - log q of its particles, whose mean
estimates the ELBO.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Key, PyTree

from bernflow.flows.base import AbstractFlow, AbstractScoredFlow
from bernflow.target import Target


class Estimate(NamedTuple):
    """Gradient of a loss, and the log weights of the particles that gave it."""

    gradient: PyTree
    log_weights: Float[Array, " s"]


def antithetic_noise(flow: AbstractFlow, key: Key[Array, ""], num: int) -> Float[Array, "s p"]:
    """Draw base noise in mirrored pairs (z, -z), which cancel the odd part of the gradient's error."""
    z = flow.sample_base(key, (num + 1) // 2)
    return jnp.concatenate([z, -z])[:num]


def pathwise_gradient(flow: AbstractFlow, target: Target, z: Float[Array, "s p"]) -> Estimate:
    """Differentiate the ELBO through the samples and through log q (the paper's estimator)."""

    def loss(flow):
        x, log_det = jax.vmap(flow.transform_and_log_det)(z)
        log_q = jax.vmap(flow.base_log_prob)(z) - log_det
        log_weights = jax.vmap(target.log_density)(x) - log_q
        usable = jnp.isfinite(log_weights)
        return -_mean_over(usable, jnp.where(usable, log_weights, 0.0)), log_weights

    (_, log_weights), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(flow)
    return Estimate(gradient, log_weights)


def sticking_the_landing(flow: AbstractScoredFlow, target: Target, z: Float[Array, "s p"]) -> Estimate:
    """Differentiate the ELBO through the samples only: the variance vanishes as q approaches the posterior.

    The dropped term, the score of q with respect to its own parameters, has expectation zero (Roeder et al., 2017).
    The gradient is that of x weighted by grad log p(x) - grad log q(x); the second needs no inverse of the flow.
    """

    def sample(flow):
        x, log_det = jax.vmap(flow.transform_and_log_det)(z)
        return x, jax.vmap(flow.base_log_prob)(z) - log_det

    x, log_q = sample(flow)
    log_p, score_p = jax.vmap(jax.value_and_grad(target.log_density))(x)
    pull = score_p - jax.vmap(flow.score)(z)
    usable = jnp.isfinite(log_p) & jnp.all(jnp.isfinite(pull), -1)
    pull = stop_gradient(jnp.where(usable[:, None], pull, 0.0))

    def loss(flow):
        return -_mean_over(usable, jnp.sum(pull * sample(flow)[0], -1))

    return Estimate(eqx.filter_grad(loss)(flow), log_p - log_q)


def widened_noise(flow: AbstractFlow, key: Key[Array, ""], num: int, factor: float) -> Float[Array, "s p"]:
    """Draw base noise with a random subset of its coordinates widened, one to all of them at a time."""
    noise_key, share_key, choice_key = jax.random.split(key, 3)
    z = flow.sample_base(noise_key, num)
    share = jax.random.uniform(share_key, (num, 1))
    # The square favours few widened coordinates, so that a tail is met mostly alone, as it is under the posterior.
    chosen: Bool[Array, "s p"] = jax.random.uniform(choice_key, z.shape) < share**2
    return jnp.where(chosen, factor * z, z)


def tail_gradient(flow: AbstractFlow, target: Target, z: Float[Array, "s p"], threshold: float) -> Estimate:
    """Differentiate the Huber spread of log q - log p over widened noise.

    Reverse KL hardly sees the tails; the spread of the log weights is zero only where q equals the posterior, and
    needs no inverse because x = T(z) comes with its log q whatever z was drawn from.
    """

    def loss(flow):
        x, log_det = jax.vmap(flow.transform_and_log_det)(z)
        log_q = jax.vmap(flow.base_log_prob)(z) - log_det
        log_weights = jax.vmap(target.log_density)(x) - log_q
        usable = jnp.isfinite(log_weights)
        safe = jnp.where(usable, log_weights, 0.0)
        center = stop_gradient(_mean_over(usable, safe))
        size = jnp.abs(safe - center)
        huber = jnp.where(size < threshold, 0.5 * size**2, threshold * (size - 0.5 * threshold))
        return _mean_over(usable, huber), log_weights

    (_, log_weights), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(flow)
    return Estimate(gradient, log_weights)


def _mean_over(usable: Bool[Array, " s"], values: Float[Array, " s"]) -> Float[Array, ""]:
    """Average the usable particles; the others carry no gradient."""
    return jnp.sum(jnp.where(usable, values, 0.0)) / jnp.maximum(jnp.sum(usable), 1)
