"""May the intervals of the effects be believed? What speaks against it, in sentences."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import stats

from bernflow.diagnostics import Diagnostics

# An effect that has moved by more of its sd in the second half of the training is still moving.
MAX_MOVE = 0.5
# Scores of rows left out that have risen by so many standard errors, and by so much per row, are still rising.
RISING, MIN_RISE = 3.0, 0.005
# Networks whose folds give effects this unlikely under one truth disagree.
DISAGREEMENT = 0.005
# Images that predict so much of the variance of a column leave little of it to tell its effect by.
OVERLAP = 0.9


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What the verdict is based on; p effects, k networks, all in standardized units.

    Attributes:
        names: of the effects.
        effect: estimate (p,), and its sd.
        sd: of the effect.
        before: the effect with networks half of the way there; None where training ended before.
        by_fold: effects (k, p) by the rows of every fold alone.
        by_fold_sd: their sd.
        rise: by how much the mean score of rows left out rose in the second half of the training, or None.
        rise_se: its standard error.
        shown: share of the variance of every column that the images predict (p,).
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
    has_features: bool
    interrupted: bool


def find(evidence: Evidence) -> list[str]:
    """Return one sentence for everything that makes the intervals doubtful."""
    findings = []
    if evidence.interrupted:
        findings.append("The training was interrupted; the best epochs so far were kept. Train for all epochs.")
    if evidence.before is not None and len(evidence.names):
        moved = (evidence.effect - evidence.before) / evidence.sd
        worst = int(np.argmax(np.abs(moved)))
        if abs(moved[worst]) > MAX_MOVE:
            findings.append(
                f"The effect of {evidence.names[worst]!r} moved by {abs(moved[worst]):.1f} sd in the second half of "
                "the training: the networks are undertrained. Train for more epochs, or at a higher learning_rate."
            )
    if evidence.rise is not None and evidence.rise > max(RISING * evidence.rise_se, MIN_RISE):
        findings.append(
            f"The log score of rows left out rose by {evidence.rise:.3f} per row in the second half of the training: "
            "the networks are undertrained. Train for more epochs, or at a higher learning_rate."
        )
    findings += _disagreements(evidence)
    for name, share in zip(evidence.names, evidence.shown, strict=True):
        if share > OVERLAP:
            findings.append(
                f"The images predict {share:.0%} of the variance of {name!r}: little of it is left to tell its effect "
                "from theirs, and its interval depends on how well the networks know the rest. Read it as a bound."
            )
    if not evidence.has_features:
        findings.append(
            "The network has no linear last layer, so that the intervals contain the uncertainty about the scale of "
            "its output, but not about its shape. End the network with a linear layer."
        )
    return findings


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
    """Return diagnostics whose verdict is "good" only if nothing was found."""
    if not findings:
        return diagnostics
    verdict = "usable" if diagnostics.verdict == "good" else diagnostics.verdict
    status = " ".join([*findings, f"Given the networks: {diagnostics.status}"])
    return dataclasses.replace(diagnostics, verdict=verdict, status=status)
