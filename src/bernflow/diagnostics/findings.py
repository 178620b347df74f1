"""What is known about a fit, as data: findings, the figures behind them, and the sentence that is written from them.

A verdict is the worst level of its findings. `FINDINGS` names all kinds of them, in the order in which they are said.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from bernflow.diagnostics.elsewhere import MEAN_ERROR

Verdict = Literal["good", "usable", "poor"]
VERDICTS: tuple[Verdict, ...] = ("good", "usable", "poor")

# Kinds of findings, in the order in which they are said. Of those that decide the verdict, the first is its headline.
IMPROPER, UNRESOLVED, INVALID, MISSING = "improper", "unresolved", "invalid", "missing"
WEIGHTS, UNSEARCHED = "weights", "unsearched"
ROWS, ZERO_DENSITY, SKIPPED, STOPPED, REFINED, OTHER_MODEL = "rows", "zero", "skipped", "stopped", "refined", "model"
# The sentence of a file that was written before findings were kept.
SAVED = "saved"
FINDINGS = (
    *(IMPROPER, UNRESOLVED, INVALID, SAVED, MISSING, WEIGHTS, UNSEARCHED),
    *(ROWS, ZERO_DENSITY, SKIPPED, STOPPED, REFINED, OTHER_MODEL),
)
# After these the weights tell nothing, so that nothing else is said of them.
_DECISIVE = (IMPROPER, UNRESOLVED, INVALID)

GOOD_KHAT = 0.5
USABLE_KHAT, USABLE_ESS = 0.7, 0.1
# Missing mass that makes a fit at best usable.
MISSING_USABLE = 0.01
# Where log densities overflow, k-hat may be any number.
LARGEST_SHOWN = 1000.0


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found out about a fit.

    Attributes:
        kind: one of `FINDINGS`.
        level: the best verdict that it allows; "good" for a remark.
        cause: what was found, as the beginning of a sentence, without a full stop.
        advice: what to do about it, in the same form, or empty.
        figures: the numbers behind it, by name.
        parameters: names of the parameters that it is about, or empty.
    """

    kind: str
    level: Verdict
    cause: str
    advice: str = ""
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    parameters: str = ""

    def text(self) -> str:
        """Return cause and advice as one sentence that begins with a small letter.

        Example:
            >>> Finding("stopped", "good", "interrupted after 250 steps", "post.refine() continues the training").text()
            'interrupted after 250 steps; post.refine() continues the training.'
        """
        return "; ".join(part for part in (self.cause, self.advice) if part) + "."


def remark(kind: str, cause: str, advice: str = "", **figures: float) -> Finding:
    """Return a finding that does not change the verdict."""
    return Finding(kind, "good", cause, advice, figures)


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
        findings: what was found out about the fit. Each has a level, a cause, advice and figures.
        missing_mass: share of the posterior mass that was found elsewhere, by heated draws and from other starts, and
            that this fit does not cover; None if no search was made.
        missing_effect: what that mass does to means and standard deviations: the largest change of a mean in standard
            deviations, or relative change of a standard deviation; None if no search was made.
        looked: where the search outside of the draws looked ("4,000 heated draws and 64 starts"), or None.

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
    findings: tuple[Finding, ...]
    missing_mass: float | None = None
    missing_effect: float | None = None
    looked: str | None = None

    @property
    def verdict(self) -> Verdict:
        """Return "good" (use the draws as they are), "usable" (with care, see `status`) or "poor"."""
        return max((finding.level for finding in self.findings), key=VERDICTS.index, default="good")

    @property
    def status(self) -> str:
        """Return the sentence that says why, and what to do."""
        ranked = sorted(self.findings, key=lambda finding: FINDINGS.index(finding.kind))
        headline, *others = sorted(ranked, key=lambda finding: finding.level != self.verdict)
        if headline.kind in _DECISIVE:
            others = [finding for finding in others if finding.kind != MISSING]
        said = [headline.cause if headline.kind == SAVED else self._headline(headline)]
        said += [_capitalized(finding.text()) for finding in others if finding.kind != WEIGHTS]
        if self.looked and self.verdict != "poor" and not self.misses_mass:
            said.insert(1, f"No mass was found elsewhere among {self.looked}.")
        return " ".join(said)

    @property
    def improper(self) -> str | None:
        """Return the parameters along which the density does not decay, so that the posterior seems to be improper."""
        named = (finding.parameters for finding in self.findings if finding.kind in (IMPROPER, SAVED))
        return next((parameters for parameters in named if parameters), None)

    @property
    def misses_mass(self) -> bool:
        """Return whether mass was found elsewhere that matters."""
        return (self.missing_mass or 0.0) > MISSING_USABLE or (self.missing_effect or 0.0) > MEAN_ERROR

    @property
    def weights_are_even(self) -> bool:
        """Return whether the weights are so nearly equal that k-hat is not informative."""
        return any(finding.kind == WEIGHTS and finding.figures.get("even", 0.0) > 0.0 for finding in self.findings)

    @property
    def weights_correct(self) -> bool:
        """Return whether importance weights correct what the fit left over, so that draws are weighted by default."""
        # What lies elsewhere has no weight: it must not matter.
        reliable = self.khat <= USABLE_KHAT and self.ess_fraction >= USABLE_ESS
        return self.verdict == "usable" and reliable and not self.misses_mass

    def adding(self, *findings: Finding, **changes: Any) -> "Diagnostics":
        """Return the diagnostics with more findings, and other changes of their fields."""
        return dataclasses.replace(self, findings=(*self.findings, *findings), **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and what follows from them, as plain values."""
        return {**dataclasses.asdict(self), "verdict": self.verdict, "status": self.status, "improper": self.improper}

    def _headline(self, finding: Finding) -> str:
        """Return the first sentence: the verdict, the figures behind it, and why."""
        figures = f"ESS {100 * self.ess_fraction:.1f} % of the draws"
        # A good fit has a higher k-hat only where the weights say by themselves that their tail does not matter.
        if not self.weights_are_even and not (self.verdict == "good" and self.khat > GOOD_KHAT):
            shown = f"{self.khat:.2f}" if self.khat < LARGEST_SHOWN else f"above {LARGEST_SHOWN:g}"
            figures += f", k-hat {shown}"
        return f"{_capitalized(self.verdict)} ({figures}): {finding.text()}"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
