"""Judging a fit: importance weights, the verdict, distances between samples."""

from bernflow.diagnostics.distances import sliced_wasserstein, standardized_errors
from bernflow.diagnostics.findings import VERDICTS, Diagnostics, Finding, Verdict
from bernflow.diagnostics.importance import bootstrap_errors, elbo, ess_fraction, log_evidence, psis
from bernflow.diagnostics.verdict import judge

__all__ = [
    "VERDICTS",
    "Diagnostics",
    "Finding",
    "Verdict",
    "bootstrap_errors",
    "elbo",
    "ess_fraction",
    "judge",
    "log_evidence",
    "psis",
    "sliced_wasserstein",
    "standardized_errors",
]
