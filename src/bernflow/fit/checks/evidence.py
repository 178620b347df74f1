"""What a check is, what it is given and what it returns.

A check asks one question about a fit that its draws cannot answer, such as whether there is mass where none of them
goes. It is given the fit and what earlier checks have found, and returns that with what it has found itself.
"""

import dataclasses
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.diagnostics.elsewhere import Effect, Elsewhere, Found, effect_of
from bernflow.diagnostics.findings import MISSING_USABLE, Diagnostics
from bernflow.diagnostics.moments import MomentErrors
from bernflow.diagnostics.verdict import improper, relieved, unresolved, with_search
from bernflow.fit.checks.probes import stack
from bernflow.fit.deadline import Deadline
from bernflow.fit.settings import Settings
from bernflow.fit.start import Gaussian
from bernflow.flows.base import AbstractDistribution
from bernflow.flows.factors import is_dense
from bernflow.flows.mixture import Mixture
from bernflow.keys import spawn
from bernflow.target import Target

# With so many effective points for each dimension the covariance of what was found can be told.
POINTS_PER_DIM = 5.0


class Sighting(NamedTuple):
    """Posterior mass outside of a fit, as one check has found it.

    Attributes:
        found: the mass.
        effect: what it does to means and standard deviations.
        places: Gaussians of it, as starts of a mixture; None without any.
        modes: whether it was found around other starts, and not by draws that were spread.
        times: it counts if it is so many times as much as what more exact checks have found.
    """

    found: Found
    effect: Effect
    places: Gaussian | None
    modes: bool = True
    times: float = 1.0

    @property
    def is_notable(self) -> bool:
        """Whether it limits the verdict."""
        return is_notable(self.found, self.effect)


class Endless(NamedTuple):
    """Parameters along which the density does not decay, and up to how many standard deviations of the fit."""

    parameters: str
    until: float


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What checks have found so far.

    Attributes:
        looked: the places that were looked at, as words: "4,000 heated draws", "64 starts".
        sightings: mass outside of the fit, the most exact estimate first.
        points: points from which to look for modes, the most promising first; None before the search has begun.
        moments: errors of means and standard deviations, by heated draws; None without them.
        ends: modes of single terms of the density, as more such points; None without any.
        mass_ends: whether mass was found farther out than the fit, and it comes to an end there.
        endless: where the density does not decay, or None.
        lost: what is lost in rounding, or None.
    """

    looked: tuple[str, ...] = ()
    sightings: tuple[Sighting, ...] = ()
    points: Float[np.ndarray, "n p"] | None = None
    moments: MomentErrors | None = None
    ends: Float[np.ndarray, "n p"] | None = None
    mass_ends: bool = False
    endless: Endless | None = None
    lost: str | None = None

    def replace(self, **changes: object) -> "Evidence":
        """Return the evidence with other values of some attributes."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def with_points(self, points: Float[np.ndarray, "k p"]) -> "Evidence":
        """Return the evidence with more points, the most promising first, in turn with those that are there."""
        if self.points is None:
            return self.replace(points=points)
        rank = np.concatenate([np.arange(len(points)), np.arange(len(self.points)) + 0.5])
        return self.replace(points=np.concatenate([points, self.points])[np.argsort(rank)])

    @property
    def places(self) -> Gaussian | None:
        """Gaussians where mass was found that matters, as starts of a mixture; None without any."""
        places = [seen.places for seen in self.sightings if seen.is_notable and seen.places is not None]
        return stack(places) if places else None

    def elsewhere(self, labels: list[str]) -> Elsewhere:
        """Return the largest mass that was found; of two estimates of the same mass the more exact one."""
        share, effect, modes = 0.0, Effect(), False
        for seen in self.sightings:
            if seen.found.share > seen.times * share or (seen.effect.matters and not effect.matters):
                share, effect, modes = seen.found.share, seen.effect, seen.modes
        return Elsewhere(self.looked, share, effect, labels[effect.parameter] if effect.matters else "", modes)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A fit that is judged.

    Attributes:
        distribution: the fit.
        draws: draws of it; in very many dimensions only the first.
        log_weights: the log weights of all draws.
        alone: the verdict by these alone.
        target: the posterior.
        settings: those of the fit.
        deadline: of the fit.
        key: for the search outside of the draws.
        ray_key: for rays.
        probes: Gaussians that the starts have found; None without such starts, or where their rows are spread.
        missing: share of the mass that other restarts have found and this fit misses, or None.
        steps: number of training steps.
    """

    distribution: AbstractDistribution
    draws: Float[np.ndarray, "s p"]
    log_weights: Float[np.ndarray, " s"]
    alone: Diagnostics
    target: Target
    settings: Settings
    deadline: Deadline
    key: Key[Array, ""]
    ray_key: Key[Array, ""]
    probes: Gaussian | None = None
    missing: float | None = None
    steps: int = 0

    @property
    def search_keys(self) -> tuple[Key[Array, ""], ...]:
        """Keys of heated draws, of more of them, of paths, of modes, of tempered runs, of a scan and of terms."""
        return tuple(spawn(self.key, 7))

    def judge(self, evidence: Evidence) -> Diagnostics:
        """Return the verdict with what checks have found."""
        found = [improper(*evidence.endless)] if evidence.endless is not None else []
        found += [unresolved(evidence.lost)] if evidence.lost is not None else []
        num = len(self.distribution.components) if isinstance(self.distribution, Mixture) else 1
        elsewhere = evidence.elsewhere(self.target.layout.labels())
        right = evidence.moments is not None and evidence.moments.are_right
        alone = relieved(self.alone) if right else self.alone
        return with_search(alone, self.missing, elsewhere, num).adding(*found)


class Check(Protocol):
    """One question about a fit."""

    def applies(self, subject: Subject, evidence: Evidence) -> bool:
        """Tell whether the check is made, given what earlier ones have found."""

    def run(self, subject: Subject, evidence: Evidence) -> Evidence:
        """Return the evidence with what this check has found."""


def frame(draws: Float[np.ndarray, "s p"]) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, "p p"] | None]:
    """Return the center of draws and the triangular factor of their covariance, None where it has none."""
    center = np.mean(draws, 0)
    upper = np.linalg.qr((draws - center) / np.sqrt(len(draws)), mode="r")
    factor = (np.where(np.diagonal(upper) < 0.0, -1.0, 1.0)[:, None] * upper).T
    usable = len(draws) > draws.shape[1] and np.isfinite(factor).all() and bool(np.all(np.diagonal(factor) > 0.0))
    return center, factor if usable else None


def is_notable(found: Found, effect: Effect) -> bool:
    """Tell whether mass limits the verdict."""
    return found.share > MISSING_USABLE or effect.matters


def sight(found: Found, subject: Subject, modes: bool, times: float = 1.0) -> Sighting:
    """Return mass that was found all around a fit, with its effect, and its Gaussian if it matters."""
    effect = effect_of(found, subject.draws)
    places = gaussian_of(found, subject.draws) if is_notable(found, effect) else None
    return Sighting(found, effect, places, modes, times)


def gaussian_of(found: Found, draws: Float[np.ndarray, "s p"]) -> Gaussian | None:
    """Return the Gaussian of mass that was found, as the only one of a stack.

    None where there is no mass, or matrices are too large.
    """
    dim = found.points.shape[1]
    if not is_dense(dim) or not len(found.points):
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
