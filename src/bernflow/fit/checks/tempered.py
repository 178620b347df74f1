"""A short tempered run from far around a fit to the posterior: sequential Monte Carlo, independent of the fit.

Particles start from a Student t distribution that is wider than the prior and the fit, and go through powers

    p_b(x) = g(x)^(1 - b) p(x)^b,   0 = b_0 < b_1 < ... < b_n = 1,

by reweighting, resampling and Metropolis moves. As many of them end in a mode as it has mass, whatever the fit has
seen, and the weights on the way estimate the evidence without bias. Moves go along differences of particles, which
need neither a gradient nor a compilation: the density at blocks of points is compiled already.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Key
from threadpoolctl import threadpool_limits

from bernflow.diagnostics.elsewhere import Found, nothing
from bernflow.fit.checks.effort import Checks
from bernflow.fit.checks.evidence import Evidence, Subject, frame, sight
from bernflow.fit.work import work
from bernflow.keys import generator, nth
from bernflow.posterior import sampling
from bernflow.precision import use_precision
from bernflow.preflight import prior_draws
from bernflow.target import Target

# The proposal is as wide as the fit times the first and the prior times the second together; its tails are those of a
# Student t distribution.
HEAT, PRIOR_SPREAD, TAILS = 30.0, 10.0, 5.0
# The share of particles that a step of the temperature leaves effective, and the most such steps.
KEPT, MAX_TEMPERATURES = 0.6, 80
# Moves of every particle at each temperature: the first, and one more for each dimension. Of so many temperatures.
MIN_MOVES, USUAL_TEMPERATURES = 3, 20
# Metropolis moves: this times the difference of two particles is best for a normal; sometimes a whole one, from mode to
# mode; a little noise parts those that coincide.
BEST_SCALE, SHARE_WHOLE, NOISE = 2.38, 0.1, 1e-3
# Shortest and longest moves, as factors of the best ones.
LENGTHS = 0.1, 1.5
BEST_ACCEPTANCE = 0.25
# A particle is away from the fit where no draw of it is as near as they are to each other. So many draws tell; so many
# others tell how near they are.
NUM_NEAR, NUM_REFERENCE = 2000, 1000
# With fewer particles away it is chance.
LEAST_AWAY = 0.02
# Heavier tails than this share of the prior draws are left out of the proposal: their covariance may not exist.
INNER = 0.9
# Blocks are bounded by memory in very many dimensions; with fewer particles a run tells nothing.
MIN_PARTICLES = 500

# Draws of the prior behind the proposal, in batches where no start has a size of its own.
NUM_PRIOR, BATCH = 128, 8
# Of the same mass, found by heated draws or paths and by a tempered run, the former are more exact.
MUCH_MORE = 1.5

Random = np.random.Generator
# Particles, their log g, and their log p - log g.
State = tuple[np.ndarray, np.ndarray, np.ndarray]


class TemperedRun:
    """Where do particles end that come from far around the fit, and do not know it?"""

    def applies(self, subject: Subject, evidence: Evidence) -> bool:
        """Fits whose surroundings are looked at, if the density is cheap."""
        return evidence.points is not None and is_affordable(subject.target, subject.settings.checks)

    def run(self, subject: Subject, evidence: Evidence) -> Evidence:
        """Run particles from the prior; thorough checks do so from far around the fit, too."""
        key, target, checks = subject.search_keys[4], subject.target, subject.settings.checks
        batch = BATCH if subject.probes is None else len(subject.probes.loc)
        with use_precision(subject.settings.precision):
            prior = prior_draws(target, nth(key, 0), batch, NUM_PRIOR // batch)
        runs = [
            run_tempered(target, subject.draws, drawn, checks.moves, nth(key, i + 1))
            for i, drawn in enumerate([prior, None][: checks.runs])
        ]
        arrived = [run for run in runs if run is not None]
        if not arrived:
            return evidence
        found = max((run.found(subject.alone.log_evidence) for run in arrived), key=lambda each: each.share)
        kind = "a tempered run" if len(arrived) == 1 else f"{len(arrived)} tempered runs"
        return evidence.replace(
            looked=(*evidence.looked, f"{kind} of {len(arrived[0].points):,} particles"),
            sightings=(*evidence.sightings, sight(found, subject, modes=True, times=MUCH_MORE)),
        )


class Tempered(NamedTuple):
    """Where a tempered run ended.

    Attributes:
        points: the particles, (n, p).
        log_evidence: its estimate of the log evidence.
        away: which particles are where no draw of the fit is.
    """

    points: Float[np.ndarray, "n p"]
    log_evidence: float
    away: Bool[np.ndarray, " n"]

    def found(self, log_evidence: float) -> Found:
        """Return the mass away from a fit, in units of what that has found."""
        if np.mean(self.away) < LEAST_AWAY:
            return nothing(self.points.shape[1])
        log_mass = self.log_evidence - log_evidence - math.log(len(self.away))
        return Found(self.points[self.away], np.full(int(np.sum(self.away)), log_mass))


def is_affordable(target: Target, checks: Checks) -> bool:
    """Tell whether a tempered run is made: in few dimensions, and of cheap densities unless it was asked for."""
    num = sampling.density_block(target.model, target.dim)
    if target.dim > checks.max_dim or num < MIN_PARTICLES:
        return checks.thorough and target.dim <= checks.max_dim
    densities = num * checks.moves * (MIN_MOVES + target.dim) * USUAL_TEMPERATURES
    return densities * work(target) <= checks.max_work


@np.errstate(all="ignore")  # far away everything overflows
@threadpool_limits.wrap(limits=1, user_api="blas")
def run_tempered(
    target: Target,
    draws: Float[np.ndarray, "s p"],
    prior: Float[np.ndarray, "n p"] | None,
    moves: int,
    key: Key[Array, ""],
) -> Tempered | None:
    """Run particles from far around a fit to the posterior; None where they did not arrive.

    Args:
        target: the posterior.
        draws: draws of the fit.
        prior: draws of the prior, or None.
        moves: so many times as many Metropolis moves as by default.
        key: makes the noise.
    """
    moves *= MIN_MOVES + target.dim
    draws = draws[np.isfinite(draws).all(1)]
    if len(draws) < 2 * target.dim + MIN_PARTICLES:
        return None
    center, factor = frame(draws)
    if factor is None:
        return None
    random = generator(nth(key, 0))
    wide = _wide_factor(center, factor, prior)
    num = max(sampling.density_block(target.model, target.dim), MIN_PARTICLES)
    ended = _anneal(_Density(target, center, factor, wide), num, moves, random)
    if ended is None:
        return None
    u, log_evidence = ended
    away = _away(u, np.linalg.solve(factor, (draws - center).T).T, random)
    return Tempered(center + u @ factor.T, log_evidence, away)


class _Density:
    """Log densities of the posterior and of the proposal, in units of the fit."""

    def __init__(self, target: Target, center: np.ndarray, factor: np.ndarray, wide: np.ndarray):
        self._target, self._center, self._factor = target, center, factor
        self.wide, self._inverse = wide, np.linalg.inv(wide)
        self._log_unit = float(np.sum(np.log(np.diagonal(factor))))
        self._log_wide = float(np.sum(np.log(np.diagonal(wide))))

    def ratio(self, u: Float[np.ndarray, "n p"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return log g, and log p - log g."""
        log_g = self._log_proposal(u)
        x = self._center + u @ self._factor.T
        usable = np.isfinite(x).all(1)
        # Models of other software do not like infinite parameters.
        log_p = sampling.log_density(self._target.layout, self._target.model, np.where(usable[:, None], x, 0.0))
        usable &= np.isfinite(log_p)
        return log_g, np.where(usable, log_p + self._log_unit - log_g, -np.inf)

    def _log_proposal(self, u: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " n"]:
        dim = u.shape[1]
        squares = np.sum((u @ self._inverse.T) ** 2, 1)
        constant = math.lgamma(0.5 * (TAILS + dim)) - math.lgamma(0.5 * TAILS) - 0.5 * dim * math.log(TAILS * math.pi)
        return constant - self._log_wide - 0.5 * (TAILS + dim) * np.log1p(squares / TAILS)


def _anneal(
    density: _Density, num: int, moves: int, random: np.random.Generator
) -> tuple[Float[np.ndarray, "n p"], float] | None:
    """Return particles of the posterior and the log evidence."""
    dim = len(density.wide)
    # One chi-square value for each particle makes a normal draw one of a Student t distribution.
    tails = np.sqrt(TAILS / random.chisquare(TAILS, (num, 1)))
    u = (random.standard_normal((num, dim)) @ density.wide.T) * tails
    log_g, log_ratio = density.ratio(u)
    power, log_evidence, lengths = 0.0, 0.0, [1.0, 0.9]
    for _ in range(MAX_TEMPERATURES):
        if not np.isfinite(log_ratio).any():
            return None
        following = _next_power(log_ratio, power)
        log_weights = (following - power) * log_ratio
        log_weights[~np.isfinite(log_ratio)] = -np.inf
        total = np.logaddexp.reduce(log_weights)
        log_evidence += float(total) - math.log(num)
        weights = np.exp(log_weights - total)
        chosen = np.minimum(np.searchsorted(np.cumsum(weights), (np.arange(num) + random.random()) / num), num - 1)
        u, log_g, log_ratio, power = u[chosen], log_g[chosen], log_ratio[chosen], following
        around = _around(u)
        archive = u.copy()
        # At the end some more: particles that were repeated part.
        for i in range(moves if power < 1.0 else 2 * moves):
            if i % 2 and around is not None:
                lengths[1] = _move_all(density, (u, log_g, log_ratio), around, power, lengths[1], random)
            else:
                lengths[0] = _move_along(density, (u, log_g, log_ratio), archive, power, lengths[0], random)
        if power >= 1.0:
            return u, log_evidence
    return None


def _next_power(log_ratio: Float[np.ndarray, " n"], power: float) -> float:
    """Return the power up to which a share of the particles stays effective."""

    def effective(step: float) -> float:
        log_weights = step * log_ratio[np.isfinite(log_ratio)]
        weights = np.exp(log_weights - np.max(log_weights))
        return float(np.sum(weights) ** 2 / np.sum(weights**2)) / len(weights)

    low, high = 0.0, 1.0 - power
    if effective(high) >= KEPT:
        return 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if effective(middle) >= KEPT else (low, middle)
    return power + max(low, 1e-9)


def _move_along(
    density: _Density, state: State, archive: Float[np.ndarray, "n p"], power: float, length: float, random: Random
) -> float:
    """Move all particles along differences of others, in place; return the length of the next moves."""
    u = state[0]
    num, dim = u.shape
    first, second = random.integers(num, size=(2, num))
    whole = np.asarray(random.random(num)) < SHARE_WHOLE
    scale = np.where(whole, 1.0, length * BEST_SCALE / math.sqrt(2.0 * dim))
    step = archive[first] - archive[second]
    trial = u + scale[:, None] * step + NOISE * random.standard_normal((num, dim))
    accepted = _accept(density, state, trial, power, np.zeros(num), random)
    share = float(np.mean(accepted[~whole])) if not whole.all() else 0.0
    return float(np.clip(length * math.exp(0.5 * (share - BEST_ACCEPTANCE)), *LENGTHS))


def _move_all(
    density: _Density, state: State, around: tuple[np.ndarray, np.ndarray], power: float, length: float, random: Random
) -> float:
    """Move all particles towards a fresh draw of their own normal distribution, which such moves keep as it is."""
    u = state[0]
    center, factor = around
    z = random.standard_normal(u.shape)
    old = np.linalg.solve(factor, (u - center).T).T
    new = math.sqrt(1.0 - length**2) * old + length * z
    trial = center + new @ factor.T
    accepted = _accept(density, state, trial, power, 0.5 * np.sum(new**2 - old**2, 1), random)
    return float(np.clip(length * math.exp(0.5 * (float(np.mean(accepted)) - BEST_ACCEPTANCE)), LENGTHS[0], 1.0))


def _accept(
    density: _Density,
    state: State,
    trial: Float[np.ndarray, "n p"],
    power: float,
    log_factor: np.ndarray,
    random: Random,
) -> Bool[np.ndarray, " n"]:
    """Accept or refuse trials by the rule of Metropolis and Hastings, in place."""
    _, log_g, log_ratio = state
    trial_g, trial_ratio = density.ratio(trial)
    gain = (trial_g - log_g) + power * (trial_ratio - log_ratio) + log_factor
    accepted = np.log(random.random(len(trial))) < np.where(np.isfinite(gain), gain, -np.inf)
    for values, new in zip(state, (trial, trial_g, trial_ratio), strict=True):
        values[accepted] = new[accepted]
    return accepted


def _around(u: Float[np.ndarray, "n p"]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return center and factor of the normal distribution of particles; None where it has no density."""
    center, factor = frame(u)
    return None if factor is None else (center, factor)


def _wide_factor(center: np.ndarray, factor: np.ndarray, prior: np.ndarray | None) -> Float[np.ndarray, "p p"]:
    """Return the factor of the proposal in units of the fit: as wide as the heated fit and the spread prior."""
    dim = len(center)
    wide = HEAT**2 * np.eye(dim)
    if prior is not None:
        u = np.linalg.solve(factor, (prior - center).T).T
        size = np.linalg.norm(u, axis=1)
        inner = u[size <= np.quantile(size, INNER)]
        middle = np.mean(inner, 0)
        # Around the fit, so that a prior far from it is reached, too.
        wide += PRIOR_SPREAD**2 * (inner - middle).T @ (inner - middle) / len(inner) + np.outer(middle, middle)
    return np.linalg.cholesky(wide)


def _away(
    u: Float[np.ndarray, "n p"], draws: Float[np.ndarray, "s p"], random: np.random.Generator
) -> Bool[np.ndarray, " n"]:
    """Tell which points are where no draw is: farther from all of them than draws are from each other."""
    order = random.permutation(len(draws))
    split = min(NUM_NEAR, len(draws) // 2)
    near, reference = draws[order[:split]], draws[order[split : split + NUM_REFERENCE]]
    return _distances(u, near) > np.max(_distances(reference, near))


def _distances(points: Float[np.ndarray, "n p"], near: Float[np.ndarray, "s p"]) -> Float[np.ndarray, " n"]:
    """Return the squared distance of every point from the nearest of others."""
    crossed = points @ near.T
    return np.min(np.sum(near**2, 1) - 2.0 * crossed, axis=1) + np.sum(points**2, 1)
