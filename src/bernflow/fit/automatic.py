"""The whole way from a target to a posterior, with a mixture where one flow is not enough."""

import dataclasses
import warnings
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from bernflow.errors import BernflowError
from bernflow.fit.checks.probes import stack
from bernflow.fit.deadline import STAGE_SHARE, Deadline
from bernflow.fit.differences import DifferencedTarget
from bernflow.fit.engine import (
    Stage,
    find_starts,
    informed_flows,
    initial_flows,
    num_starts,
    share,
    stopped_by_limit,
    train_and_judge,
)
from bernflow.fit.modes import distinct_places
from bernflow.fit.run import Run
from bernflow.fit.settings import PART_GAIN, Settings
from bernflow.fit.start import Gaussian
from bernflow.fit.tally import counting
from bernflow.fit.train.loop import Steps
from bernflow.fit.train.state import num_stacked
from bernflow.flows.base import AbstractDistribution, AbstractFlow
from bernflow.keys import nth, spawn
from bernflow.posterior import Posterior
from bernflow.target import Target

# Newton paths that look for the places of a mixture, and the most places that are taken.
NUM_PATHS = 64
MAX_PLACES = 10
# A place promises something if the ELBO of its Gaussian is at most so many nats below what one flow has reached.
PROMISE = 6.0
# In more dimensions a mixture costs too much to be tried unasked.
MAX_DIM = 64
# Up to so many, paths from many points cost next to nothing.
FEW_DIM = 10
# Missing mass raises the ELBO by its share where nothing overlaps; a component must gain so much of that.
LEAST_OF_SHARE = 0.3
# Flows that share a posterior are soon within this many nats of it, or it is shaped so that each must learn much alone.
TOGETHER_GOAL = 0.1
# Under a time limit, the least seconds for a mixture: most of them are spent compiling.
MIXTURE_SECONDS = 20.0


def fit_target(target: Target, settings: Settings, key: Key[Array, ""], run: Run) -> Steps[Posterior]:
    """Fit one flow; several where it misses mass that other starts found, or may gain from those that lie elsewhere.

    To be called in the precision of the settings.
    """
    start_key, flow_key, train_key = spawn(key, 3)
    settings = settings.in_dimension(target.dim)
    with counting() as tally:
        try:
            flows, probes = initial_flows(target, settings, start_key, flow_key, run)
        except (jax.errors.JaxRuntimeError, NotImplementedError, TypeError, ValueError) as error:
            if isinstance(error, BernflowError) or run.devices is not None:
                raise
            target = DifferencedTarget(target.model)
            flows, probes = initial_flows(target, settings, start_key, flow_key, run)
            _warn_differences(error)
    if probes is None and settings.checks.thorough and settings.family.use_start and run.devices is None:
        probes = find_starts(target, num_starts(target.dim), nth(start_key, 2), run)
    # Other searches for a start run in compiled code, which counts nothing.
    fits = _Fits(target, run, tally.num or None)
    if (settings.components or 1) > 1:
        return (yield from fits.mix(settings, flows, train_key, Stage(probes=probes)))
    posterior, missed = yield from fits.train(settings, flows, train_key, Stage(probes=probes))
    if probes is None or not _may_mix(settings, target, posterior, probes):
        return posterior
    return (yield from _with_mixture(posterior, missed, settings, nth(key, 3), fits))


class _Fits(NamedTuple):
    """Trains flows on one target, several times if need be.

    Attributes:
        target: the posterior.
        run: the surroundings of the fit.
        start_gradients: number of gradients that the search for a start took, if known.
    """

    target: Target
    run: Run
    start_gradients: int | None

    def train(
        self, settings: Settings, flows: AbstractDistribution, key: Key[Array, ""], stage: Stage
    ) -> Steps[tuple[Posterior, Gaussian | None]]:
        """Train and judge."""
        posterior, missed = yield from train_and_judge(self.target, settings, flows, key, self.run, stage)
        posterior.settings["start_gradients"] = self.start_gradients
        return posterior, missed

    def mix(self, settings: Settings, flows: AbstractFlow, key: Key[Array, ""], alone: Stage) -> Steps[Posterior]:
        """Train flows as the parts of one mixture; where that does not end well, each alone, and take the better."""
        run, mixture = self.run, None
        if settings.trains_together(flows):
            mixture = share(flows, self.target, settings, nth(key, 3), run)
        if mixture is None:
            return (yield from self.train(settings, flows, key, alone))[0]
        run.bar.stage(f"mixture of {num_stacked(flows)}")
        together = Stage("together", alone.probes, TOGETHER_GOAL)
        shared, _ = yield from self.train(settings, mixture, nth(key, 4), together)
        if shared.diagnostics.verdict == "good" or _was_cut_short(shared):
            return shared
        if not run.deadline.allows_stage(MIXTURE_SECONDS):
            return _without(shared, "each flow was trained alone", run.deadline)
        run.bar.stage(f"{num_stacked(flows)} flows, each alone")
        posterior, _ = yield from self.train(settings, flows, key, alone)
        return _better(shared, posterior)


def _with_mixture(
    posterior: Posterior, missed: Gaussian | None, settings: Settings, key: Key[Array, ""], fits: _Fits
) -> Steps[Posterior]:
    """Return the better of a fit and a mixture with parts where other starts lie, or mass was found that it misses."""
    target, run = fits.target, fits.run
    if not run.deadline.allows_stage(MIXTURE_SECONDS):
        return _without(posterior, "a mixture was fitted", run.deadline)
    run.bar.stage("mixture")
    again_key, flow_key, train_key = spawn(key, 3)
    starts = find_starts(target, NUM_PATHS, again_key, run, least_left=STAGE_SHARE / 2)
    starts, places = _with_missed(starts, _promising(starts, posterior.diagnostics.elbo), missed)
    if len(places) < 2:
        return posterior
    several = dataclasses.replace(settings, restarts=len(places), components=len(places))
    if posterior.diagnostics.misses_mass:  # mass that only moments notice is worth no more nats than its share
        least = LEAST_OF_SHARE * (posterior.diagnostics.missing_mass or 0.0)
        several = dataclasses.replace(several, part_gain=min(PART_GAIN, least))
    flows = informed_flows(run.spread(target), several, starts, np.array(places), flow_key)
    if not run.deadline.has_left(STAGE_SHARE / 2):
        return _without(posterior, "a mixture was fitted", run.deadline)
    mixture = yield from fits.mix(several, flows, train_key, Stage("mixture", starts))
    return _better(posterior, mixture)


def _warn_differences(error: Exception) -> None:
    """Say aloud that second derivatives are approximate, which costs time."""
    warnings.warn(
        f"bernflow: the gradient of the log density cannot be differentiated ({str(error).splitlines()[0]}). "
        "Differences of gradients take the place of second derivatives. Functions with a derivative by jax.custom_jvp "
        "in place of jax.custom_vjp need none.",
        UserWarning,
        stacklevel=5,
    )


def _with_missed(starts: Gaussian, places: list[int], missed: Gaussian | None) -> tuple[Gaussian, list[int]]:
    """Return starts and the places of a mixture: the best, then those of mass that was missed, then the others."""
    if missed is None:
        return starts, places[:MAX_PLACES]
    num = len(starts.loc)
    found = list(range(num, num + len(missed.loc)))
    # What no start promises can still be the first: a mode far from all of them.
    return stack([starts, missed]), [*places[:1], *found, *places[1:]][:MAX_PLACES]


def _better(first: Posterior, second: Posterior) -> Posterior:
    """Return the second of two fits where it is better, else the first, with what both of them took."""
    # An ELBO that is not a number is worse than any.
    elbos = [np.nan_to_num(post.diagnostics.elbo, nan=-np.inf) for post in (first, second)]
    # Mass that the second covers may be worth less than that, and change the verdict.
    worse, better = first.diagnostics, second.diagnostics
    mended = worse.misses_mass and not better.misses_mass and better.verdict == "good"
    best, other = (second, first) if elbos[1] > elbos[0] + (-PART_GAIN if mended else PART_GAIN) else (first, second)
    for name in ("steps", "training_gradients"):
        best.settings[name] += other.settings[name]
    for name in ("interrupted", "out_of_time"):
        best.settings[name] |= other.settings[name]
    return best


def _was_cut_short(posterior: Posterior) -> bool:
    return posterior.settings["interrupted"] or posterior.settings["out_of_time"]


def _without(posterior: Posterior, what: str, deadline: Deadline) -> Posterior:
    """Return a posterior that says what the time limit has left out."""
    posterior.diagnostics = posterior.diagnostics.adding(stopped_by_limit(deadline, f"before {what}"))
    posterior.settings |= deadline.describe(out_of_time=True)
    return posterior


def _may_mix(settings: Settings, target: Target, posterior: Posterior, probes: Gaussian) -> bool:
    diagnostics = posterior.diagnostics
    unasked = settings.components is None and settings.restarts == 1 and settings.steps is None
    if not unasked or not settings.family.mixes or target.dim > MAX_DIM or _was_cut_short(posterior):
        return False
    if diagnostics.improper is not None:  # more flows do not make it proper
        return False
    if posterior.diagnostics.misses_mass:
        return True
    if diagnostics.verdict == "usable" and diagnostics.log_evidence - diagnostics.elbo < PART_GAIN:
        return False  # a mixture is taken for a larger gain than what is left
    if diagnostics.verdict == "good":
        return False
    # Newton paths from few points may miss what many find: along a ring most end where no Gaussian fits.
    return target.dim <= FEW_DIM or len(_promising(probes, diagnostics.elbo)) > 1


def _promising(starts: Gaussian, elbo: float) -> list[int]:
    """Return the places whose Gaussian may hold a share of the mass, the best first."""
    return [i for i in distinct_places(starts) if float(starts.elbo[i]) > elbo - PROMISE]
