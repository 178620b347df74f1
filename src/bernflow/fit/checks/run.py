"""All checks of a fit, in the order in which they are made."""

from bernflow.diagnostics.rounding import unresolved
from bernflow.fit.checks.climbing import Paths
from bernflow.fit.checks.evidence import Check, Evidence, Subject
from bernflow.fit.checks.heated import HeatedDraws
from bernflow.fit.checks.rays import Rays
from bernflow.fit.checks.ridges import CurvedRays
from bernflow.fit.checks.scan import Scan
from bernflow.fit.checks.tempered import TemperedRun
from bernflow.fit.checks.terms import Terms


class Resolution:
    """Are the draws and the log densities resolved in double precision?"""

    def applies(self, subject: Subject, evidence: Evidence) -> bool:
        """Always: it costs nothing."""
        return True

    def run(self, subject: Subject, evidence: Evidence) -> Evidence:
        """Say what is lost in rounding."""
        labels = subject.target.layout.labels()
        return evidence.replace(lost=unresolved(subject.draws, subject.log_weights, labels))


CHECKS: tuple[Check, ...] = (
    *(Resolution(), HeatedDraws(), TemperedRun(), Scan(), Terms()),
    *(Paths(), Rays(), CurvedRays()),
)


def run_checks(subject: Subject) -> Evidence:
    """Return what the checks of a fit have found."""
    evidence = Evidence()
    for check in CHECKS:
        if check.applies(subject, evidence):
            evidence = check.run(subject, evidence)
    return evidence
