"""Draws of a fit whose noise is heated: is there mass where none of its draws go?

Let x = T(u) map noise to parameters. The posterior density of u is p(T(u)) |dT/du|, whatever T is, and the fit claims
that it is f, the density of the noise. Here u goes far out in all coordinates, in those of one site, in single ones and
in random sets of them, while the others are noise as usual. The log of the distance of those that are heated is uniform
on two intervals, so that mass of any width is met. All sets together are one mixture, whose density is known without an
inverse, and the importance weights of points where the fit has too little density add up to the mass that it misses.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from bernflow.diagnostics.elsewhere import Found, joined
from bernflow.fit.checks.evidence import Evidence, Subject, sight
from bernflow.fit.modes import COVERED
from bernflow.flows.base import LOG_2PI, AbstractDistribution, AbstractFlow
from bernflow.flows.factors import is_dense
from bernflow.flows.mixture import Mixture
from bernflow.keys import generator, nth
from bernflow.posterior import sampling
from bernflow.target import AbstractLayout, Target

# Heated draws, as a share of those of the verdict, at most; in very many dimensions those that have so many coordinates
# together, and no fewer than these.
SHARE_HEATED, MAX_HEATED = 0.2, 4000
MAX_NUMBERS, MIN_HEATED = 2_000_000, 100
# What is found is confirmed by so many times as many draws.
CONFIRM = 3
# A poor fit that is right where it looks may miss mass that a mixture would hold; with a lower ESS it is wrong there.
LEAST_ESS = 0.5
# Under a time limit, the least share of it for a look elsewhere.
SEARCH_SHARE = 0.03
# Heated coordinates are so many times as far out as usual, between the first two for most of the draws, between the
# last two for a share of them.
LEAST_HEAT, USUAL_HEAT, MOST_HEAT = 1.0, 100.0, 1e4
SHARE_FAR = 0.2
# Mass comes to an end if less than such a share of it lies farther out than this.
FAR_HEAT, MOST_FAR = 3e3, 0.01
# Lower log masses differ by more than a number can hold.
LEAST_LOG_MASS = -1e100
# Share of the draws whose coordinates are all heated; single coordinates, and random sets of them, that are heated.
SHARE_ALL = 0.4
MAX_SINGLE, NUM_RANDOM = 32, 8
# With fewer draws each of a set of coordinates is not worth looking at.
MIN_DRAWS_OF_SET = 16
# Components of a mixture that are heated, the heaviest first.
MAX_PARTS = 4


class HeatedDraws:
    """Is there mass around the fit, at any distance?"""

    def applies(self, subject: Subject, evidence: Evidence) -> bool:
        """Fits that are right where their draws are, while there is time."""
        is_right = subject.alone.verdict != "poor" or subject.alone.ess_fraction >= LEAST_ESS
        return evidence.lost is None and is_right and subject.deadline.has_left(SEARCH_SHARE)

    def run(self, subject: Subject, evidence: Evidence) -> Evidence:
        """Weigh heated draws, and more of them where they find something."""
        heat_key, more_key = subject.search_keys[:2]
        fit, target, log_evidence = subject.distribution, subject.target, subject.alone.log_evidence
        num = num_heated(len(subject.log_weights), target.dim) * subject.settings.checks.times
        heated = draw_heated(fit, target, log_evidence, heat_key, num)
        seen = sight(heated.found, subject, modes=False)
        if seen.is_notable:
            more = draw_heated(fit, target, log_evidence, more_key, CONFIRM * num).found
            seen = sight(joined(heated.found, more, CONFIRM), subject, modes=False)
        return evidence.replace(
            looked=(f"{num:,} heated draws",),
            sightings=(seen,),
            points=heated.points[np.argsort(-heated.promise)],
            mass_ends=seen.is_notable and heated.ends,
        )


def num_heated(num_draws: int, dim: int) -> int:
    """Return how many heated draws are made for a verdict of so many draws."""
    most = MAX_HEATED if is_dense(dim) else MAX_NUMBERS // dim
    return max(MIN_HEATED, min(most, MAX_HEATED, int(SHARE_HEATED * num_draws)))


class Heated(NamedTuple):
    """Heated draws.

    Attributes:
        points: all of them at which there is a density, (n, p).
        log_mass: log of the mass that each stands for in units of the evidence, as proposals.
        missed: whether the fit has too little density there.
        far: whether they are about as far out as heated draws go.
    """

    points: Float[np.ndarray, "n p"]
    log_mass: Float[np.ndarray, " n"]
    missed: Bool[np.ndarray, " n"]
    far: Bool[np.ndarray, " n"]

    @property
    def found(self) -> Found:
        """The mass that the fit misses."""
        return Found(self.points[self.missed], self.log_mass[self.missed])

    @property
    def promise(self) -> Float[np.ndarray, " n"]:
        """How promising each draw is as a start for a mode: those first that the fit misses, however low they are.

        The basin of a narrow mode reaches far, to where its density is thousands of nats lower than at the mode.
        """
        log_mass = np.maximum(self.log_mass, LEAST_LOG_MASS)
        lowest = np.ptp(log_mass) + 1.0 if len(log_mass) else 0.0
        return np.where(self.missed, log_mass, log_mass - lowest)

    @property
    def ends(self) -> bool:
        """Whether the mass that the fit misses comes to an end where heated draws still go."""
        log_far, log_all = (np.logaddexp.reduce(self.log_mass[self.missed & far]) for far in (self.far, True))
        return bool(log_far < log_all + math.log(MOST_FAR))


@np.errstate(all="ignore")  # far away everything overflows
def draw_heated(
    distribution: AbstractDistribution, target: Target, log_evidence: float, key: Key[Array, ""], num: int
) -> Heated:
    """Draw from a fit with its noise heated, and weigh the draws.

    Args:
        distribution: the fit.
        target: the posterior.
        log_evidence: log of the mass that the fit has found.
        key: makes the noise.
        num: number of draws; those of a mixture are shared out to its heaviest components.
    """
    parts, whole = _parts(distribution), distribution if isinstance(distribution, Mixture) else None
    heated = [_heat(part, whole, target, log_evidence, nth(key, i), num // len(parts)) for i, part in enumerate(parts)]
    # Every part looks for the same mass: what the luckiest has found counts, the points of all serve as starts.
    lucky = max(range(len(parts)), key=lambda i: heated[i].found.share)
    for i, each in enumerate(heated):
        each.missed[:] &= i == lucky
    return Heated(*(np.concatenate(fields) for fields in zip(*heated, strict=True)))


def _parts(distribution: AbstractDistribution) -> list[AbstractFlow]:
    parts = distribution.components if isinstance(distribution, Mixture) else (distribution,)
    weights = np.asarray(distribution.log_weights) if isinstance(distribution, Mixture) else np.zeros(1)
    return [part for i in np.argsort(-weights)[:MAX_PARTS] if isinstance(part := parts[i], AbstractFlow)]


def _heat(
    part: AbstractFlow, whole: Mixture | None, target: Target, log_evidence: float, key: Key[Array, ""], num: int
) -> Heated:
    """Draw from one flow with its noise heated."""
    random = generator(key)
    masks, shares = _sets(target.layout, num, random)
    u = random.standard_normal((num, target.dim))
    log_f, is_normal = _noise_density(part, u)
    if not is_normal:  # the density of the coordinates that are not heated is known of normal noise only
        masks, shares = masks[:1], np.ones(1)
    u, heat = _spread(u, masks, shares, random)
    x, log_ratio = sampling.push(part, u, u)
    log_f = -0.5 * np.sum(u**2 + LOG_2PI, -1) if is_normal else _noise_density(part, u)[0]
    usable = np.isfinite(x).all(1) & np.isfinite(log_ratio) & np.isfinite(log_f)
    # Models of other software do not like infinite parameters.
    log_p = sampling.log_density(target.layout, target.model, np.where(usable[:, None], x, np.median(x[usable], 0)))
    usable &= np.isfinite(log_p)
    x, log_p, u, heat, log_f, log_ratio = (values[usable] for values in (x, log_p, u, heat, log_f, log_ratio))
    log_q = -log_ratio if whole is None else sampling.log_q(whole, x)
    log_mass = log_p + log_ratio + log_f - _log_proposal(u, masks, shares) - math.log(num) - log_evidence
    return Heated(x, log_mass, log_q < log_p - log_evidence + math.log(COVERED), heat > FAR_HEAT)


def _sets(
    layout: AbstractLayout, num: int, random: np.random.Generator
) -> tuple[Bool[np.ndarray, "g p"], Float[np.ndarray, " g"]]:
    """Return the sets of coordinates that are heated together, and their shares of the draws."""
    dim = layout.dim
    masks = [np.ones(dim, bool)]
    begun = 0
    for i in layout.order:
        if 1 < layout.sizes[i] < dim:
            masks.append((np.arange(dim) >= begun) & (np.arange(dim) < begun + layout.sizes[i]))
        begun += layout.sizes[i]
    if dim > 1:
        singles = random.permutation(dim)[:MAX_SINGLE]
        masks += [np.arange(dim) == j for j in singles]
    if dim > 2:
        masks += [random.permutation(dim) < size for size in random.integers(2, dim, NUM_RANDOM)]
    most = max(1, int(num * (1.0 - SHARE_ALL)) // MIN_DRAWS_OF_SET)
    chosen = np.array(masks[: 1 + most])
    others = len(chosen) - 1
    return chosen, np.append(SHARE_ALL, np.full(others, (1.0 - SHARE_ALL) / others)) if others else np.ones(1)


def _spread(
    u: Float[np.ndarray, "s p"],
    masks: Bool[np.ndarray, "g p"],
    shares: Float[np.ndarray, " g"],
    random: np.random.Generator,
) -> tuple[Float[np.ndarray, "s p"], Float[np.ndarray, " s"]]:
    """Move the coordinates of one set of every draw out; return the noise, and how far out."""
    num = len(u)
    order = (np.arange(num) + 0.5) / num
    chosen = masks[np.searchsorted(np.cumsum(shares)[:-1], order)]
    # Of each set the distances are spread evenly: those of the golden ratio are so for any part of a sequence.
    even = (random.random() + np.arange(num) * 0.5 * (math.sqrt(5.0) - 1.0)) % 1.0
    near, far = even / (1.0 - SHARE_FAR), (even - 1.0 + SHARE_FAR) / SHARE_FAR
    heat = np.where(
        near < 1.0, LEAST_HEAT * (USUAL_HEAT / LEAST_HEAT) ** near, USUAL_HEAT * (MOST_HEAT / USUAL_HEAT) ** far
    )
    size = np.sum(chosen, 1)
    length = np.linalg.norm(np.where(chosen, u, 0.0), axis=1)
    return np.where(chosen, u * (heat * np.sqrt(size) / length)[:, None], u), heat


def _log_proposal(
    u: Float[np.ndarray, "s p"], masks: Bool[np.ndarray, "g p"], shares: Float[np.ndarray, " g"]
) -> Float[np.ndarray, " s"]:
    """Evaluate the log density of heated noise, all sets together."""
    squares = u**2 @ masks.T.astype(float)
    size = np.sum(masks, 1)
    resting = -0.5 * (np.sum(u**2, 1)[:, None] - squares + LOG_2PI * (u.shape[1] - size))
    log_area = math.log(2.0) + 0.5 * size * math.log(math.pi) - np.array([math.lgamma(0.5 * k) for k in size])
    heat = np.sqrt(squares / size)
    inside = (heat > LEAST_HEAT * (1.0 - 1e-9)) & (heat < MOST_HEAT * (1.0 + 1e-9))
    near, far = (1.0 - SHARE_FAR) / math.log(USUAL_HEAT / LEAST_HEAT), SHARE_FAR / math.log(MOST_HEAT / USUAL_HEAT)
    radial = -0.5 * size * np.log(squares) - log_area + np.log(np.where(heat < USUAL_HEAT, near, far))
    return np.logaddexp.reduce(np.where(inside, np.log(shares) + resting + radial, -np.inf), axis=1)


def _noise_density(part: AbstractFlow, u: Float[np.ndarray, "s p"]) -> tuple[Float[np.ndarray, " s"], bool]:
    """Return the log density of the noise of a flow, and whether it is the standard normal one."""
    normal = -0.5 * np.sum(u**2 + LOG_2PI, -1)
    if getattr(getattr(part, "leaders", part), "noise", None) == "normal":
        return normal, True
    log_f = np.asarray(jax.vmap(part.base_log_prob)(jnp.asarray(u)))
    return log_f, bool(np.allclose(log_f, normal))
