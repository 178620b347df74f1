"""Have Markov chains converged? R-hat, effective numbers of draws and divergences, and the verdict on them.

* good: R-hat of every quantity at most 1.01, no divergence, and at least 400 effective draws of every quantity, in the
  bulk and in the tails.
* usable: an R-hat of up to 1.05 with at least 400 effective draws; an R-hat of at most 1.01 with fewer (means are right
  within their Monte Carlo error, which is large); or divergences in at most one of 1,000 draws (a small part of the
  posterior may be missing).
* poor: everything else, and an R-hat that is not a number: the chains have not seen the whole posterior.

R-hat and the effective numbers are those of Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021): rank-normalized,
with split chains. R-hat is judged as it is shown, rounded to three decimals.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.findings import Verdict

MAX_RHAT, POOR_RHAT = 1.01, 1.05
MIN_ESS = 400.0
MAX_DIVERGENT = 1e-3
# The tails are judged by these two quantiles.
TAILS = (0.05, 0.95)


@dataclasses.dataclass(frozen=True)
class ChainDiagnostics:
    """How far the draws of Markov chains can be trusted.

    Attributes:
        rhat: the worst R-hat of all quantities.
        ess_bulk: the least effective number of draws for means.
        ess_tail: the least effective number of draws for the 5 % and 95 % quantiles.
        num_draws: number of draws, of all chains together.
        num_divergent: number of them whose trajectory left the posterior.
        verdict: "good", "usable" or "poor".
        status: the sentence that says why, and what to do.
    """

    rhat: float
    ess_bulk: float
    ess_tail: float
    num_draws: int
    num_divergent: int
    verdict: Verdict
    status: str


@dataclasses.dataclass(frozen=True)
class Convergence:
    """R-hat and effective numbers of draws, quantity by quantity."""

    rhat: Float[np.ndarray, " d"]
    ess_bulk: Float[np.ndarray, " d"]
    ess_tail: Float[np.ndarray, " d"]


def convergence(values: Float[np.ndarray, "d chains draws"]) -> Convergence:
    """Measure R-hat and the effective numbers of draws of d quantities; NaN where there are too few draws."""
    from arviz_stats.base import array_stats

    values = np.asarray(values, np.float64)
    if values.shape[-1] < 4:  # nothing can be told from half a chain of one draw
        return Convergence(*(np.full(len(values), np.nan) for _ in range(3)))
    return Convergence(
        np.atleast_1d(array_stats.rhat(values)),
        np.atleast_1d(array_stats.ess(values, method="bulk")),
        np.atleast_1d(array_stats.ess(values, method="tail", prob=TAILS)),
    )


def judge_chains(found: Convergence, names: list[str], num_draws: int, num_divergent: int) -> ChainDiagnostics:
    """Judge chains by their worst quantity; the rule is in the module's documentation.

    Args:
        found: R-hat and effective numbers of draws.
        names: one name per quantity, to say which is the worst.
        num_draws: number of draws of all chains together.
        num_divergent: number of divergences after warmup.
    """
    # argmax finds the first NaN, and so does argmin: what cannot be told is the worst.
    worst = int(np.argmax(found.rhat))
    rhat, bulk, tail = float(found.rhat[worst]), float(np.min(found.ess_bulk)), float(np.min(found.ess_tail))
    figures = f"R-hat {rhat:.3f}, ESS {bulk:.0f} in the bulk and {tail:.0f} in the tails, {num_divergent} divergences"
    reasons = []
    verdict: Verdict = "good"
    enough = min(bulk, tail) >= MIN_ESS
    judged = round(rhat, 3)  # "R-hat 1.010" is not "above 1.01"
    if not judged <= POOR_RHAT or not (judged <= MAX_RHAT or enough):
        verdict = "poor"
        reasons.append(f"the chains disagree about {names[worst]}; use more draws and a longer warmup.")
    elif judged > MAX_RHAT:
        verdict = "usable"
        reasons.append(
            f"the R-hat of {names[worst]} is above {MAX_RHAT:g}, though there are many effective draws: use more draws "
            "where it matters."
        )
    if num_divergent:
        verdict = "usable" if verdict != "poor" and num_divergent <= MAX_DIVERGENT * num_draws else "poor"
        reasons.append(
            f"{num_divergent} of {num_draws} trajectories diverged, so that a part of the posterior may be missing; "
            "raise target_accept towards 0.99, or improve the fit that NUTS starts from by post.refine()."
        )
    if not reasons and not enough:
        verdict = "usable"
        reasons.append(f"fewer than {MIN_ESS:.0f} effective draws of some quantity; use more draws.")
    why = " Also, ".join(reasons) or "the draws can be used as they are."
    status = f"{verdict.capitalize()} ({figures}): {why}"
    return ChainDiagnostics(rhat, bulk, tail, num_draws, num_divergent, verdict, status)
