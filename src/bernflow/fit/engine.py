"""From a target to a judged posterior: start, train, choose, judge."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int, Key

from bernflow.background import Effort, without_pauses
from bernflow.diagnostics.findings import STOPPED, Finding, remark
from bernflow.fit import modes
from bernflow.fit.ahead import compile_ahead
from bernflow.fit.bar import Bar
from bernflow.fit.building import flows_at
from bernflow.fit.checks.evidence import Subject
from bernflow.fit.checks.run import run_checks
from bernflow.fit.chunk import Trainee, begin, gradients_per_step
from bernflow.fit.deadline import Deadline, Pace
from bernflow.fit.devices import Devices
from bernflow.fit.interruption import Interruption
from bernflow.fit.judging import DIAGNOSTIC_PRECISION, Look, cast, choose, look
from bernflow.fit.loop import LONG_CYCLE, LONG_CYCLE_IN_REFINING, Method, Place, train
from bernflow.fit.powers import find_powers
from bernflow.fit.progress import Recorder
from bernflow.fit.resume import LoopMemory
from bernflow.fit.rotation import find_rotation
from bernflow.fit.settings import Settings
from bernflow.fit.start import Gaussian
from bernflow.fit.structured_start import MIN_DIM, structured_start
from bernflow.fit.wide_start import finder
from bernflow.fit.work import effort_for_start
from bernflow.flows.affine import DiagonalAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.base import AbstractDistribution, AbstractFlow
from bernflow.flows.factors import is_dense, unit_factor
from bernflow.flows.mixture import Mixture
from bernflow.flows.wide import WideBernsteinFlow
from bernflow.keys import nth, spawn
from bernflow.placement import fetched
from bernflow.posterior import Posterior
from bernflow.precision import use_precision
from bernflow.preflight import check_output, starting_points, usable_starts
from bernflow.target import Target
from bernflow.user import user_level
from bernflow.versions import version_of

NUM_STARTS = 8
# Under a time limit, the least share of it that must be left after the search for starts.
LEFT_AFTER_STARTS = 0.5

# What to do with a training that was cut short.
CONTINUE = "post.refine() continues the training"

Refiner = Callable[..., Posterior]
Distribution = TypeVar("Distribution", bound=AbstractDistribution)


@without_pauses()
def initial_flows(
    target: Target,
    settings: Settings,
    start_key: Key[Array, ""],
    flow_key: Key[Array, ""],
    devices: Devices | None = None,
    deadline: Deadline | None = None,
) -> tuple[AbstractFlow, Gaussian | None]:
    """Return one flow per restart, stacked, each at a start of its own, and all starts that were found.

    The search for them ends early enough for the `deadline`.
    """
    deadline = deadline or Deadline.start()
    settings.family.check(target.dim)
    num = max(num_starts(target.dim), settings.restarts * (4 if settings.restarts > 1 else 1))
    if settings.family.mixes and settings.restarts == 1 and target.dim >= MIN_DIM and devices is None:
        flow = structured_start(target, settings, nth(start_key, 1), deadline)
        if flow is not None:
            return flow, None
    if settings.family.use_start:
        starts = find_starts(target, num, start_key, devices, settings, deadline)
        chosen = np.array(modes.distinct_starts(starts, settings.restarts))
        return informed_flows(target, settings, starts, chosen, flow_key, devices), starts
    spread, points_key = _spread(target, devices), nth(start_key, 0)
    points = usable_starts(spread, starting_points(spread, points_key, num), points_key)
    same = jax.tree.map(lambda leaf: leaf[None], Gaussian(points[0], unit_factor(target.dim), np.zeros(())))
    return flows_at(settings, target.dim, same, np.zeros(settings.restarts, int), flow_key), None


def informed_flows(
    target: Target,
    settings: Settings,
    starts: Gaussian,
    chosen: Int[np.ndarray, " r"],
    key: Key[Array, ""],
    devices: Devices | None,
) -> AbstractFlow:
    """Return stacked flows at chosen starts that know what the density tells: axes near them, tails far from them."""
    flows = flows_at(settings, target.dim, starts, chosen, key)
    # In more dimensions a matrix of axes is too large.
    if not isinstance(flows, BernsteinFlow | WideBernsteinFlow) or not is_dense(target.dim):
        return flows
    target, starts = _spread(target, devices), starts.at(chosen)
    if isinstance(flows.outer, DiagonalAffine):  # its dimensions are those of the parameters
        starts = starts._replace(factor=np.eye(target.dim) * np.asarray(flows.outer.start_scale)[:, None])
    elif isinstance(flows, WideBernsteinFlow):
        flows, starts = _rotated(flows, target, starts)
    powers = find_powers(target, starts)
    return flows.with_powers(powers) if powers.any() else flows


def _rotated(flows: WideBernsteinFlow, target: Target, starts: Gaussian) -> tuple[WideBernsteinFlow, Gaussian]:
    """Return stacked flows with the axes that the density tells, and starts whose factor has these axes."""
    first, following = flows.context, target.dim - flows.context
    found = [find_rotation(target, starts.at(i), first) for i in range(len(starts.loc))]
    if all(rotation is None for rotation in found):
        return flows, starts
    rotation = np.stack([np.eye(following) if axes is None else axes for axes in found])
    factor = np.array(starts.factor)
    factor[..., first:] = factor[..., first:] @ rotation
    return flows.with_rotation(rotation), starts._replace(factor=factor)


def find_starts(
    target: Target,
    num: int,
    key: Key[Array, ""],
    devices: Devices | None = None,
    next_fit: Settings | None = None,
    deadline: Deadline | None = None,
    least_left: float = LEFT_AFTER_STARTS,
) -> Gaussian:
    """Return the Gaussians that Newton paths from so many points have found, stacked, the best first, on the host.

    Meanwhile what a fit with settings `next_fit` needs is compiled. Under a `deadline` paths are followed one after the
    other as long as this share of the time limit is left.
    """
    deadline = deadline or Deadline.start()
    at_once = num if deadline.limit is None or devices is not None else 1
    spread = _spread(target, devices)
    # Processes that share the rows must compile the same: they may have different numbers of them.
    effort = effort_for_start(target) if devices is None else Effort.LIGHT
    # Arrays spread over devices would have to lie where they will.
    if next_fit is not None and devices is None:
        compile_ahead(target, next_fit, num, effort, at_once)
    points_key, path_key = spawn(key, 2)
    check_output(target)
    points = starting_points(spread, points_key, num)
    find = finder(target.dim).with_effort(effort)

    def follow(points: Any) -> Gaussian:
        parts: list[Gaussian] = []
        for batch in [points] if at_once == num else np.split(np.asarray(points), num):
            parts.append(jax.tree.map(np.asarray, find(spread, batch, path_key)))
            if not np.isnan(parts[-1].elbo).all() and not deadline.has_left(least_left):
                break
        together = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return together.at(np.argsort(-together.elbo, kind="stable"))

    found = follow(points)
    if np.isnan(found.elbo).all():
        found = follow(usable_starts(spread, points, points_key))  # or says why there are none
    sound = np.flatnonzero(~np.isnan(found.elbo))
    # Paths from points without a density are replaced, not dropped: others count on as many as there were.
    return jax.tree.map(lambda leaf: leaf[sound[np.arange(num) % len(sound)]], found)


def _spread(target: Target, devices: Devices | None) -> Target:
    """Return the target with its rows on the devices, if there are any."""
    return target if devices is None else Target(devices.spread(target.model))


def num_starts(dim: int) -> int:
    """Choose the number of Newton paths; in many dimensions each costs a large eigendecomposition per step."""
    return NUM_STARTS if dim <= 100 else 4 if dim <= 300 else 2


def train_and_judge(
    target: Target,
    settings: Settings,
    flows: AbstractDistribution,
    key: Key[Array, ""],
    bar: Bar,
    deadline: Deadline,
    refiner: Refiner,
    *,
    goal: float | None = None,
    probes: Gaussian | None = None,
    earlier: Posterior | None = None,
    memory: LoopMemory | None = None,
    devices: Devices | None = None,
) -> tuple[Posterior, Gaussian | None]:
    """Train stacked flows, choose or mix, judge, and wrap up.

    With the posterior come Gaussians where mass was found that it misses.

    Flows are trained each by itself; one mixture, stacked like them, is trained as a whole. Training ends early where
    its first cycle does not come within `goal` nats of the posterior. `probes` tell of modes that the flows may miss,
    `memory` outlives the process, and over `devices` the rows are spread while the fit lasts. Training ends early
    enough for the verdict to be there by the `deadline`.
    """
    use_score = settings.trains_by_score(flows)
    method = Method(
        optimizer=settings.optimizer,
        learning_rate=settings.rate_in(target.dim),
        constant_rate=settings.family.paper_recipe,
        num_particles=settings.num_particles,
        use_score=use_score,
        cover=settings.family.cover,
        tolerance=settings.tolerance,
        piece=settings.piece,
        long_cycle=LONG_CYCLE if earlier is None else LONG_CYCLE_IN_REFINING,
    )
    pace = Pace(deadline)
    loop_key, choice_key, judge_key = spawn(key, 3)
    done_before = 0 if earlier is None else int(earlier.settings["steps"])
    recorder = Recorder(bar, settings.num_particles, done_before, may_end=settings.steps is None)
    bar.phase("compiling")

    def keep(place: Place) -> None:
        if memory is not None:
            memory.keep(place, recorder)
        interruption.check()

    seen: Look | None = None

    def look_at(trainee: Trainee) -> Look:
        with use_precision(DIAGNOSTIC_PRECISION):
            return look(trainee, _spread(target, devices), settings, choice_key, judge_key, pace)

    def accept(trainee: Trainee) -> bool:
        nonlocal seen
        seen = look_at(trainee)  # kept for the verdict
        return seen.alone.verdict == "good"

    with Interruption() as interruption:
        try:
            with use_precision(settings.precision):
                begun = begin(flows, settings.optimizer)
                spread = _spread(target, devices)
                place = None if memory is None else memory.restore(begun, recorder)
                trained = train(
                    begun, spread, loop_key, method, settings.steps, recorder, place, keep, goal, accept, pace, bar.seen
                )
        finally:
            if memory is not None:
                memory.flush()
        bar.phase("judging")
        done, interrupted = trained.steps, trained.interrupted
        if interrupted:
            _warn_interrupted(done_before + done)
        with use_precision(DIAGNOSTIC_PRECISION):
            if seen is None or seen.trainee is not trained.trainee:
                seen = look_at(trained.trainee)
            spread = _spread(target, devices)
            subject = Subject(
                seen.distribution,
                seen.draws,
                seen.log_weights,
                seen.alone,
                spread,
                settings,
                deadline,
                choice_key,
                judge_key,
                probes if devices is None else None,
                seen.missing,
                done,
            )
            evidence = run_checks(subject)
            diagnostics, places = subject.judge(evidence), evidence.places
    if interruption.heard and not interrupted:  # while it was judged
        interrupted = True
        _warn_interrupted(done_before + done)
    total = done_before + done
    if interrupted:
        diagnostics = diagnostics.adding(remark(STOPPED, f"interrupted after {total} steps", CONTINUE, steps=total))
    elif trained.out_of_time:
        diagnostics = diagnostics.adding(stopped_by_limit(deadline, f"after {total} steps", CONTINUE))
    history = recorder.history(seen.best)
    if earlier is not None:
        history = {name: np.concatenate([earlier.history[name], values]) for name, values in history.items()}
    chosen = settings.describe() if earlier is None else dict(earlier.settings)
    chosen |= describe_run(done_before + done, seen.num_skipped, deadline, interrupted, trained.out_of_time)
    chosen["training_gradients"] = done * gradients_per_step(trained.trainee.flow, settings.num_particles)
    if earlier is not None:
        chosen["training_gradients"] += earlier.settings.get("training_gradients", 0)
    posterior = Posterior(seen.distribution, target.layout, target.model, diagnostics, history, chosen, refiner)
    return posterior, places


def describe_run(
    steps: int, skipped: int, deadline: Deadline, interrupted: bool = False, out_of_time: bool = False
) -> dict[str, Any]:
    """Return what a run was, JSON-able."""
    return {
        "steps": steps,
        "interrupted": interrupted,
        "num_skipped": skipped,
        **deadline.describe(out_of_time),
        "versions": {name: version_of(name) for name in ("bernflow", "jax", "numpyro", "equinox", "optax")},
    }


def warn_if_poor(posterior: Posterior) -> None:
    """Say aloud that a posterior cannot be trusted."""
    found = posterior.diagnostics
    if found.verdict == "poor":
        # The status says already what the first piece of advice repeats, and all that helps an improper posterior.
        advice = [] if found.improper else posterior.advice[1:]
        plain = " ".join(["bernflow:", found.status, *advice]).replace("`", "")
        warnings.warn(plain, UserWarning, stacklevel=user_level())


def _warn_interrupted(steps: int) -> None:
    """Say aloud, before the judging, that the training was cut short."""
    warnings.warn(
        f"bernflow: interrupted after {steps} steps. The posterior as trained so far is judged and returned; a second "
        "interruption stops at once.",
        UserWarning,
        stacklevel=4,
    )


def stopped_by_limit(deadline: Deadline, when: str, advice: str = "allow more time") -> Finding:
    """Return the finding that the time limit has ended the fit."""
    return remark(STOPPED, f"stopped by time_limit={deadline.limit:g} s {when}", advice)


def share(
    flows: AbstractFlow, target: Target, settings: Settings, key: Key[Array, ""], devices: Devices | None = None
) -> Mixture | None:
    """Return the mixture of starts with the highest ELBO, stacked like flows; None where it is a single one."""
    with use_precision(DIAGNOSTIC_PRECISION):
        started, spread = cast(fetched(flows), DIAGNOSTIC_PRECISION), _spread(target, devices)
        _, mixture, _ = choose(started, spread, key, settings)
        return stacked(mixture, settings.precision) if isinstance(mixture, Mixture) else None


def stacked(distribution: Distribution, precision: str) -> Distribution:
    """Return a distribution as the only one of a stack, ready for training."""
    return cast(jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, distribution), precision)
