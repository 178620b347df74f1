"""The verdict: may the draws be used as they are, with weights, or not at all?

With chi^2 = 1/ESS - 1, Cauchy-Schwarz gives for every function f of finite variance

    |E_p f - E_q f| <= sd_q(f) sqrt(chi^2(p || q)),

so an ESS fraction of 0.96 keeps every mean within 0.2 sd of the posterior's. That bound needs a trustworthy estimate
of chi^2, and k-hat says whether there is one: above 0.5 the variance of the weights is infinite, and a tail may hide
what no draw has seen.

The rules are the functions of this module, from top to bottom in the order in which they are applied. Each returns a
finding with the best verdict that it allows; the verdict is the worst of these.

1. `improper`: poor if the density does not decay along some parameters.
2. `unresolved`: poor if draws or densities are not resolved in double precision.
3. `_invalid`: poor if a log weight is NaN or +inf.
4. `_missing`: mass found elsewhere makes a fit poor above 5 %, and at best usable above 1 % or where it changes a mean
   by 0.1 sd or a standard deviation by 10 %.
5. `_of_weights`: the agreement of the draws with the density, in the order of its branches.
6. `_unsearched`: with a high k-hat the weights do not say what the draws do not reach. If no search outside of the
   draws has looked there, nearly equal weights are at best usable, and others are poor.

`fit.checks` finds out what 1, 2 and 4 need; that takes the target and the flow.

Share of the verdicts over 60 samples of 20,000 draws each, p the posterior and q the fit:

| p and q                                                        | good | usable | poor |
|----------------------------------------------------------------|------|--------|------|
| sd 0.98 in 10 dimensions; Student-t(100) by a normal           | 1.00 | 0      | 0    |
| mean off by 0.1 sd                                             | 1.00 | 0      | 0    |
| sd 0.9 in one dimension; in 10                                 | 0.98; 0 | 0.02; 1 | 0 |
| mean off by 0.25 sd; sd 1.2                                    | 0    | 1.00   | 0    |
| sd 0.8 in one dimension; in 10                                 | 0; 0 | 1; 0.97 | 0; 0.03 |
| sd 0.5 in one dimension                                        | 0    | 0.12   | 0.88 |
| mean-field normal of a correlation of 0.6; of 0.9              | 0; 0 | 0.95; 0 | 0.05; 1 |
| Student-t(3) by a normal                                       | 0    | 0.47   | 0.53 |
| normal with 5 % of sd 5 missed; 2 % of sd 10                   | 0; 0 | 0.37; 0.77 | 0.63; 0.23 |
| normal with 0.5 % of sd 10 missed                              | 0.01 | 0.94   | 0.05 |
| two equal modes, one missed, 4 or 6 sd away                    | 0    | 0      | 1.00 |
| two equal modes, one missed, 9 sd away                         | 0.78 | 0      | 0.22 |

The last row is a limit of every such diagnostic: a mode that no draw has reached leaves no trace in the
weights. Only other points can tell; what was found there enters as `elsewhere`.
"""

import dataclasses

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bernflow.diagnostics import importance
from bernflow.diagnostics.elsewhere import Elsewhere
from bernflow.diagnostics.findings import (
    GOOD_KHAT,
    IMPROPER,
    INVALID,
    MISSING,
    MISSING_USABLE,
    SKIPPED,
    UNRESOLVED,
    UNSEARCHED,
    USABLE_ESS,
    USABLE_KHAT,
    WEIGHTS,
    ZERO_DENSITY,
    Diagnostics,
    Finding,
    Verdict,
    remark,
)
from bernflow.diagnostics.margins import margins
from bernflow.errors import ArgumentError

GOOD_ESS = 0.96
# Weights this even are good whatever the shape of their tail: the largest in units of their mean, and the ESS fraction.
CONSTANT_RATIO, CONSTANT_ESS = 1.25, 0.999
EVEN_ESS = 0.995
# Where margins are right, the ESS fraction that is good in so many dimensions holds for every so many of them, down to
# a least.
GOOD_ESS_DIM, LEAST_GOOD_ESS = 10, 0.5
# Highest k-hat and least ESS fraction at which the bulk is accurate.
BULK_KHAT, BULK_ESS = 1.0, 0.9
# Pairs of the highest k-hat and the least ESS fraction at which that is so without a search outside of the draws.
AGREEING_LIMITS = ((1.5, 0.99), (np.inf, 0.999))
# Below this the tail of the weights holds too few draws to call anything good.
MIN_DRAWS_GOOD = 1000
# With a lower ESS fraction moments that are right do not make a fit usable: others are wrong.
LEAST_RELIEVED_ESS = 0.5
# Missing mass that makes a fit poor.
MISSING_POOR = 0.05
# Of the same mass, found by heated draws and by other starts, the latter say more: that there is a mode.
MODES_FIRST = 0.8
CAUSES_OF_IMPROPER = (
    "a flat prior, separated classes, columns that repeat each other, a scale that may become zero, values that are "
    "clipped, and a log density of the wrong sign"
)
LOST_TAILS = "the fit does not cover the tails of the posterior, and weights cannot correct that"
NO_TAILS = "trust means of bounded quantities and central intervals, but not tail probabilities"


def improper(parameters: str, until: float) -> Finding:
    """Return the finding that the density does not decay along parameters, up to so many standard deviations."""
    return Finding(
        IMPROPER,
        "poor",
        f"the posterior seems to be improper, because the density does not decay along {parameters} within {until:.0e} "
        "standard deviations of the fit",
        f"give these parameters a proper prior, and look for {CAUSES_OF_IMPROPER}",
        {"until": until},
        parameters,
    )


def unresolved(what: str) -> Finding:
    """Return the finding that draws or densities are lost in rounding; `what` says which."""
    return Finding(
        UNRESOLVED,
        "poor",
        f"{what}, so the weights say nothing",
        "check the sign of the log density, center and scale the data and parameters, and give every parameter a "
        "proper prior",
    )


def _invalid(num: int, num_draws: int) -> Finding:
    return Finding(
        INVALID,
        "poor",
        f"the log weight is NaN or +inf at {num} of {num_draws} draws",
        "check the model's log density, or fit with precision='float64'",
        {"num": num},
    )


def _missing(found: Elsewhere, num_parts: int) -> Finding | None:
    """Return what mass found elsewhere means for the fit; None if it is too little to matter."""
    effect, change = found.effect, ""
    if found.share <= MISSING_USABLE and not effect.matters:
        return None
    share = f"{100 * found.share:.1f} %" if found.share >= 0.0005 else "less than 0.1 %"
    where = "in modes that this fit does not cover" if found.modes else "around this fit, outside of its draws"
    who = "other starts" if found.modes else "draws with heated noise"
    if effect.matters:
        change = f", which changes the mean of {found.label} by {effect.mean_error:.2g} sd"
        change += f" and makes its sd {1.0 + effect.sd_error:.2g} times as large" if effect.sd_error else ""
    return Finding(
        MISSING,
        "poor" if found.share > MISSING_POOR else "usable",
        f"{who} found {share} of the posterior mass {where}{change}",
        f"fit a mixture with components={num_parts + 1} or more",
        {"share": found.share, "mean_error": effect.mean_error, "sd_error": effect.sd_error},
        found.label,
    )


def _of_weights(
    log_weights: Float[np.ndarray, " s"],
    khat: float,
    ess: float,
    ess_se: float,
    draws: Float[np.ndarray, "s p"] | None = None,
) -> Finding:
    """Return what the importance weights say; with the draws, of the margins, too."""
    as_they_are = "the draws can be used as they are"

    def say(level: Verdict, cause: str, advice: str = "", **more: float) -> Finding:
        return Finding(WEIGHTS, level, cause, advice, {"khat": khat, "ess_fraction": ess, **more})

    num, surely = len(log_weights), ess - 2 * ess_se
    constant = ess >= CONSTANT_ESS and _largest_ratio(log_weights) <= CONSTANT_RATIO
    even = constant or (khat <= USABLE_KHAT and surely >= EVEN_ESS)
    if even or (khat <= GOOD_KHAT and surely >= GOOD_ESS):
        if num < MIN_DRAWS_GOOD:
            few = f"judged by {num} draws only"
            return say("usable", few, f"at least {MIN_DRAWS_GOOD} are needed to call a fit good")
        if even:
            return say("good", "the importance weights are nearly equal", as_they_are, even=1.0)
        return say("good", as_they_are)
    if draws is not None and num >= MIN_DRAWS_GOOD and may_be_good(khat, ess, draws.shape[1]):
        errors = margins(draws, log_weights)
        if errors.are_right:
            mean, sd = f"{max(errors.mean, 0.01):.2f} sd", f"{max(100 * errors.sd, 1.0):.0f} % of the posterior's"
            right = f"by the importance weights every mean is within {mean} and every standard deviation within {sd}"
            return say("good", right, as_they_are, mean_error=errors.mean, sd_error=errors.sd)
    if khat <= USABLE_KHAT and ess >= USABLE_ESS:
        weighted = "draws, summaries and figures are weighted by default"
        return say("usable", "importance weights correct the remaining error", weighted)
    if khat <= BULK_KHAT and ess >= BULK_ESS:
        return say("usable", "the bulk is accurate, but the far tails are not", NO_TAILS)
    if ess >= BULK_ESS:
        return say(
            "usable",
            "the draws agree with the density where they are, but with a k-hat above 1 the weights say nothing about "
            "mass that the draws do not reach",
            "trust central intervals at most",
        )
    if ess >= USABLE_ESS:
        return say("poor", LOST_TAILS, "do not use the draws")
    far = "the fit is far from the posterior, and a few draws carry all the weight"
    return say("poor", far, "do not use the draws")


def _unsearched(alone: Diagnostics, elsewhere: Elsewhere | None) -> Finding | None:
    """Return that the tails are open, if a search had nowhere to look or (None) was not made."""
    khat, ess = alone.khat, alone.ess_fraction
    if (elsewhere is not None and elsewhere.looked) or not khat > USABLE_KHAT or alone.verdict == "poor":
        return None
    if alone.weights_are_even:  # while a fit is trained, no search is made
        why = "the importance weights are nearly equal, but nothing was looked for outside of the draws, and k-hat is"
        return None if elsewhere is None else Finding(UNSEARCHED, "usable", f"{why} {khat:.2f}", NO_TAILS)
    if khat <= BULK_KHAT or any(khat <= highest and ess >= least for highest, least in AGREEING_LIMITS):
        return None
    return Finding(UNSEARCHED, "poor", LOST_TAILS, "do not use the draws")


def relieved(alone: Diagnostics) -> Diagnostics:
    """Return a judgment by the weights where draws from a wider distribution say that all moments are right.

    A high k-hat comes from tails that the draws do not reach, and so do the weights of wider draws not have it.
    """
    found = [finding for finding in alone.findings if finding.kind == WEIGHTS and finding.level == "poor"]
    if not found or alone.ess_fraction < LEAST_RELIEVED_ESS:
        return alone
    cause = "by draws with heated noise all means and standard deviations are right, but the far tails are not"
    usable = dataclasses.replace(found[0], level="usable", cause=cause, advice=NO_TAILS)
    return dataclasses.replace(alone, findings=tuple(usable if each is found[0] else each for each in alone.findings))


def may_be_good(khat: float, ess: float, dim: int) -> bool:
    """Tell whether a fit in so many dimensions is good if its margins are right."""
    return khat <= USABLE_KHAT and ess >= max(LEAST_GOOD_ESS, GOOD_ESS ** (dim / GOOD_ESS_DIM))


def _largest_ratio(log_weights: Float[np.ndarray, " s"]) -> float:
    """Return the largest weight in units of the mean weight."""
    return float(1.0 / np.mean(np.exp(log_weights - log_weights.max())))


def judge(
    log_weights: ArrayLike,
    *,
    draws: Float[np.ndarray, "s p"] | None = None,
    missing_mass: float | None = None,
    elsewhere: Elsewhere | None = None,
    num_parts: int = 1,
    num_failed_steps: int = 0,
    num_resamples: int = 50,
) -> Diagnostics:
    """Judge a fit by the importance weights of fresh draws and a search; the rules are in the module's documentation.

    Args:
        log_weights: log p - log q at draws of q, (s,); at least 1,000 for "good", 20,000 recommended.
        draws: these draws, unconstrained; with them a fit in many dimensions is "good" if its margins are right.
        missing_mass: share of the posterior mass seen by other restarts that q does not cover. Above 0.01 the
            verdict is at best "usable", above 0.05 "poor".
        elsewhere: what a search outside of the draws has found. Where it had nowhere to look, k-hat counts even if
            the weights are nearly equal. None, as while a fit is trained, judges by the weights alone.
        num_parts: number of flows that q is a mixture of.
        num_failed_steps: number of training steps that were skipped as not finite; mentioned, not judged.
        num_resamples: number of bootstrap samples behind the standard errors.

    Example:
        >>> judge(np.random.default_rng(1).normal(size=4000) * 0.01).verdict
        'good'
    """
    alone = judge_weights(log_weights, draws, num_failed_steps, num_resamples)
    return with_search(alone, missing_mass, elsewhere, num_parts)


def judge_weights(
    log_weights: ArrayLike,
    draws: Float[np.ndarray, "s p"] | None = None,
    num_failed_steps: int = 0,
    num_resamples: int = 50,
) -> Diagnostics:
    """Judge a fit by the importance weights alone, for `with_search`; the arguments are those of `judge`."""
    raw = np.asarray(log_weights, dtype=np.float64)
    num, num_nonfinite = raw.size, int(np.sum(~np.isfinite(raw)))
    invalid = np.isnan(raw) | (raw == np.inf)
    # What cannot be weighed counts as weight zero in the figures and as "poor" in the verdict.
    raw = np.where(invalid, -np.inf, raw)
    khat, ess = importance.psis(raw)[1], importance.ess_fraction(raw)
    khat_se, ess_se = importance.bootstrap_errors(raw, num_resamples)
    elbo, elbo_se = importance.elbo(raw)
    evidence, evidence_se = importance.log_evidence(raw)
    findings = [_of_weights(raw, khat, ess, ess_se, draws)]
    if invalid.any():
        findings.append(_invalid(int(np.sum(invalid)), num))
    elif num_nonfinite:
        zero = f"the target density is zero at {num_nonfinite} of {num} draws"
        findings.append(remark(ZERO_DENSITY, zero, num=num_nonfinite))
    if num_failed_steps:
        skipped = f"{num_failed_steps} training steps were not finite and were skipped"
        findings.append(remark(SKIPPED, skipped, num=num_failed_steps))
    return Diagnostics(
        khat=khat,
        khat_se=khat_se,
        ess_fraction=ess,
        ess_fraction_se=ess_se,
        elbo=elbo,
        elbo_se=elbo_se,
        log_evidence=evidence,
        log_evidence_se=evidence_se,
        num_draws=num,
        num_nonfinite=num_nonfinite,
        findings=tuple(findings),
    )


def with_search(
    diagnostics: Diagnostics, missing_mass: float | None, elsewhere: Elsewhere | None, num_parts: int = 1
) -> Diagnostics:
    """Add what was found outside of the draws to a judgment by the weights; the arguments are those of `judge`."""
    if missing_mass is not None and not 0.0 <= missing_mass <= 1.0:
        raise ArgumentError(f"missing_mass={missing_mass!r}: expected a share between 0 and 1, or None.")
    found, modes = elsewhere or Elsewhere(()), missing_mass or 0.0
    # What other restarts have found counts if it is more.
    if modes > 0.0 and modes >= MODES_FIRST * found.share:
        found = dataclasses.replace(found, share=max(modes, found.share), modes=True)
    findings = [_missing(found, num_parts), _unsearched(diagnostics, elsewhere)]
    if missing_mass is not None or found.looked or found.share > 0.0:
        effect = max(found.effect.mean_error, abs(found.effect.sd_error))
        diagnostics = dataclasses.replace(diagnostics, missing_mass=found.share, missing_effect=effect)
    return diagnostics.adding(*filter(None, findings), looked=found.places() or None)
