"""What to do next, by verdict, figures and settings; code stands between backquotes."""

import numpy as np

from bernflow.diagnostics.verdict import MISSING_USABLE, USABLE_ESS, USABLE_KHAT
from bernflow.report.material import Material

SIMPLE_FAMILIES = ("gaussian", "gaussian-fullrank", "student-t", "bernstein-meanfield")
MORE_MODES = (
    "A mode that no draw, heated draw or path has reached leaves no trace. Where you expect several, fit with "
    "`restarts=8`, which looks for more of them."
)
EXACT = "For exact draws, run `post.to_nuts()`: NUTS that starts from this fit and is preconditioned by it."
# A rise of the ELBO counts as one from so many standard errors and nats on.
RISE_ERRORS, RISE_NATS = 4.0, 0.02


def advise(material: Material) -> list[str]:
    """Return sentences in the order in which they should be tried."""
    d, settings = material.diagnostics, material.settings
    if d.verdict == "good":
        advice = [f"Use {'these draws' if material.weighted else '`post.draws()`'} as they are."]
        if settings.get("restarts", 1) == 1 and settings.get("components", 1) == 1:
            advice.append(MORE_MODES)
        return advice
    weights_work = d.khat <= USABLE_KHAT and d.ess_fraction >= USABLE_ESS
    advice = _first_steps(material, weights_work)
    if d.missing_mass is not None and d.missing_mass > MISSING_USABLE:
        advice.append("Fit a mixture, which covers several modes: `bf.fit(..., components=2)` or more.")
    if d.num_nonfinite:
        advice.append(
            f"The density is zero or not a number at {d.num_nonfinite:,} of {d.num_draws:,} draws: check the supports "
            "of the parameters and the log density of the model there."
        )
    if settings.get("interrupted"):
        advice.append("The training was interrupted: `post.refine()` trains on.")
    elif still_rising(material) and not material.parts:
        advice.append("The ELBO was still rising when the training ended: `post.refine()`, or more `steps`.")
    elif material.parts:  # a mixture cannot be refined
        advice.append("Fit again with more `steps`.")
    else:
        advice.append("Train on with `post.refine()`, or fit again with more `steps`.")
    if settings.get("family") in SIMPLE_FAMILIES:
        advice.append(f'The family {settings["family"]!r} is a simple one; the default `family="bernstein"` is richer.')
    elif not weights_work and settings.get("base", "normal") == "normal":
        advice.append('Heavy tails may need a heavier base: `bf.fit(..., base="logistic")`.')
    if d.verdict == "poor":
        advice.append(
            "Look for a better start and for other modes with `restarts=8`; reparameterize the model (a non-centered "
            "hierarchy, scales on the log scale, standardized covariates)."
        )
    return [*advice, EXACT]


def _first_steps(material: Material, weights_work: bool) -> list[str]:
    """Say what may be done with the draws as they are."""
    if material.diagnostics.verdict == "poor":
        return ["Do not use these draws: they are not those of the posterior."]
    if not weights_work:
        return [
            "Trust means of bounded quantities and central intervals. Do not trust probabilities of far tails, and do "
            "not repair them by weights."
        ]
    if material.weighted:
        return ["Use these draws, which are corrected by their importance weights."]
    return ["Use `post.draws(weighted=True)`, on the command line `--resample`: weights correct the remaining error."]


def still_rising(material: Material) -> bool:
    """Tell whether the ELBO rose over the last fifth of the training by more than its Monte Carlo error."""
    elbo = np.asarray(material.history.get("elbo", ()), dtype=np.float64)
    error = np.asarray(material.history.get("elbo_se", ()), dtype=np.float64)
    size = len(elbo) // 10
    if size < 1 or len(error) != len(elbo):
        return False
    last, before = slice(-size, None), slice(-2 * size, -size)
    rise = elbo[last].mean() - elbo[before].mean()
    noise = np.sqrt(np.sum(error[last] ** 2) + np.sum(error[before] ** 2)) / size
    return bool(np.isfinite(rise) and rise > max(RISE_ERRORS * noise, RISE_NATS))
