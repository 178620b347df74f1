"""Look for posterior mass where the draws of a fit do not go, as part of every verdict.

Draws with heated noise see what surrounds a fit. A tempered run from far around it ends wherever there is mass. Newton
paths from the prior, from far out, from the most promising heated draws and from where the tempered run ended climb to
modes that lie elsewhere. All go through functions that the fit has compiled already.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.diagnostics.elsewhere import Effect, Elsewhere, Found, effect_of, joined, nothing
from bernflow.diagnostics.verdict import MISSING_USABLE
from bernflow.fit.checks import Checks
from bernflow.fit.climbing import climb
from bernflow.fit.heated import draw_heated
from bernflow.fit.probes import missed_modes, stack
from bernflow.fit.settings import Settings
from bernflow.fit.start import Gaussian
from bernflow.fit.tempered import is_affordable, run_tempered
from bernflow.flows.base import AbstractDistribution
from bernflow.flows.factors import is_dense
from bernflow.keys import nth, spawn
from bernflow.precision import use_precision
from bernflow.preflight import prior_draws
from bernflow.target import Target

# Heated draws, as a share of those of the verdict, at most; in very many dimensions those that have so many
# coordinates together, and no fewer than these.
SHARE_HEATED, MAX_HEATED = 0.2, 4000
MAX_NUMBERS, MIN_HEATED = 2_000_000, 100
# What is found is confirmed by so many times as many draws.
CONFIRM = 3
# Of the same mass, found by heated draws or paths and by a tempered run, the former are more exact.
MUCH_MORE = 1.5
# With so many effective points for each dimension the covariance of what was found can be told.
POINTS_PER_DIM = 5.0
# Draws of the prior behind the proposal of a tempered run, in batches where no start has a size of its own.
NUM_PRIOR, BATCH = 128, 8


class Fit(NamedTuple):
    """A fit, and draws of it.

    Attributes:
        distribution: the fit.
        draws: draws of it; in very many dimensions only the first.
        num_draws: number of draws behind its verdict.
        log_evidence: log of the mass that it has found.
    """

    distribution: AbstractDistribution
    draws: Float[np.ndarray, "s p"]
    num_draws: int
    log_evidence: float


class Search(NamedTuple):
    """What was looked at, and what was found.

    Attributes:
        elsewhere: the result, for the verdict.
        places: Gaussians where mass was found that the fit misses, as starts of a mixture; None without any.
        mass_ends: whether mass was found farther out than the fit, and it comes to an end there.
    """

    elsewhere: Elsewhere
    places: Gaussian | None
    mass_ends: bool = False


def look_elsewhere(
    fit: Fit, target: Target, settings: Settings, probes: Gaussian | None, key: Key[Array, ""]
) -> Search:
    """Look for mass that a fit misses.

    Args:
        fit: what was fitted, with draws of it.
        target: the posterior.
        settings: those of the fit.
        probes: Gaussians that the starts have found; None without such starts, so that none are climbed from.
        key: makes draws and starts.
    """
    heat_key, more_key, climb_key, mode_key, temper_key = spawn(key, 5)
    num = num_heated(fit.num_draws, target.dim) * settings.checks.times
    heated = draw_heated(fit.distribution, target, fit.log_evidence, heat_key, num)
    found, effect = heated.found, effect_of(heated.found, fit.draws)
    if _is_notable(found, effect):
        more = draw_heated(fit.distribution, target, fit.log_evidence, more_key, CONFIRM * num).found
        found = joined(found, more, CONFIRM)
        effect = effect_of(found, fit.draws)
    looked = [f"{num:,} heated draws"]
    wider = _is_notable(found, effect)
    places = [_gaussian_of(found, fit.draws)] if wider else []
    by_modes = False
    ended, runs = _temper(fit, target, settings, BATCH if probes is None else len(probes.loc), temper_key)
    others: list[tuple[Found, Gaussian | None, float]] = []
    if probes is not None:
        probes, num_starts, kind = climb(target, settings, probes, heated, ended.points, climb_key)
        looked.append(f"{num_starts} starts{kind}")
        others.append((*missed_modes(probes, target, fit.draws, fit.log_evidence, mode_key), 1.0))
    if len(ended.points):
        others.append((ended, _gaussian_of(ended, fit.draws), MUCH_MORE))
    for other, place, times in others:
        other_effect = effect_of(other, fit.draws)
        if _is_notable(other, other_effect):
            places.append(place)
        if other.share > times * found.share or (other_effect.matters and not effect.matters):
            found, effect, by_modes = other, other_effect, True
    label = target.layout.labels()[effect.parameter] if effect.matters else ""
    known = [place for place in places if place is not None]
    elsewhere = Elsewhere((*looked, *runs), found.share, effect, label, by_modes)
    return Search(elsewhere, stack(known) if known else None, wider and heated.ends)


def _temper(
    fit: Fit, target: Target, settings: Settings, batch: int, key: Key[Array, ""]
) -> tuple[Found, tuple[str, ...]]:
    """Return the mass that tempered runs have found away from a fit, and what was looked at, in words."""
    checks: Checks = settings.checks
    found, sizes = nothing(target.dim), []
    if not is_affordable(target, checks):
        return found, ()
    with use_precision(settings.precision):
        prior = prior_draws(target, nth(key, 0), batch, NUM_PRIOR // batch)
    # From the prior; thorough checks go from far around the fit, too.
    for i, drawn in enumerate([prior, None][: checks.runs]):
        ended = run_tempered(target, fit.draws, drawn, checks.moves, nth(key, i + 1))
        if ended is None:
            continue
        sizes.append(len(ended.points))
        found = max(found, ended.found(fit.log_evidence), key=lambda each: each.share)
    if not sizes:
        return found, ()
    kind = "a tempered run" if len(sizes) == 1 else f"{len(sizes)} tempered runs"
    return found, (f"{kind} of {sizes[0]:,} particles",)


def _is_notable(found: Found, effect: Effect) -> bool:
    return found.share > MISSING_USABLE or effect.matters


def num_heated(num_draws: int, dim: int) -> int:
    """Return how many heated draws are made for a verdict of so many draws."""
    most = MAX_HEATED if is_dense(dim) else MAX_NUMBERS // dim
    return max(MIN_HEATED, min(most, MAX_HEATED, int(SHARE_HEATED * num_draws)))


def _gaussian_of(found: Found, draws: Float[np.ndarray, "s p"]) -> Gaussian | None:
    """Return the Gaussian of mass that was found all around a fit; None where matrices are too large."""
    dim = found.points.shape[1]
    if not is_dense(dim):
        return None
    mean, offset = found.mean(), found.points - found.mean()
    weights = found.weights()
    if found.effective() >= POINTS_PER_DIM * dim:
        root = np.sqrt(weights)[:, None] * offset
        upper = np.asarray(np.linalg.qr(root, mode="r"))
    else:  # the shape of the fit, as wide as what was found
        draws = draws[np.isfinite(draws).all(1)]
        upper = np.asarray(np.linalg.qr((draws - np.mean(draws, 0)) / np.sqrt(len(draws)), mode="r"))
        whitened = np.linalg.solve(upper.T, offset.T).T
        upper = upper * np.sqrt(weights @ np.mean(whitened**2, 1))
    factor = (np.where(np.diagonal(upper) < 0.0, -1.0, 1.0)[:, None] * upper).T
    if not np.isfinite(factor).all() or np.any(np.diagonal(factor) <= 0.0):
        return None
    return jax.tree.map(lambda leaf: leaf[None], Gaussian(mean, factor, np.asarray(-np.inf)))
