"""The choice between weighted and unweighted draws, by the verdict on the fit."""

from typing import TYPE_CHECKING, Literal

from bernflow.errors import ArgumentError
from bernflow.posterior.sampling import OVERSAMPLING

if TYPE_CHECKING:
    from bernflow.posterior.parts import PosteriorParts

Weighted = bool | Literal["auto"]
AUTO: Literal["auto"] = "auto"


def is_weighted(posterior: "PosteriorParts", weighted: Weighted = AUTO) -> bool:
    """Tell whether draws are importance-resampled."""
    if isinstance(weighted, str):
        if weighted != AUTO:
            raise ArgumentError(f"weighted={weighted!r}: expected True, False or 'auto'.")
        if posterior.model is None:
            return posterior.stored is not None and posterior.stored.weighted
        return posterior.diagnostics.weights_correct
    return bool(weighted)


def num_effective(posterior: "PosteriorParts", num: int, weighted: bool) -> float:
    """Return the effective sample size of `num` draws, estimated from the diagnostics."""
    if not weighted:
        return float(num)
    # Systematic resampling adds the noise of the selection to that of the proposals.
    share = max(posterior.diagnostics.ess_fraction, 1e-12)
    return num / (1.0 / (OVERSAMPLING * share) + (1.0 - 1.0 / OVERSAMPLING))
