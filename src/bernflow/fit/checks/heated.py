"""Draws of a fit whose noise is heated: is there mass where none of its draws go?

Let x = T(u) map noise to parameters. The posterior density of u is p(T(u)) |dT/du|, whatever T is, and the fit claims
that it is f, the density of the noise. Here u goes far out in all coordinates, in those of one site, in single ones and
in random sets of them, while the others are noise as usual. The log of the distance of those that are heated is uniform
on two intervals, so that mass of any width is met. All sets together are one mixture, whose density is known without an
inverse, and the importance weights of points where the fit has too little density add up to the mass that it misses.

With some draws that are not heated the mixture is nowhere much below the fit and has heavier tails than most
posteriors, so that its weights tell the moments of the posterior and of the fit at once (`diagnostics.moments`).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from bernflow.diagnostics.elsewhere import Found
from bernflow.diagnostics.findings import Diagnostics
from bernflow.diagnostics.moments import NUM_GROUPS, MomentErrors, Weighed, errors_of
from bernflow.fit.checks.evidence import Evidence, Sighting, Subject, gaussian_of, sight
from bernflow.fit.checks.proposal import log_density, sets, spread
from bernflow.fit.modes import COVERED
from bernflow.flows.base import LOG_2PI, AbstractDistribution, AbstractFlow
from bernflow.flows.factors import is_dense
from bernflow.flows.mixture import Mixture
from bernflow.keys import generator, nth
from bernflow.posterior import sampling
from bernflow.target import Target

# Heated draws, as a share of those of the verdict, at most; in very many dimensions those that have so many coordinates
# together, and no fewer than these.
SHARE_HEATED, MAX_HEATED = 0.2, 4000
MAX_NUMBERS, MIN_HEATED = 2_000_000, 100
# Draws that are not heated, as a share of those that are.
SHARE_RESTING = 0.5
# What is found is confirmed by so many times as many draws.
CONFIRM = 3
# A poor fit that is right where it looks may miss mass that a mixture would hold; with a lower ESS it is wrong there.
LEAST_ESS = 0.5
# Under a time limit, the least share of it for a look elsewhere.
SEARCH_SHARE = 0.03
# Mass comes to an end if less than such a share of it lies farther out than this.
FAR_HEAT, MOST_FAR = 3e3, 0.01
# Lower log masses differ by more than a number can hold.
LEAST_LOG_MASS = -1e100
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
        seen, moments = sight(heated.found, subject, modes=False), heated.errors(subject.draws)
        if seen.is_notable or (moments is not None and _are_open(subject.alone, moments)):
            heated = heated.joined(draw_heated(fit, target, log_evidence, more_key, CONFIRM * num), CONFIRM)
            seen, moments = sight(heated.found, subject, modes=False), heated.errors(subject.draws)
        wrong = moments is not None and moments.are_wrong and not subject.alone.weights_correct
        if wrong and moments is not None and heated.weighed is not None and not seen.is_notable:
            # Mass that the fit has too little of, but not a hundred times too little.
            excess = heated.weighed.excess()
            seen = Sighting(excess, moments.effect(), gaussian_of(excess, subject.draws), modes=False)
        return evidence.replace(
            looked=(f"{num:,} heated draws",),
            sightings=(seen,),
            points=heated.points[np.argsort(-heated.promise)],
            moments=moments,
            mass_ends=seen.is_notable and heated.ends,
        )


def _are_open(alone: Diagnostics, moments: MomentErrors) -> bool:
    """Tell whether more draws may change a verdict by the moments; weights correct what they can of a weighted fit."""
    relief = alone.verdict == "poor" and not moments.are_right
    return not alone.weights_correct and (relief or moments.seem_wrong)


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
        weighed: all draws, those that are not heated included; None where the noise is not normal.
    """

    points: Float[np.ndarray, "n p"]
    log_mass: Float[np.ndarray, " n"]
    missed: Bool[np.ndarray, " n"]
    far: Bool[np.ndarray, " n"]
    weighed: Weighed | None

    def joined(self, other: "Heated", times: float) -> "Heated":
        """Return both as one, the other from so many times as many draws."""
        first, second = -math.log1p(times), math.log(times / (1.0 + times))
        one, more = (each._replace(log_mass=each.log_mass + shift) for each, shift in ((self, first), (other, second)))
        if self.weighed is None or other.weighed is None:
            return _together([one, more], None)
        return _together([one, more], self.weighed.joined(other.weighed, times))

    def errors(self, draws: Float[np.ndarray, "s p"]) -> MomentErrors | None:
        """Return the errors of the moments of a fit; None where they cannot be told."""
        return None if self.weighed is None else errors_of(self.weighed, draws)

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
    drawn = [_heat(part, whole, target, log_evidence, nth(key, i), num // len(parts)) for i, part in enumerate(parts)]
    # Every part looks for the same mass: what the luckiest has found counts, the points of all serve as starts.
    lucky = max(range(len(parts)), key=lambda i: drawn[i].found.share)
    for i, each in enumerate(drawn):
        each.missed[:] &= i == lucky
    weighed = drawn[0].weighed
    for i, each in enumerate(drawn[1:], start=1):
        weighed = None if weighed is None or each.weighed is None else weighed.joined(each.weighed, 1.0 / i)
    return _together(drawn, weighed)


def _together(heated: Sequence[Heated], weighed: Weighed | None) -> Heated:
    return Heated(
        np.concatenate([each.points for each in heated]),
        np.concatenate([each.log_mass for each in heated]),
        np.concatenate([each.missed for each in heated]),
        np.concatenate([each.far for each in heated]),
        weighed,
    )


def _parts(distribution: AbstractDistribution) -> list[AbstractFlow]:
    parts = distribution.components if isinstance(distribution, Mixture) else (distribution,)
    weights = np.asarray(distribution.log_weights) if isinstance(distribution, Mixture) else np.zeros(1)
    return [part for i in np.argsort(-weights)[:MAX_PARTS] if isinstance(part := parts[i], AbstractFlow)]


def _heat(
    part: AbstractFlow, whole: Mixture | None, target: Target, log_evidence: float, key: Key[Array, ""], num: int
) -> Heated:
    """Draw from one flow with its noise heated, and some draws without that."""
    random = generator(key)
    masks, shares = sets(target.layout, num, random)
    u = random.standard_normal((num, target.dim))
    is_normal = _noise_density(part, u)[1]
    if not is_normal:  # the density of the coordinates that are not heated is known of normal noise only
        masks, shares = masks[:1], np.ones(1)
    u, heat = spread(u, masks, shares, random)
    resting = int(SHARE_RESTING * num) if is_normal else 0
    u, heat = np.concatenate([u, random.standard_normal((resting, target.dim))]), np.append(heat, np.zeros(resting))
    group = np.arange(len(u)) % NUM_GROUPS
    x, log_ratio = sampling.push(part, u, u)
    log_f = -0.5 * np.sum(u**2 + LOG_2PI, -1) if is_normal else _noise_density(part, u)[0]
    usable = np.isfinite(x).all(1) & np.isfinite(log_ratio) & np.isfinite(log_f)
    # Models of other software do not like infinite parameters.
    log_p = sampling.log_density(target.layout, target.model, np.where(usable[:, None], x, np.median(x[usable], 0)))
    usable &= ~np.isnan(log_p) & (log_p < np.inf)
    x, log_p, u, heat, log_f, log_ratio, group = (
        values[usable] for values in (x, log_p, u, heat, log_f, log_ratio, group)
    )
    log_q = -log_ratio if whole is None else sampling.log_q(whole, x)
    # What each draw stands for: one over its density, times their number.
    log_proposal = np.log(num) + log_density(u, masks, shares)
    if resting:
        log_proposal = np.logaddexp(log_proposal, np.log(resting) + log_f)
    log_volume = log_ratio + log_f - log_proposal
    log_mass = log_p + log_volume - log_evidence
    weighed = Weighed(x, log_mass, log_q + log_volume, group) if is_normal else None
    inside = np.isfinite(log_p)
    missed = log_q < log_p - log_evidence + math.log(COVERED)
    return Heated(x[inside], log_mass[inside], missed[inside], heat[inside] > FAR_HEAT, weighed)


def _noise_density(part: AbstractFlow, u: Float[np.ndarray, "s p"]) -> tuple[Float[np.ndarray, " s"], bool]:
    """Return the log density of the noise of a flow, and whether it is the standard normal one."""
    normal = -0.5 * np.sum(u**2 + LOG_2PI, -1)
    if getattr(getattr(part, "leaders", part), "noise", None) == "normal":
        return normal, True
    log_f = np.asarray(jax.vmap(part.base_log_prob)(jnp.asarray(u)))
    return log_f, bool(np.allclose(log_f, normal))
