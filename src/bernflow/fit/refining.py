"""What training on promises before it starts, and what it has gained."""

import sys

from tqdm.auto import tqdm

from bernflow.diagnostics.advice import rise
from bernflow.diagnostics.findings import REFINED, remark
from bernflow.fit.loop import LONG_CYCLE_IN_REFINING
from bernflow.fit.stopping import A_LITTLE
from bernflow.posterior import Posterior
from bernflow.watched import is_watched


def expectation(posterior: Posterior, steps: int | None) -> str:
    """Say what training on from a posterior is expected to gain."""
    if posterior.diagnostics.improper is not None:
        return (
            f"the posterior seems to be improper along {posterior.diagnostics.improper}: no training mends that. Give "
            "these parameters a proper prior."
        )
    gained = rise(posterior.history)
    if gained is not None:
        return (
            f"the ELBO was still rising when the training ended, by {gained:.2g} nats in its last tenth: more steps "
            "are likely to gain more."
        )
    end = "" if steps is not None else f" Training ends after {LONG_CYCLE_IN_REFINING:,} steps if these gain nothing."
    return f"the ELBO was no longer rising when the training ended: more steps are likely to gain little.{end}"


def announce(posterior: Posterior, steps: int | None, progress: bool) -> None:
    """Say before the training what is expected of it, where somebody watches."""
    if progress and is_watched():
        tqdm.write(f"bernflow refine: {expectation(posterior, steps)}", file=sys.stderr)


def say_gain(refined: Posterior, before: Posterior) -> None:
    """Add to the findings of a refined posterior what the training has gained."""
    steps = refined.settings["steps"] - before.settings["steps"]
    diagnostics, earlier = refined.diagnostics, before.diagnostics
    gain = diagnostics.elbo - earlier.elbo
    error = (diagnostics.elbo_se**2 + earlier.elbo_se**2) ** 0.5
    said = f"gained {gain:.2g} nats" if gain > max(2.0 * error, A_LITTLE) else "gained nothing"
    refined.diagnostics = diagnostics.adding(remark(REFINED, f"refining by {steps:,} steps {said}", gain=gain))
