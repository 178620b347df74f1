"""What to do next with a fit: one list, which the posterior, its warnings, the report and the command line show.

Code stands between backquotes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bernflow.diagnostics.findings import MISSING_USABLE, USABLE_ESS, USABLE_KHAT, Diagnostics
from bernflow.diagnostics.verdict import BULK_KHAT, CAUSES_OF_IMPROPER

SIMPLE_FAMILIES = ("gaussian", "gaussian-fullrank", "student-t", "bernstein-meanfield")
# NUTS runs inside of a flow, which these families do not map onto the whole space.
BOUNDED_FAMILIES = ("bernstein-paper", "bernstein:no-tails")
MORE_MODES = (
    "A mode that no draw, heated draw or path has reached leaves no trace. Where you expect several, fit with "
    "`restarts=8`, which looks for more of them."
)
EXACT = "For exact draws, run `post.to_nuts()`: NUTS that starts from this fit and is preconditioned by it."
MIXTURE = "Fit a mixture, which covers several modes"
# A rise of the ELBO counts as one from so many standard errors and nats on.
RISE_ERRORS, RISE_NATS = 4.0, 0.02

History = Mapping[str, Any]


def advise(
    diagnostics: Diagnostics, history: History, settings: Mapping[str, Any], weighted: bool, num_parts: int = 1
) -> list[str]:
    """Return sentences in the order in which they should be tried.

    Args:
        diagnostics: the verdict.
        history: "elbo" and "elbo_se" of the training.
        settings: how the fit was made.
        weighted: draws are weighted by default.
        num_parts: number of parts of a mixture.
    """
    d = diagnostics
    if d.verdict == "good":
        advice = ["Use `post.draws()` as they are."]
        if settings.get("restarts", 1) == 1 and settings.get("components", 1) in (1, None) and num_parts == 1:
            advice.append(MORE_MODES)
        return advice
    if d.improper is not None:
        return [
            "Do not use these draws: there may be no distribution to draw from.",
            f"Give {d.improper} a proper prior. Look for {CAUSES_OF_IMPROPER}.",
        ]
    weights_work = d.khat <= USABLE_KHAT and d.ess_fraction >= USABLE_ESS
    advice = [_first_step(d, weights_work, weighted)]
    if d.missing_mass is not None and d.missing_mass > MISSING_USABLE:
        advice.append(f"{MIXTURE}: `bf.fit(..., components={max(2, num_parts + 1)})` or more.")
    if d.num_nonfinite:
        advice.append(
            f"The density is zero or not a number at {d.num_nonfinite:,} of {d.num_draws:,} draws: check the supports "
            "of the parameters and the log density of the model there."
        )
    advice += _training(history, settings)
    if settings.get("family") in SIMPLE_FAMILIES:
        advice.append(
            f'The family {settings["family"]!r} is a simple one; the default `family="bernstein"` is more flexible.'
        )
    elif not weights_work and settings.get("family") == "bernstein" and settings.get("base") == "normal":
        advice.append('Heavy tails may need a heavier base: `bf.fit(..., training=bf.Training(base="logistic"))`.')
    if d.verdict == "poor":
        start = "" if settings.get("restarts", 1) > 1 else "Look for a better start and other modes with `restarts=8`. "
        advice.append(
            f"{start}Reparameterize the model (a non-centered hierarchy, scales on the log scale, standardized "
            "covariates)."
        )
    if num_parts == 1 and settings.get("family") not in BOUNDED_FAMILIES:
        advice.append(EXACT)
    return advice


def beyond_status(diagnostics: Diagnostics, advice: list[str]) -> list[str]:
    """Return the advice that the status, which is shown before it, does not give already."""
    if diagnostics.improper is not None:
        return []
    return [sentence for sentence in advice[1:] if not (diagnostics.misses_mass and sentence.startswith(MIXTURE))]


def _first_step(diagnostics: Diagnostics, weights_work: bool, weighted: bool) -> str:
    """Say what may be done with the draws as they are."""
    if diagnostics.verdict == "poor":
        return "Do not use these draws: they do not follow the posterior."
    if diagnostics.khat > BULK_KHAT and not diagnostics.weights_are_even:
        return "Trust central intervals at most: the weights say nothing about mass that the draws do not reach."
    if not weights_work:
        return (
            "Trust means of bounded quantities and central intervals. Do not trust probabilities in the far tails, and "
            "do not try to repair them by weights."
        )
    if weighted:
        return "Use `post.draws()` as they are: they are resampled by their importance weights, which corrects the fit."
    if diagnostics.weights_correct:
        return (
            "Load the posterior with its model, `bf.load(path, model=...)`: its draws are then corrected by their "
            "importance weights."
        )
    return "Use `post.draws(weighted=True)`: weights correct the remaining error where the fit has mass at all."


def _training(history: History, settings: Mapping[str, Any]) -> list[str]:
    """Say whether more training promises anything."""
    if settings.get("interrupted"):
        return ["The training was interrupted: `post.refine()` trains on."]
    if settings.get("out_of_time"):
        return ["The time limit has ended the training: `post.refine()` trains on, or allow more by `time_limit=`."]
    if still_rising(history):
        return ["The ELBO was still rising when the training ended: train on with `post.refine()`."]
    return []


def still_rising(history: History) -> bool:
    """Tell whether the ELBO rose over the last fifth of the training by more than its Monte Carlo error."""
    return rise(history) is not None


def rise(history: History) -> float | None:
    """Return by how many nats the ELBO rose from the last but one tenth of the training to the last; None by noise."""
    elbo = np.asarray(history.get("elbo", ()), dtype=np.float64)
    error = np.asarray(history.get("elbo_se", ()), dtype=np.float64)
    size = len(elbo) // 10
    if size < 1 or len(error) != len(elbo):
        return None
    last, before = slice(-size, None), slice(-2 * size, -size)
    gained = elbo[last].mean() - elbo[before].mean()
    noise = np.sqrt(np.sum(error[last] ** 2) + np.sum(error[before] ** 2)) / size
    return float(gained) if np.isfinite(gained) and gained > max(RISE_ERRORS * noise, RISE_NATS) else None
