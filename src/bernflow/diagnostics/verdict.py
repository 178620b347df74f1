"""The verdict: may the draws be used as they are, with weights, or not at all?

With chi^2 = 1/ESS - 1, Cauchy-Schwarz gives for every function f of finite variance

    |E_p f - E_q f| <= sd_q(f) sqrt(chi^2(p || q)),

so an ESS fraction of 0.96 keeps every mean within 0.2 sd of the posterior's. That bound needs a trustworthy
estimate of chi^2, which k-hat tells: above 0.5 the variance of the weights is infinite, and a tail may hide
what no draw has seen.

* good: k-hat <= 0.5 and ESS fraction >= 0.96 by two standard errors; or k-hat <= 0.7 and ESS fraction >= 0.995
  by two standard errors (means within 0.07 sd, and weights that can still be trusted to tell); or ESS fraction
  >= 0.999 and no weight more than 25 % above the mean, so that the tail is too small to matter whatever its
  shape, provided that nothing was found elsewhere. At least 1,000 draws.
* good in many dimensions: k-hat <= 0.7, and all margins right by the weights (`diagnostics.margins`: means to 0.05 sd,
  standard deviations to 5 %, probabilities to 0.02, correlations to 0.1), with an ESS fraction of at least
  0.96^(p / 10) and 0.5: the ESS of p independent parameters is the product of theirs.
* usable: k-hat <= 0.7 and ESS fraction >= 0.1 (weighted draws are accurate); or k-hat <= 1 and ESS fraction
  >= 0.9 (the bulk is accurate, the far tails are not); or k-hat <= 1.5 and ESS fraction >= 0.99, or ESS fraction
  >= 0.999 whatever k-hat is (the weights have no mean and tell nothing of what the draws do not reach).
* poor: everything else, any log weight that is NaN or +inf, a posterior that seems to be improper (`say_improper`),
  and draws or densities that are not resolved in double precision (`say_unresolved`).

Mass found elsewhere makes the verdict "usable" at best above 1 %, or where it changes a mean by 0.1 sd or an sd by
10 %, and "poor" above 5 %.

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
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bernflow.diagnostics import importance
from bernflow.diagnostics.elsewhere import MEAN_ERROR, Elsewhere
from bernflow.diagnostics.margins import Margins, margins
from bernflow.errors import ArgumentError

Verdict = Literal["good", "usable", "poor"]
VERDICTS: tuple[Verdict, ...] = ("good", "usable", "poor")

GOOD_KHAT, GOOD_ESS = 0.5, 0.96
CONSTANT_RATIO, CONSTANT_ESS = 1.25, 0.999
EVEN_ESS = 0.995
USABLE_KHAT, USABLE_ESS = 0.7, 0.1
# Where margins are right, the ESS fraction that is good in so many dimensions holds for every so many of them, down to a
# least.
GOOD_ESS_DIM, LEAST_GOOD_ESS = 10, 0.5
# Highest k-hat and least ESS fraction at which the bulk is accurate.
BULK_KHAT, BULK_ESS = 1.0, 0.9
# Pairs of the highest k-hat and the least ESS fraction at which the draws agree with the density where they are.
AGREEING_LIMITS = ((1.5, 0.99), (np.inf, 0.999))
# Below this the tail of the weights holds too few draws to call anything good.
MIN_DRAWS_GOOD = 1000
MISSING_USABLE, MISSING_POOR = 0.01, 0.05
# Of the same mass, found by heated draws and by other starts, the latter tell more: where there is a mode.
MODES_FIRST = 0.8
# Where log densities overflow, k-hat may be any number.
LARGEST_SHOWN = 1000.0


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """How far a fitted posterior can be trusted.

    Attributes:
        khat: shape of the tail of the importance weights (Pareto k-hat).
        khat_se: its bootstrap standard error.
        ess_fraction: effective sample size of the importance weights per draw, from 0 to 1.
        ess_fraction_se: its bootstrap standard error.
        elbo: evidence lower bound in nats.
        elbo_se: its Monte Carlo standard error.
        log_evidence: importance sampling estimate of the log marginal likelihood in nats.
        log_evidence_se: its standard error, with the tail of the weights extrapolated where k-hat is above 0.5; a lower
            bound of it where k-hat is above 0.7.
        num_draws: number of fresh draws behind these figures.
        num_nonfinite: number of them at which the target density was zero or not a number.
        verdict: "good" (use the draws as they are), "usable" (with care, see `status`) or "poor".
        status: the sentence that says why, and what to do.
        missing_mass: share of the posterior mass that was found elsewhere, by heated draws and from other starts, and
            that this fit does not cover; None where nobody has looked.
        missing_effect: what that mass does to means and standard deviations: the largest change of a mean in standard
            deviations, or relative change of a standard deviation; None where nobody has looked.
        looked: where the fit was looked at outside of its draws ("4,000 heated draws and 64 starts"), or None.
        improper: parameters along which the density does not fall, so that the posterior seems to be improper; None
            where it falls wherever it was followed.

    Example:
        >>> post.diagnostics.verdict
        'good'
        >>> post.diagnostics.khat < 0.5 and post.diagnostics.ess_fraction > 0.96
        True
    """

    khat: float
    khat_se: float
    ess_fraction: float
    ess_fraction_se: float
    elbo: float
    elbo_se: float
    log_evidence: float
    log_evidence_se: float
    num_draws: int
    num_nonfinite: int
    verdict: Verdict
    status: str
    missing_mass: float | None = None
    improper: str | None = None
    missing_effect: float | None = None
    looked: str | None = None

    @property
    def weights_correct(self) -> bool:
        """Whether importance weights correct what the fit left over, so that draws are weighted by default."""
        # What lies elsewhere has no weight: it must not matter.
        covered = (self.missing_mass or 0.0) <= MISSING_USABLE and (self.missing_effect or 0.0) <= MEAN_ERROR
        return self.verdict == "usable" and covered and self.khat <= USABLE_KHAT and self.ess_fraction >= USABLE_ESS


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
    """Judge a fit by the importance weights of fresh draws; the rule is in the module's documentation.

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
    if missing_mass is not None and not 0.0 <= missing_mass <= 1.0:
        raise ArgumentError(f"missing_mass={missing_mass!r}: expected a share between 0 and 1, or None.")
    raw = np.asarray(log_weights, dtype=np.float64)
    num_nonfinite = int(np.sum(~np.isfinite(raw)))
    broken = int(np.sum(np.isnan(raw) | (raw == np.inf)))
    # What cannot be weighed counts as weight zero in the figures and as "poor" in the verdict.
    raw = np.where(np.isnan(raw) | (raw == np.inf), -np.inf, raw)
    khat = importance.psis(raw)[1]
    ess = importance.ess_fraction(raw)
    khat_se, ess_se = importance.bootstrap_errors(raw, num_resamples)
    elbo, elbo_se = importance.elbo(raw)
    evidence, evidence_se = importance.log_evidence(raw)

    verdict, why = _judge_weights(raw, khat, ess, ess_se, elsewhere is None or bool(elsewhere.looked))
    enough = draws is not None and raw.size >= MIN_DRAWS_GOOD
    if verdict == "usable" and enough and may_be_good(khat, ess, draws.shape[1]):
        found_off = margins(draws, raw)
        if found_off.are_right:
            verdict, why = "good", _say_right(found_off)
    figures = _figures(khat, ess, verdict)
    sentences = [f"{verdict.capitalize()} ({figures}): {why}"]
    if broken:
        verdict = "poor"
        sentences = [
            f"Poor ({figures}): the log weight is NaN or +inf at {broken} of {raw.size} draws; check the model's log "
            "density, or fit with precision='float64'."
        ]
    elif num_nonfinite:
        sentences.append(f"The target density is zero at {num_nonfinite} of {raw.size} draws.")
    found = _merge(missing_mass, elsewhere)
    missed = found is not None and (found.share > MISSING_USABLE or found.effect.matters)
    if found is not None and missed:
        limit: Verdict = "poor" if found.share > MISSING_POOR else "usable"
        verdict = max(verdict, limit, key=VERDICTS.index)
        sentences = [f"{verdict.capitalize()} ({figures}): {_say_missed(found, num_parts)}", *sentences[1:]]
    elif found is not None and found.looked and verdict != "poor":
        sentences.append(f"No mass was found elsewhere among {found.places()}.")
    if num_failed_steps:
        sentences.append(f"{num_failed_steps} training steps were not finite and were skipped.")
    return Diagnostics(
        khat=khat,
        khat_se=khat_se,
        ess_fraction=ess,
        ess_fraction_se=ess_se,
        elbo=elbo,
        elbo_se=elbo_se,
        log_evidence=evidence,
        log_evidence_se=evidence_se,
        num_draws=raw.size,
        num_nonfinite=num_nonfinite,
        verdict=verdict,
        status=" ".join(sentences),
        missing_mass=None if found is None else found.share,
        missing_effect=None if found is None else max(found.effect.mean_error, found.effect.sd_error),
        looked=found.places() if found is not None and found.looked else None,
    )


def may_be_good(khat: float, ess: float, dim: int) -> bool:
    """Tell whether a fit in so many dimensions is good if its margins are right."""
    return khat <= USABLE_KHAT and ess >= max(LEAST_GOOD_ESS, GOOD_ESS ** (dim / GOOD_ESS_DIM))


def _say_right(errors: Margins) -> str:
    """Say how far margins are off."""
    return (
        f"by the importance weights every mean is within {max(errors.mean, 0.01):.2f} sd and every standard deviation "
        f"within {max(100 * errors.sd, 1.0):.0f} % of the posterior's; the draws can be used as they are."
    )


def say_improper(diagnostics: Diagnostics, parameters: str, until: float) -> Diagnostics:
    """Return the judgment of a posterior that does not fall along some parameters: "poor", whatever the weights say.

    Args:
        diagnostics: the judgment by the weights.
        parameters: their names.
        until: so many standard deviations far the posterior was followed.
    """
    figures = _figures(diagnostics.khat, diagnostics.ess_fraction, "poor")
    status = (
        f"Poor ({figures}): the posterior seems to be improper. Along {parameters} the density does not decay within "
        f"{until:.0e} standard deviations of the fit, so that there may be no distribution to draw from. Give these "
        "parameters a proper prior; look for a flat prior, separated classes, columns that repeat each other, a scale "
        "that may become zero, values that are clipped, and a log density of the wrong sign."
    )
    return dataclasses.replace(diagnostics, verdict="poor", status=status, improper=parameters)


def say_unresolved(diagnostics: Diagnostics, why: str) -> Diagnostics:
    """Return the judgment of a fit whose draws or densities are lost in rounding: "poor", whatever the weights say."""
    figures = _figures(diagnostics.khat, diagnostics.ess_fraction, "poor")
    status = (
        f"Poor ({figures}): {why}, so that the weights tell nothing. Check the sign of the log density, center and "
        "scale the data and parameters, and give every parameter a proper prior."
    )
    return dataclasses.replace(diagnostics, verdict="poor", status=status)


def _figures(khat: float, ess: float, verdict: Verdict) -> str:
    """Return the figures behind a verdict; k-hat is not informative where the weights are nearly equal."""
    shown = f"ESS {100 * ess:.1f} % of the draws"
    if verdict == "good" and khat > GOOD_KHAT:
        return shown
    return f"{shown}, k-hat " + (f"{khat:.2f}" if khat < LARGEST_SHOWN else f"above {LARGEST_SHOWN:g}")


def _merge(missing_mass: float | None, elsewhere: Elsewhere | None) -> Elsewhere | None:
    """Return what was found elsewhere; what other restarts have found counts if it is more."""
    if not missing_mass or (elsewhere is not None and missing_mass < MODES_FIRST * elsewhere.share):
        return elsewhere if elsewhere is not None or missing_mass is None else Elsewhere(())
    if elsewhere is None:
        return Elsewhere((), missing_mass, modes=True)
    return dataclasses.replace(elsewhere, share=max(missing_mass, elsewhere.share), modes=True)


def _say_missed(found: Elsewhere, num_parts: int) -> str:
    """Say what was found elsewhere, what it changes, and what to do."""
    share = f"{100 * found.share:.1f} %" if found.share >= 0.0005 else "less than 0.1 %"
    where = "in modes that this fit does not cover" if found.modes else "around this fit, where it has none"
    who = "other starts" if found.modes else "draws with heated noise"
    text = f"{who} found {share} of the posterior mass {where}"
    if found.effect.matters:
        errors = found.effect
        text += f", which changes the mean of {found.label} by {errors.mean_error:.2g} sd" + (
            f" and makes its sd {1.0 + errors.sd_error:.2g} times as large" if errors.sd_error > 0.0 else ""
        )
    return f"{text}; fit a mixture with components={num_parts + 1} or more."


def _judge_weights(
    raw: np.ndarray, khat: float, ess: float, ess_se: float, trusts_flat: bool = True
) -> tuple[Verdict, str]:
    """Apply the rule to the weights alone."""
    flat = ess >= CONSTANT_ESS and _largest_ratio(raw) <= CONSTANT_RATIO and (trusts_flat or khat <= USABLE_KHAT)
    even = khat <= USABLE_KHAT and ess - 2 * ess_se >= EVEN_ESS
    if flat or even or (khat <= GOOD_KHAT and ess - 2 * ess_se >= GOOD_ESS):
        if raw.size < MIN_DRAWS_GOOD:
            return (
                "usable",
                f"judged by {raw.size} draws only; at least {MIN_DRAWS_GOOD} are needed to call a fit good.",
            )
        if khat > GOOD_KHAT:
            return (
                "good",
                "the importance weights are nearly equal; the draws can be used as they are.",
            )
        return "good", "the draws can be used as they are."
    if khat <= USABLE_KHAT and ess >= USABLE_ESS:
        return "usable", (
            "importance weights correct the remaining error; draws, summaries and figures are weighted by default."
        )
    if khat <= BULK_KHAT and ess >= BULK_ESS:
        return "usable", (
            "the bulk is accurate, but the far tails are not: trust means of bounded quantities and central "
            "intervals, not tail probabilities; post.to_nuts() gives exact draws."
        )
    if any(khat <= highest and ess >= least for highest, least in AGREEING_LIMITS):
        return "usable", (
            "the draws agree with the density where they are, but with a k-hat above 1 their weights have no mean and "
            "tell nothing of mass that the draws do not reach: trust central intervals at most; post.refine() or a "
            "heavier base may mend the tails, and post.to_nuts() gives exact draws."
        )
    if ess >= USABLE_ESS:
        return "poor", (
            "the fit does not cover the tails of the posterior, and weights cannot repair that; do not use the draws."
        )
    return "poor", ("the fit is far from the posterior, and few draws carry all the weight; do not use the draws.")


def _largest_ratio(raw: np.ndarray) -> float:
    """Return the largest weight in units of the mean weight."""
    weights = np.exp(raw - raw.max())
    return float(1.0 / np.mean(weights))
