"""The verdict on the intervals of the effects: reasons to doubt them, as sentences."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import stats

from bernflow.diagnostics import Diagnostics, Finding
from bernflow.diagnostics.findings import EFFECT

# An effect that has moved by more of its sd in the second half of the training is still moving.
MAX_MOVE = 0.5
# Held-out scores that rose by this many standard errors and by this much per row are still rising.
RISING, MIN_RISE = 3.0, 0.005
# p-value of the effects by fold below which the networks disagree.
DISAGREEMENT = 0.005
# Share of the variance of a column predicted by the images from which its effect is confounded with what the networks
# have not learned. On 1,000 simulated rows with a share of 0.6, estimates were off by up to one sd on average.
OVERLAP = 0.3
# Possible bias of an effect in sd, because the networks have not learned all of the images.
MAX_BIAS = 0.5
# Overdispersion of counts relative to a Poisson distribution.
MIN_EXCESS = 0.1
# Beta shrinks by sqrt(1 + LOGISTIC * omitted variance); the constant makes a probit curve as steep as a logistic one.
LOGISTIC = np.pi / 8
# Networks that hardly agree do not show how much there is to learn: lower limit of the agreement in the estimate.
MIN_AGREEMENT, MAX_ATTENUATION = 0.3, 0.2


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The inputs of the verdict; p effects, k networks, all in standardized units.

    Attributes:
        names: of the effects.
        effect: estimate (p,), and its sd.
        sd: of the effect.
        before: the effect with networks at the midpoint; None if training ended before.
        by_fold: effects (k, p) from the rows of each fold alone.
        by_fold_sd: their sd.
        rise: increase of the mean held-out score in the second half of the training, or None.
        rise_se: its standard error.
        shown: share of the variance of every column that the images predict (p,).
        agreement: correlation of the outputs of networks from different rows, 1 if it does not matter.
        attenuation: share by which effects may therefore be too small.
        dispersion: variance of counts given the fit, relative to a Poisson distribution, and its standard error; (1, 0)
            for other outcomes.
        has_features: whether the last layers of the networks have a posterior.
        interrupted: whether the training was interrupted.
    """

    names: tuple[str, ...]
    effect: Float[np.ndarray, " p"]
    sd: Float[np.ndarray, " p"]
    before: Float[np.ndarray, " p"] | None
    by_fold: Float[np.ndarray, "k p"]
    by_fold_sd: Float[np.ndarray, "k p"]
    rise: float | None
    rise_se: float
    shown: Float[np.ndarray, " p"]
    agreement: float
    attenuation: float
    dispersion: tuple[float, float]
    has_features: bool
    interrupted: bool


def find(evidence: Evidence) -> list[str]:
    """Return one sentence per reason to doubt the intervals."""
    findings = []
    if evidence.interrupted:
        findings.append("The training was interrupted; the best epochs so far were kept. Train for all epochs.")
    if evidence.before is not None and len(evidence.names):
        moved = (evidence.effect - evidence.before) / evidence.sd
        worst = int(np.argmax(np.abs(moved)))
        if abs(moved[worst]) > MAX_MOVE:
            findings.append(
                f"The effect of {evidence.names[worst]!r} moved by {abs(moved[worst]):.1f} sd in the second half of "
                "the training: the networks are undertrained. Train for more epochs, or at a higher rate (`optimizer`)."
            )
    if evidence.rise is not None and evidence.rise > max(RISING * evidence.rise_se, MIN_RISE):
        findings.append(
            f"The log score of rows left out rose by {evidence.rise:.3f} per row in the second half of the training: "
            "the networks are undertrained. Train for more epochs, or at a higher rate (`optimizer`)."
        )
    findings += _disagreements(evidence)
    size = evidence.attenuation
    if size > 0 and np.max(np.abs(evidence.effect / evidence.sd), initial=0.0) * size > MAX_BIAS:
        findings.append(
            f"Networks that were trained on different rows agree on the images with a correlation of only "
            f"{evidence.agreement:.2f}: some of what the images say may not be learned. Effects on a logit scale come "
            f"out too small where a predictor is left out, here by up to {size:.0%}. Use more rows, or a network that "
            "learns more from them."
        )
    excess, error = evidence.dispersion
    if excess - 1 > max(MIN_EXCESS, RISING * error):
        findings.append(
            f"The counts vary {excess:.2f} times as much as a Poisson distribution with these means: intervals are too "
            f"narrow by a factor of about {excess**0.5:.2f}. The networks have not learned all that the images say, or "
            "a column is missing."
        )
    for name, share in zip(evidence.names, evidence.shown, strict=True):
        if share > OVERLAP:
            findings.append(
                f"The images predict {share:.0%} of the variance of {name!r}: its effect is that of the rest, and an "
                "error of the networks on what both show can shift it by about an sd. More rows reduce the error."
            )
    if not evidence.has_features:
        findings.append(
            "The network has no linear last layer, so that the intervals contain the uncertainty about the scale of "
            "its output, but not about its shape. End the network with a linear layer."
        )
    return findings


def attenuation(agreement: float, images: float) -> float:
    """Return the share by which effects on a logit scale may be too small.

    This is an upper limit: the posterior refits the last layers and so contains more of the images than the outputs
    show, in particular if networks are overfitted. Correcting effects by it made them 26 % too large in a simulation in
    which they were right without the correction, so it is only a warning.

    The correlation of two networks with independent errors, h_k = a f + e_k, is the share of signal in their variance.
    The omitted part of f then has (1 - agreement) / agreement times the variance of the included part.
    """
    agreement = float(np.clip(agreement, MIN_AGREEMENT, 1.0))
    left_out = images * (1 - agreement) / agreement
    left_out /= 1 - min(LOGISTIC * left_out, 0.8)
    return min(1.0 - 1.0 / (1.0 + LOGISTIC * left_out) ** 0.5, MAX_ATTENUATION)


def _disagreements(evidence: Evidence) -> list[str]:
    if len(evidence.by_fold) < 2 or not len(evidence.names):
        return []
    weight = evidence.by_fold_sd**-2.0
    center = np.sum(weight * evidence.by_fold, 0) / np.sum(weight, 0)
    statistic = np.sum(weight * (evidence.by_fold - center) ** 2, 0)
    p_values = stats.chi2.sf(statistic, len(evidence.by_fold) - 1) * len(evidence.names)
    worst = int(np.argmin(p_values))
    if p_values[worst] > DISAGREEMENT:
        return []
    values = ", ".join(
        f"{mean:.3g} ± {sd:.2g}"
        for mean, sd in zip(evidence.by_fold[:, worst], evidence.by_fold_sd[:, worst], strict=True)
    )
    return [
        f"The networks disagree on the effect of {evidence.names[worst]!r}: {values} per sd of the column, by fold "
        f"(p = {p_values[worst]:.1g}). Train more networks (networks=5), or for more epochs."
    ]


def judge_effects(diagnostics: Diagnostics, findings: Sequence[str]) -> Diagnostics:
    """Return diagnostics whose verdict is "good" only if there are no findings."""
    if not findings:
        return diagnostics
    return diagnostics.adding(*(Finding(EFFECT, "usable", finding.rstrip(".")) for finding in findings))
