"""The judgment of a fit: by its weights, by what lies elsewhere, and by how the posterior falls far out."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Key

from bernflow.diagnostics.elsewhere import NOT_SEARCHED
from bernflow.diagnostics.rounding import unresolved
from bernflow.diagnostics.verdict import Diagnostics, say_improper, say_unresolved
from bernflow.fit.deadline import Deadline
from bernflow.fit.elsewhere import Fit, Search, look_elsewhere
from bernflow.fit.judging import Look
from bernflow.fit.probes import missed_modes
from bernflow.fit.rays import find_endless
from bernflow.fit.settings import Settings
from bernflow.fit.start import Gaussian
from bernflow.target import Target

# After fewer steps a poor fit needs no other explanation.
MIN_STEPS_THOROUGH = 1000
# Under a time limit, the least seconds for that explanation: most of them are spent compiling.
THOROUGH_SECONDS = 6.0
# A scale whose logs spread over so many units, nine orders of magnitude, is followed along curved rays at any verdict.
WIDE_LOG_SCALE = 20.0
# A poor fit that is right where it looks may miss mass that a mixture would hold; with a lower ESS it is wrong there.
LEAST_ESS = 0.5
# Under a time limit, the least share of it for a look elsewhere.
SEARCH_SHARE = 0.03


class Evidence(NamedTuple):
    """What is judged.

    Attributes:
        seen: the fit with its draws.
        target: the posterior.
        settings: those of the fit.
        probes: Gaussians that the starts have found; None without such starts, or where their rows are spread.
        steps: number of training steps.
    """

    seen: Look
    target: Target
    settings: Settings
    probes: Gaussian | None
    steps: int


def final_judgment(
    evidence: Evidence, deadline: Deadline, keys: tuple[Key[Array, ""], Key[Array, ""]]
) -> tuple[Diagnostics, Gaussian | None]:
    """Judge a fit; return the judgment, and Gaussians where mass was found that the fit misses.

    Args:
        evidence: what is judged.
        deadline: of the fit.
        keys: for the search elsewhere, and for rays.
    """
    seen, target, settings, probes, steps = evidence
    diagnostics, places, mass_ends = seen.judge(seen.missing), None, False
    lost = unresolved(seen.draws, seen.log_weights, target.layout.labels())
    if lost is not None:
        diagnostics = say_unresolved(diagnostics, lost)
    elif diagnostics.verdict != "poor" or diagnostics.ess_fraction >= LEAST_ESS:
        search = Search(NOT_SEARCHED, None)
        if deadline.has_left(SEARCH_SHARE):
            fit = Fit(seen.distribution, seen.draws, len(seen.log_weights), diagnostics.log_evidence)
            search = look_elsewhere(fit, target, settings, probes, keys[0])
        diagnostics, places, mass_ends = seen.judge(seen.missing, search.elsewhere), search.places, search.mass_ends
    elif probes is not None and np.isfinite(diagnostics.log_evidence):
        found, _ = missed_modes(probes, target, seen.draws, diagnostics.log_evidence, keys[0])
        diagnostics = seen.judge(max(found.share, seen.missing or 0.0))
    thorough = (diagnostics.verdict == "poor" and steps >= MIN_STEPS_THOROUGH) or _has_wide_scales(seen, target)
    thorough |= settings.checks.thorough
    thorough = thorough and deadline.allows_stage(THOROUGH_SECONDS)
    start = None if probes is None else probes.at(0)
    fallen = find_endless(
        seen.distribution,
        target,
        seen.draws,
        seen.log_weights,
        keys[1],
        thorough,
        start,
        ran_away=lost is not None,
        mass_ends=mass_ends,
    )
    return diagnostics if fallen is None else say_improper(diagnostics, *fallen), places


def _has_wide_scales(seen: Look, target: Target) -> bool:
    """Tell whether a scale is spread over so many orders of magnitude that its posterior may never end."""
    logs = seen.draws[:, : target.layout.num_scales]
    if not logs.size:
        return False
    low, high = np.nanquantile(logs, (0.05, 0.95), axis=0)
    return bool(np.any(high - low > WIDE_LOG_SCALE))
