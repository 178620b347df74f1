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
from jaxtyping import Array, Float, Key

from bernflow.compiled import filter_jit
from bernflow.fit.settings import PART_GAIN
from bernflow.fit.start import Gaussian
from bernflow.fit.train.state import num_stacked
from bernflow.flows.base import AbstractFlow
from bernflow.flows.mixture import Mixture
from bernflow.placement import replicated
from bernflow.target import Target

NUM_DRAWS = 2000
# A point is covered if q holds at least this share of the density that it should.
COVERED = 0.01
WEIGHT_STEPS = 500
# Every density at another flow's draw costs an inverse: with many flows the draws become fewer.
MAX_INVERSES = 128_000
MIN_DRAWS = 200
# Weights that are tried for one more part, as a multiple of the average weight of those that are there.
TRIAL_ODDS = (0.25, 0.5, 1.0, 2.0)


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
    chosen = distinct_places(candidates)
    others = [i for i in range(len(candidates.loc)) if i not in chosen]
    ranked = chosen + others
    return [ranked[i % len(ranked)] for i in range(num)]


def distinct_places(candidates: Gaussian) -> list[int]:
    """Return the Gaussians that are not near one of higher ELBO, the highest first."""
    each = [jax.tree.map(np.asarray, candidates.at(i)) for i in range(len(candidates.loc))]
    chosen: list[int] = []
    for i, new in enumerate(each):
        if not any(_close(new, each[j].loc) and _close(each[j], new.loc) for j in chosen):
            chosen.append(i)
    return chosen


def radius(dim: int) -> float:
    """Return the squared radius within which nearly all draws of a standard normal distribution lie."""
    return dim + 4.0 * np.sqrt(2.0 * dim)


def _close(gaussian: Gaussian, point: np.ndarray) -> bool:
    """Tell whether a point is as near to a Gaussian as its draws are."""
    return bool(np.sum(gaussian.whiten(point) ** 2) < radius(len(point)))


@filter_jit
def cross_densities(flows: AbstractFlow, target: Target, key: Key[Array, ""]) -> CrossDensities:
    """Evaluate the draws of stacked flows under each of them."""
    num = num_stacked(flows)
    num_draws = max(MIN_DRAWS, min(NUM_DRAWS, MAX_INVERSES // num**2))
    x, own = eqx.filter_vmap(lambda flow, key: flow.sample_and_log_prob(key, num_draws))(
        flows, jax.random.split(key, num)
    )
    log_q = eqx.filter_vmap(lambda flow: jax.lax.map(flow.log_prob, x))(flows)
    # Far outside the inverse overflows: no density is there.
    log_q = jnp.where(jnp.isnan(log_q), -jnp.inf, log_q)
    # A flow's density at its own draws is known exactly, without the inverse.
    log_q = log_q.at[jnp.arange(num), jnp.arange(num)].set(own)
    return replicated(CrossDensities(jax.vmap(jax.vmap(target.log_density))(x), log_q))


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


def choose_parts(densities: CrossDensities, num: int, gain: float = PART_GAIN) -> list[int]:
    """Choose at most `num` flows for a mixture, one after the other, each the one that raises its ELBO most.

    Each must raise it by `gain` nats.

    A flow that found the same place as a chosen one raises nothing. The evidence is no guide: its estimate can be one
    giant weight, and two flows that share a mode would count it twice.
    """
    log_p, log_q = _replaced(np.asarray(densities.log_p)), np.asarray(densities.log_q)
    usable = [i for i in range(len(log_q)) if np.isfinite(log_q[i, i]).all()]
    elbos = {i: float(np.mean(log_p[i] - log_q[i, i])) for i in usable}
    kept = [max(usable, key=lambda i: elbos[i])] if usable else [0]
    log_weights, reached = np.zeros(1), elbos.get(kept[0], -np.inf)
    while len(kept) < num:
        trials = [
            (_mixture_elbo(log_p, log_q, [*kept, i], weights), i, weights)
            for i in usable
            if i not in kept
            for weights in _trial_weights(log_weights, elbos[i] - reached)
        ]
        elbo, added, weights = max(trials, key=lambda trial: trial[0], default=(-np.inf, -1, log_weights))
        if not elbo > reached + gain:
            break
        reached, log_weights = elbo, weights
        kept.append(added)
    return kept


def merge(flows: list[AbstractFlow], densities: CrossDensities) -> Mixture | AbstractFlow:
    """Mix flows with the weights of highest ELBO."""
    if len(flows) == 1:
        return flows[0]
    log_p = _replaced(np.asarray(densities.log_p))
    return Mixture(tuple(flows), _best_weights(jnp.asarray(log_p), jnp.asarray(densities.log_q)))


def _replaced(log_p: np.ndarray) -> np.ndarray:
    """Let draws outside of the support count like the worst one inside."""
    finite = np.isfinite(log_p)
    return np.where(finite, log_p, np.min(log_p, where=finite, initial=np.inf)) if finite.any() else log_p


def _trial_weights(log_weights: np.ndarray, advantage: float) -> list[np.ndarray]:
    """Propose log weights with one more part: the best one if nothing overlaps, and some of the usual size."""
    odds = np.append(np.log(TRIAL_ODDS) - np.log(len(log_weights)), advantage)
    return [np.append(log_weights - np.logaddexp(0.0, a), -np.logaddexp(0.0, -a)) for a in odds]


def _mixture_elbo(log_p: np.ndarray, log_q: np.ndarray, parts: list[int], log_weights: np.ndarray) -> float:
    log_mixture = np.logaddexp.reduce(log_weights[:, None, None] + log_q[np.ix_(parts, parts)], axis=0)
    return float(np.sum(np.exp(log_weights) * np.mean(log_p[parts] - log_mixture, -1)))


@filter_jit
def _best_weights(log_p: Float[Array, "k s"], log_q: Float[Array, "k k s"]) -> Float[Array, " k"]:
    """Maximise the mixture's ELBO over its log weights, at fixed draws of every component."""

    def loss(logits):
        log_weights = jax.nn.log_softmax(logits)
        log_mixture = jax.nn.logsumexp(log_weights[:, None, None] + log_q, axis=0)
        return -jnp.sum(jnp.exp(log_weights) * jnp.mean(log_p - log_mixture, -1))

    optimizer = optax.adam(0.05)
    logits = jnp.mean(log_p - jnp.diagonal(log_q, axis1=0, axis2=1).T, -1)
    logits -= jnp.max(logits)

    def step(carry, _):
        logits, state = carry
        updates, state = optimizer.update(jax.grad(loss)(logits), state)
        return (logits + updates, state), None

    (logits, _), _ = jax.lax.scan(step, (logits, optimizer.init(logits)), length=WEIGHT_STEPS)
    return jax.nn.log_softmax(logits)
