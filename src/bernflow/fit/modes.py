"""Several fits of one posterior: distinct starts, mass that the best fit misses, mixtures of the others.

A mode that no draw has reached leaves no trace in one fit's weights. Fits from other starts can tell: where their
draws lie at high posterior density and low density under the best fit, mass is missing.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Key

from bernflow.fit.loop import num_stacked
from bernflow.fit.start import Gaussian
from bernflow.flows.base import AbstractFlow
from bernflow.flows.mixture import Mixture
from bernflow.target import Target

NUM_DRAWS = 2000
# A point is covered if q holds at least this share of the density that it should.
COVERED = 0.01
WEIGHT_STEPS = 500


class CrossDensities(NamedTuple):
    """Draws of every flow, judged by every flow.

    Attributes:
        log_p: log density of the target at the draws, (flows, draws).
        log_q: log density under each flow at the draws of each, (judging flow, drawing flow, draws).
    """

    log_p: Float[Array, "r s"]
    log_q: Float[Array, "r r s"]


def distinct_starts(candidates: Gaussian, num: int) -> list[int]:
    """Choose `num` starts in order of their ELBO, those in places of their own before those near a chosen one."""
    loc, factor = np.asarray(candidates.loc), np.asarray(candidates.factor)
    chosen: list[int] = []
    for i in range(len(loc)):
        if not any(_close(loc[i] - loc[j], factor[i]) and _close(loc[i] - loc[j], factor[j]) for j in chosen):
            chosen.append(i)
    others = [i for i in range(len(loc)) if i not in chosen]
    ranked = chosen + others
    return [ranked[i % len(ranked)] for i in range(num)]


def _close(difference: np.ndarray, factor: np.ndarray) -> bool:
    """Tell whether a difference is within what a Gaussian of this scale would show."""
    radius = np.sum(np.linalg.solve(factor, difference) ** 2)
    return bool(radius < len(difference) + 4.0 * np.sqrt(2.0 * len(difference)))


@eqx.filter_jit
def cross_densities(flows: AbstractFlow, target: Target, key: Key[Array, ""]) -> CrossDensities:
    """Evaluate the draws of stacked flows under each of them."""
    num = num_stacked(flows)
    x, own = eqx.filter_vmap(lambda flow, key: flow.sample_and_log_prob(key, NUM_DRAWS))(
        flows, jax.random.split(key, num)
    )
    log_q = eqx.filter_vmap(lambda flow: jax.lax.map(flow.log_prob, x))(flows)
    # A flow's density at its own draws is known exactly, without the inverse.
    log_q = log_q.at[jnp.arange(num), jnp.arange(num)].set(own)
    return CrossDensities(jax.vmap(jax.vmap(target.log_density))(x), log_q)


def missing_mass(densities: CrossDensities, best: int) -> float:
    """Estimate the share of the posterior mass that flow `best` does not cover, by draws of all flows together."""
    log_p, log_q = (np.nan_to_num(np.asarray(leaf), nan=-np.inf) for leaf in densities)
    log_mixture = np.logaddexp.reduce(log_q, axis=0) - np.log(len(log_q))
    with np.errstate(invalid="ignore"):
        log_weights = np.where(log_p > -np.inf, log_p - log_mixture, -np.inf)
    log_evidence = np.logaddexp.reduce(log_weights, axis=None) - np.log(log_weights.size)
    uncovered = log_q[best] < log_p - log_evidence + np.log(COVERED)
    if not uncovered.any():
        return 0.0
    log_missing = np.logaddexp.reduce(log_weights[uncovered]) - np.log(log_weights.size)
    return float(np.clip(np.exp(log_missing - log_evidence), 0.0, 1.0))


def merge(flows: list[AbstractFlow], densities: CrossDensities, num: int) -> Mixture | AbstractFlow:
    """Mix at most `num` flows that found different places, with the weights of highest ELBO.

    Weighting by evidence alone would count a mode twice that two flows share.
    """
    log_p, log_q = np.asarray(densities.log_p), np.asarray(densities.log_q)
    own = np.stack([log_q[i, i] for i in range(len(flows))])
    log_weights = log_p - own
    evidence = np.logaddexp.reduce(np.where(np.isfinite(log_weights), log_weights, -np.inf), axis=1)
    kept: list[int] = []
    for i in np.argsort(-evidence):
        if len(kept) < num and not any(_same(log_q, own, i, j) for j in kept):
            kept.append(int(i))
    if len(kept) == 1:
        return flows[kept[0]]
    weights = _best_weights(jnp.asarray(log_p[kept]), jnp.asarray(log_q[np.ix_(kept, kept)]))
    return Mixture(tuple(flows[i] for i in kept), weights)


def _same(log_q: np.ndarray, own: np.ndarray, i: int, j: int) -> bool:
    """Tell whether two flows cover most of each other's draws."""

    def covers(a: int, b: int) -> bool:
        inside: Bool[np.ndarray, " s"] = log_q[a, b] > own[b] + np.log(COVERED)
        return bool(np.mean(inside) > 0.5)

    return covers(i, j) and covers(j, i)


@eqx.filter_jit
def _best_weights(log_p: Float[Array, "k s"], log_q: Float[Array, "k k s"]) -> Float[Array, " k"]:
    """Maximise the mixture's ELBO over its log weights, at fixed draws of every component."""
    safe_log_p = jnp.where(jnp.isfinite(log_p), log_p, jnp.min(jnp.where(jnp.isfinite(log_p), log_p, jnp.inf)))

    def loss(logits):
        log_weights = jax.nn.log_softmax(logits)
        log_mixture = jax.nn.logsumexp(log_weights[:, None, None] + log_q, axis=0)
        return -jnp.sum(jnp.exp(log_weights) * jnp.mean(safe_log_p - log_mixture, -1))

    optimizer = optax.adam(0.05)
    logits = jnp.mean(safe_log_p - jnp.diagonal(log_q, axis1=0, axis2=1).T, -1)
    logits -= jnp.max(logits)

    def step(carry, _):
        logits, state = carry
        updates, state = optimizer.update(jax.grad(loss)(logits), state)
        return (logits + updates, state), None

    (logits, _), _ = jax.lax.scan(step, (logits, optimizer.init(logits)), length=WEIGHT_STEPS)
    return jax.nn.log_softmax(logits)
