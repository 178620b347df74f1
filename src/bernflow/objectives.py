"""Estimators of the gradient that trains a flow: pure functions of (noise, flow, target).

Each returns the gradient of a loss to minimize and the log weights log p - log q of the particles, whose mean under
the base noise is the ELBO.
"""

import math
from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from bernflow.flows.base import AbstractFlow, AbstractScoredFlow, constant, inlined
from bernflow.flows.mixture import Mixture
from bernflow.target import Density

# Fraction of particles with one widened coordinate, and the factor of its standard deviation.
WIDE_FRACTION = 0.5
WIDTH = 2.0
# Bound on the weight of a particle relative to a typical one, so that single draws do not dominate the gradient.
MAX_WEIGHT = 10.0


class Scores(NamedTuple):
    """What one pass through a log density gives.

    Attributes:
        log_p: the log density at every point.
        score: its gradient there.
        by_weights: the gradient of the sum of all `log_p` in the weights of a network; None without one.
        state: the new state of the network; None without one.
    """

    log_p: Float[Array, " s"]
    score: Float[Array, "s p"]
    by_weights: PyTree = None
    state: PyTree = None


class AbstractScored(eqx.Module):
    """A density that evaluates all points in one pass, because it depends on more than x."""

    @abstractmethod
    def scores(self, x: Float[Array, "s p"]) -> Scores:
        """Evaluate the log density and its gradients at some points."""


class Estimate(NamedTuple):
    """Gradient of a loss, and the log weights of the particles that gave it.

    Attributes:
        gradient: a pytree with the structure of the flow.
        log_weights: log p - log q.
        log_shares: log weights of the particles in a mean under q, up to a constant.
        by_weights: gradient of the loss in the weights of a network; None without one.
        state: the new state of the network; None without one.
    """

    gradient: PyTree
    log_weights: Float[Array, " s"]
    log_shares: Float[Array, " s"]
    by_weights: PyTree = None
    state: PyTree = None


class Noise(NamedTuple):
    """Noise with the log ratio of the base density to the density from which it was drawn."""

    z: Float[Array, "*steps s p"]
    log_ratio: Float[Array, "*steps s"]


def antithetic_noise(
    flow: AbstractFlow, key: Key[Array, ""], num: int, steps: tuple[int, ...] = ()
) -> Float[Array, "*steps s p"]:
    """Draw base noise in antithetic pairs, z and -z, which cancel the odd part of the gradient's error.

    The draws are independent if the flow has no reflection of its noise.

    Args:
        flow: the flow.
        key: a random key.
        num: number of particles.
        steps: (n,) draws the noise of n steps at once, which is far faster than n separate calls.
    """

    def independent(num: int) -> Float[Array, "*steps s p"]:
        return flow.sample_base(key, math.prod(steps) * num).reshape(*steps, num, flow.dim)

    z = independent((num + 1) // 2)
    reflected = flow.mirror(z)
    return independent(num) if reflected is None else jnp.concatenate([z, reflected], -2)[..., :num, :]


def stratified_noise(flow: AbstractScoredFlow, keys: Key[Array, "2"], num: int, steps: tuple[int, ...] = ()) -> Noise:
    """Draw noise that covers every tail: half of the particles have one widened coordinate.

    Only one draw in a thousand informs the outermost coefficients of a polynomial. Widening one coordinate at a time
    makes such draws frequent; the density ratio, which is at most 2, keeps the estimate unbiased. The arguments are
    those of `antithetic_noise`, with two keys.
    """
    noise_key, choice_key = keys
    z = antithetic_noise(flow, noise_key, num, steps)
    # One uniform number selects the coordinate; beyond the last one, none is widened.
    choice = jnp.floor(jax.random.uniform(choice_key, (*steps, num, 1)) * (flow.dim / WIDE_FRACTION))
    z = jnp.where(choice == jnp.arange(flow.dim), WIDTH * z, z)

    def log_f(z):
        return jax.vmap(lambda u: flow.base_log_prob(u[None]))(z.reshape(-1)).reshape(z.shape)

    wide_ratio = jnp.mean(jnp.exp(log_f(z / WIDTH) - log_f(z)), -1) / WIDTH
    return Noise(z, -jnp.log(1.0 - WIDE_FRACTION + WIDE_FRACTION * wide_ratio))


def scores_of(density: Density | AbstractScored, x: Float[Array, "s p"]) -> Scores:
    """Evaluate a log density and its gradient at some points."""
    if isinstance(density, AbstractScored):
        return density.scores(x)
    return Scores(*jax.vmap(jax.value_and_grad(density.log_density))(x))


def pathwise_gradient(flow: AbstractFlow, target: Density | AbstractScored, z: Float[Array, "s p"]) -> Estimate:
    """Differentiate the ELBO through the samples and through log q (the paper's estimator)."""

    def sample(flow):
        x, log_det = jax.vmap(flow.transform_and_log_det)(z)
        return x, jax.vmap(flow.base_log_prob)(z) - log_det

    (x, log_q), pull_back = eqx.filter_vjp(sample, flow)
    scores = scores_of(target, x)
    log_weights = scores.log_p - log_q
    usable = jnp.isfinite(log_weights)
    num = jnp.maximum(jnp.sum(usable), 1)
    # A score that is not finite where the density is makes the gradient so: the step is skipped.
    (gradient,) = pull_back((jnp.where(usable[:, None], -scores.score, 0.0) / num, usable.astype(log_q.dtype) / num))
    return Estimate(gradient, log_weights, jnp.zeros_like(log_weights), _of_loss(scores, num), scores.state)


def path_gradient(
    flow: AbstractScoredFlow, target: Density | AbstractScored, noise: Noise, power: Float[Array, ""]
) -> Estimate:
    """Differentiate a divergence between q and the posterior through the samples only.

    For D = E_q[f(w)] with w = p / q, applying the reparameterization to the score term as well gives

        grad D = -E_q[f''(w) w^2 (grad_x log w) dx],

    which is zero for every single draw if q is the posterior, so the variance vanishes with the error. Weights
    f''(w) w^2 = 1 give the reverse KL (sticking the landing; Roeder et al., 2017), which is insensitive to mass that q
    misses. Weights w give the forward KL, which is insensitive to regions where q has far too much mass: in the neck of
    a funnel log p may be hundreds of nats below log q for one draw in a thousand, at no cost. The weights used are
    max(1, w)^power, with w relative to its median: with power 0 the reverse KL; with power 1 the reverse KL where q has
    too much mass and the forward KL where it has too little. `score` gives grad_x log q without the inverse.
    """

    def sample(flow):
        x, log_det, score = jax.vmap(flow.transform_and_score)(noise.z)
        return x, (log_det, score)

    with inlined(flow):
        x, pull_back, (log_det, score_q) = eqx.filter_vjp(sample, flow, has_aux=True)
    scores = scores_of(target, x)
    log_weights = scores.log_p - (jax.vmap(flow.base_log_prob)(noise.z) - log_det)
    pull = scores.score - score_q
    usable = jnp.isfinite(log_weights) & jnp.all(jnp.isfinite(pull), -1)
    weight = jnp.exp(power * jnp.maximum(_excess(log_weights, usable), 0.0) + noise.log_ratio)
    pull = jnp.where(usable[:, None], weight[:, None] * pull, 0.0)
    num = jnp.maximum(jnp.sum(usable), 1)
    (gradient,) = pull_back(-pull / num)
    return Estimate(gradient, log_weights, noise.log_ratio, _of_loss(scores, num), scores.state)


def _of_loss(scores: Scores, num: Array) -> PyTree:
    """Return the gradient of the mean loss in the weights of a network, whose particles all count as much."""
    return jax.tree.map(lambda leaf: -leaf / num.astype(leaf.dtype), scores.by_weights)


def _excess(log_weights: Float[Array, "*s"], usable: Bool[Array, "*s"]) -> Float[Array, "*s"]:
    """Return the clipped difference of log weights from a typical one."""
    # The median is robust to draws far outside and to single giant weights.
    center = jnp.sort(jnp.where(usable, log_weights, jnp.inf).reshape(-1))[jnp.sum(usable) // 2]
    # Clip before taking any power: with power 0 an infinite log weight would become NaN.
    return jnp.clip(jnp.where(usable, log_weights - center, 0.0), -100.0, jnp.log(MAX_WEIGHT))


def mixture_gradient(mixture: Mixture, target: Density, noise: Noise, power: Float[Array, ""]) -> Estimate:
    """Compute the gradient of `path_gradient` for all components of a mixture at once, and for their weights.

    The noise has equally many draws for every component, (k, s, p). If q_k moves along v_k, the divergence E_q[f(w)]
    changes by -w_k E_k[f''(w) w^2 (grad_x log w) v_k]. Since w = p / q contains the whole mixture q, components do not
    cover again what others cover already. The derivative by the weight of component k is E_k[f(w) - w f'(w)].
    """
    z, log_ratio = noise
    first: AbstractScoredFlow = mixture.components[0]  # type: ignore[assignment]

    def sample(mixture):
        parts = mixture.stacked()
        x, log_det, score = eqx.filter_vmap(lambda part, z: jax.vmap(part.transform_and_score)(z))(parts, z)
        return x, (log_det, score)

    with inlined(first):
        x, pull_back, (log_det, score) = eqx.filter_vjp(sample, mixture, has_aux=True)
    log_p, score_p = jax.vmap(jax.vmap(jax.value_and_grad(target.log_density)))(x)
    own = jax.vmap(jax.vmap(first.base_log_prob))(z) - log_det
    log_q, score_q = _mixed(mixture, x, own, score)
    log_weights, pull = log_p - log_q, score_p - score_q
    usable = jnp.isfinite(log_weights) & jnp.all(jnp.isfinite(pull), -1)
    excess = _excess(log_weights, usable)
    shares = jnp.exp(mixture.normalized_log_weights())
    weight = shares[:, None] * jnp.exp(power * jnp.maximum(excess, 0.0) + log_ratio)
    counts = jnp.maximum(jnp.sum(usable, -1, keepdims=True), 1)
    (gradient,) = pull_back(jnp.where(usable[..., None], -weight[..., None] * pull, 0.0) / counts[..., None])
    # -log w for the reverse KL, 1 - w for the forward KL.
    forward = jnp.expm1(power * excess) / jnp.where(power > 0.0, power, 1.0)
    change = -jnp.where((power > 0.0) & (excess > 0.0), forward, excess)
    # A self-normalized mean per component is exact where all draws agree.
    ratio = jnp.where(usable, jnp.exp(log_ratio), 0.0)
    by_share = jnp.sum(ratio * change, -1) / jnp.maximum(jnp.sum(ratio, -1), 1e-30)
    by_log_weight = shares * (by_share - jnp.sum(shares * by_share))
    gradient = eqx.tree_at(lambda mixture: mixture.log_weights, gradient, by_log_weight)
    return Estimate(
        gradient, log_weights.reshape(-1), (log_ratio + mixture.normalized_log_weights()[:, None]).reshape(-1)
    )


def _mixed(mixture, x, own, score):
    """Evaluate log q and the score of a mixture at the draws of all components, (k, s) and (k, s, p)."""

    def of_part(part):
        z, log_det = jax.vmap(jax.vmap(part.inverse_and_log_det))(x)
        return jax.vmap(jax.vmap(part.base_log_prob))(z) + log_det, jax.vmap(jax.vmap(part.score))(z)

    log_q, scores = eqx.filter_vmap(of_part)(constant(mixture.stacked()))
    # Far from a component its inverse overflows, where its density is zero.
    sound = jnp.isfinite(log_q) & jnp.all(jnp.isfinite(scores), -1)
    log_q, scores = jnp.where(sound, log_q, -jnp.inf), jnp.where(sound[..., None], scores, 0.0)
    each = jnp.arange(len(own))
    log_q, scores = log_q.at[each, each].set(own), scores.at[each, each].set(score)
    log_q = log_q + mixture.normalized_log_weights()[:, None, None]
    total = jax.nn.logsumexp(log_q, axis=0)
    return total, jnp.sum(jnp.exp(log_q - total)[..., None] * scores, 0)
