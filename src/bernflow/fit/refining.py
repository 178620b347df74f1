"""What training on promises before it starts, and what it has gained."""

import copy
import sys

from tqdm.auto import tqdm

from bernflow.diagnostics.advice import rise
from bernflow.diagnostics.findings import REFINED, VERDICTS, remark
from bernflow.fit.train.stopping import LONG_CYCLE_IN_REFINING, MIN_GAIN
from bernflow.posterior import Posterior
from bernflow.watched import is_watched


def expectation(posterior: Posterior, steps: int | None) -> str:
    """Say what training on from a posterior is expected to gain."""
    if posterior.diagnostics.improper is not None:
        return (
            f"the posterior seems to be improper along {posterior.diagnostics.improper}: training cannot correct "
            "that. Give these parameters a proper prior."
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


def better(refined: Posterior, before: Posterior) -> Posterior:
    """Return a refined posterior with a finding that says what was gained, or the one before, where that is better."""
    steps = refined.settings["steps"] - before.settings["steps"]
    gain = refined.diagnostics.elbo - before.diagnostics.elbo
    error = (refined.diagnostics.elbo_se**2 + before.diagnostics.elbo_se**2) ** 0.5
    ranks = [VERDICTS.index(posterior.diagnostics.verdict) for posterior in (refined, before)]
    chosen, said = refined, "did not raise the ELBO"
    if gain > max(2.0 * error, MIN_GAIN):
        said = f"raised the ELBO by {gain:.2g} nats"
    elif ranks[0] > ranks[1]:
        chosen, said = copy.copy(before), "did not raise the ELBO, and was undone"
    finding = remark(REFINED, f"refining it by {steps:,} steps {said}", gain=gain)
    chosen.diagnostics = chosen.diagnostics.adding(finding)
    return chosen
