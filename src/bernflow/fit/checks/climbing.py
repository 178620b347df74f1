"""Newton paths from where mass may be: the prior, far out, heated draws, points of a scan, ends of a tempered run."""

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.diagnostics.elsewhere import Effect, effect_of
from bernflow.fit.checks.evidence import Evidence, Sighting, Subject
from bernflow.fit.checks.probes import missed_modes, ranked, stack
from bernflow.fit.settings import Settings
from bernflow.fit.start import Gaussian
from bernflow.fit.wide_start import finder
from bernflow.fit.work import SMALL, effort_for_start, work
from bernflow.keys import generator, nth
from bernflow.precision import use_precision
from bernflow.preflight import prior_draws
from bernflow.target import Target

Points = Float[np.ndarray, "n p"]

# Paths, where the density is little work, and where it is more or has loops.
NUM_PATHS, NUM_PATHS_OF_MORE_WORK = 64, 16
# In more dimensions a path takes long; there are half as many for each doubling.
FEW_DIM = 10
# Draws of the prior are spread around their center so many times as far as they are.
PRIOR_SPREADS = (1.0, 1.0, 3.0, 10.0)
# Without a prior: normal draws of a standard deviation between 1 and this.
WIDEST = 100.0


class Paths:
    """Are there modes, at the ends of Newton paths, that no draw of the fit is near?"""

    def applies(self, subject: Subject, evidence: Evidence) -> bool:
        """Fits that began with such paths."""
        return subject.probes is not None and evidence.lost is None and bool(np.isfinite(subject.alone.log_evidence))

    def run(self, subject: Subject, evidence: Evidence) -> Evidence:
        """Weigh the modes; climb to more of them if the surroundings of the fit are looked at."""
        target, draws, log_evidence, probes = subject.target, subject.draws, subject.alone.log_evidence, subject.probes
        assert probes is not None
        if evidence.points is None:
            found, _ = missed_modes(probes, target, draws, log_evidence, subject.key)
            return evidence.replace(sightings=(Sighting(found, Effect(), None),))
        climb_key, mode_key = subject.search_keys[2:4]
        first, *others = evidence.sightings
        nowhere = np.empty((0, target.dim))
        arrived = others[0].found.points if others else nowhere
        ends = nowhere if evidence.ends is None else evidence.ends
        probes, num, kind = climb(target, subject.settings, probes, (evidence.points, arrived, ends), climb_key)
        found, places = missed_modes(probes, target, draws, log_evidence, mode_key)
        # More exact than a tempered run.
        seen = Sighting(found, effect_of(found, draws), places)
        looked = (*evidence.looked[:1], f"{num} starts{kind}", *evidence.looked[1:])
        return evidence.replace(looked=looked, sightings=(first, seen, *others))


def climb(
    target: Target,
    settings: Settings,
    probes: Gaussian,
    places: tuple[Points, Points, Points],
    key: Key[Array, ""],
) -> tuple[Gaussian, int, str]:
    """Return probes with those that more paths have found, the best first, the number of all, and their origin.

    Args:
        target: the posterior.
        settings: those of the fit, which has compiled the search for a start.
        probes: what the paths of the start have found.
        places: points where modes may be, the most promising first; points that mass was found at, of which one batch
            is taken; and points that are all taken.
        key: makes the starts.
    """
    batch = len(probes.loc)
    num = num_paths(target) * settings.checks.times // batch
    found = [probes]
    find = finder(target.dim).with_effort(effort_for_start(target))
    promising, arrived, ends = places
    with use_precision(settings.precision):
        points, has_prior = _points(target, promising, num, batch, key)
        if len(arrived):
            points.append(np.resize(generator(nth(key, 0)).permutation(arrived), (batch, target.dim)))
        points += [np.resize(ends[i : i + batch], (batch, target.dim)) for i in range(0, len(ends), batch)]
        for i, part in enumerate(points):
            found.append(jax.tree.map(np.asarray, find(target, part, nth(key, i + 1))))
    kind = " (some of them draws of the prior)" if has_prior and num else ""
    return ranked(stack(found)), len(found) * batch, kind


def num_paths(target: Target) -> int:
    """Choose the number of paths by what one costs."""
    most = NUM_PATHS if work(target) < SMALL else NUM_PATHS_OF_MORE_WORK
    return int(most / max(1.0, target.dim / FEW_DIM))


def _points(
    target: Target, promising: Float[np.ndarray, "n p"], num: int, batch: int, key: Key[Array, ""]
) -> tuple[list[Float[np.ndarray, "k p"]], bool]:
    """Return batches of starts: in turn from the prior, or from far out without one, and from promising points."""
    random = generator(key)
    total = num * batch
    outer = np.geomspace(1.0, WIDEST, max(total, 2))[:total, None] * random.standard_normal((total, target.dim))
    has_prior = False
    drawn = prior_draws(target, key, batch, num)
    if drawn is not None and total:
        has_prior, center = True, np.median(drawn, 0)
        spread = np.resize(PRIOR_SPREADS, total)[:, None]
        outer = center + spread * (drawn[np.arange(total) % len(drawn)] - center)
    half = total // 2
    first, others = promising[: half // 2], promising[random.permutation(len(promising))]
    inner = np.concatenate([first, others])[: total - half]
    points = np.concatenate([outer[:half], inner, outer[half:]])[:total]
    points = points[random.permutation(total)] if total else points
    return [points[i * batch : (i + 1) * batch] for i in range(num)], has_prior
