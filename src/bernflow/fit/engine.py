"""From a target to a judged posterior: start, train, choose, judge."""

import warnings
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int, Key

from bernflow.background import Effort, without_pauses
from bernflow.diagnostics.advice import beyond_status
from bernflow.diagnostics.findings import STOPPED, Diagnostics, Finding, remark
from bernflow.fit import modes
from bernflow.fit.ahead import compile_ahead
from bernflow.fit.building import flows_at
from bernflow.fit.checkpoints.resume import Memory
from bernflow.fit.checks.evidence import Subject
from bernflow.fit.checks.run import run_checks
from bernflow.fit.deadline import Deadline, Pace
from bernflow.fit.evaluation import num_evaluation_draws
from bernflow.fit.judging import DIAGNOSTIC_PRECISION, Look, cast, choose, draw_and_judge, look
from bernflow.fit.powers import find_powers
from bernflow.fit.rotation import find_rotation
from bernflow.fit.run import Run
from bernflow.fit.settings import Settings
from bernflow.fit.settling import settle
from bernflow.fit.start import Gaussian
from bernflow.fit.structured_start import MIN_DIM, structured_start
from bernflow.fit.train.draws import Draws
from bernflow.fit.train.loop import Loop, LoopState, Steps, Trained, Watch
from bernflow.fit.train.objective import AllRows
from bernflow.fit.train.progress import Recorder
from bernflow.fit.train.recipe import recipe_for
from bernflow.fit.train.state import TrainState, begin
from bernflow.fit.train.steps import gradients_per_step
from bernflow.fit.train.stopping import LONG_CYCLE, LONG_CYCLE_IN_REFINING, StoppingRule
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
# The noise of evaluations is derived beside that of the steps, which count from zero.
EVALUATION_KEY = 2**31 - 1

# What to do with a training that was cut short.
CONTINUE = "post.refine() continues the training"

Distribution = TypeVar("Distribution", bound=AbstractDistribution)


@without_pauses()
def initial_flows(
    target: Target, settings: Settings, start_key: Key[Array, ""], flow_key: Key[Array, ""], run: Run
) -> tuple[AbstractFlow, Gaussian | None]:
    """Return one flow per restart, stacked, each at a start of its own, and all starts that were found.

    The search for them ends early enough for the deadline of the `run`.
    """
    settings.family.check(target.dim)
    settings = settings.with_scales(target.layout.num_scales)
    num = max(num_starts(target.dim), settings.restarts * (4 if settings.restarts > 1 else 1))
    may_be_structured = settings.family.mixes and settings.restarts == 1 and target.dim >= MIN_DIM
    may_be_structured &= run.devices is None
    if may_be_structured:
        run.bar.phase("starting", f"structure of {target.dim:,} parameters")
        flow = structured_start(target, settings, nth(start_key, 1), run.deadline)
        if flow is not None:
            return flow, None
    if settings.family.use_start:
        starts = find_starts(target, num, start_key, run, None if run.is_one_of_many else settings)
        chosen = np.array(modes.distinct_starts(starts, settings.restarts))
        if may_be_structured and is_dense(target.dim):
            starts = _with_settled(starts, int(chosen[0]), target, nth(start_key, 3), run)
        return informed_flows(run.spread(target), settings, starts, chosen, flow_key), starts
    spread, points_key = run.spread(target), nth(start_key, 0)
    points = usable_starts(spread, starting_points(spread, points_key, num), points_key)
    same = jax.tree.map(lambda leaf: leaf[None], Gaussian(points[0], unit_factor(target.dim), np.zeros(())))
    return flows_at(settings, target.dim, same, np.zeros(settings.restarts, int), flow_key), None


def _with_settled(starts: Gaussian, which: int, target: Target, key: Key[Array, ""], run: Run) -> Gaussian:
    """Return the starts, one of them brought uphill its ELBO."""
    settled = settle(target, starts.at(which), key, run.deadline)

    def replaced(old, new):
        changed = np.array(old)
        changed[which] = new
        return changed

    return jax.tree.map(replaced, starts, settled)


def informed_flows(
    target: Target, settings: Settings, starts: Gaussian, chosen: Int[np.ndarray, " r"], key: Key[Array, ""]
) -> AbstractFlow:
    """Return stacked flows at chosen starts that know what the density tells: axes near them, tails far from them."""
    flows = flows_at(settings, target.dim, starts, chosen, key)
    # In more dimensions a matrix of axes is too large.
    if not isinstance(flows, BernsteinFlow | WideBernsteinFlow) or not is_dense(target.dim):
        return flows
    starts = starts.at(chosen)
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
    run: Run,
    next_fit: Settings | None = None,
    least_left: float = LEFT_AFTER_STARTS,
) -> Gaussian:
    """Return the Gaussians that Newton paths from so many points have found, stacked, the best first, on the host.

    Meanwhile what a fit with settings `next_fit` needs is compiled. Under a time limit paths are followed one after the
    other as long as this share of the time limit is left.
    """
    at_once = num if run.deadline.limit is None or run.devices is not None else 1
    spread = run.spread(target)
    # Processes that share the rows must compile the same: they may have different numbers of them.
    effort = effort_for_start(target) if run.devices is None else Effort.LIGHT
    # Arrays spread over devices would have to lie where they will.
    if next_fit is not None and run.devices is None:
        compile_ahead(target, next_fit, num, effort, at_once)
    points_key, path_key = spawn(key, 2)
    if not run.is_one_of_many:  # the first of them was checked
        check_output(target)
    run.bar.phase("starting", f"{num} Newton paths")
    points = starting_points(spread, points_key, num)
    find = finder(target.dim).with_effort(effort)

    def follow(points: Any) -> Gaussian:
        parts: list[Gaussian] = []
        for batch in [points] if at_once == num else np.split(np.asarray(points), num):
            parts.append(jax.tree.map(np.asarray, find(spread, batch, path_key)))
            if not np.isnan(parts[-1].elbo).all() and not run.deadline.has_left(least_left):
                break
        together = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return together.at(np.argsort(-together.elbo, kind="stable"))

    found = follow(points)
    if np.isnan(found.elbo).all():
        found = follow(usable_starts(spread, points, points_key))  # or says why there are none
    sound = np.flatnonzero(~np.isnan(found.elbo))
    # Paths from points without a density are replaced, not dropped: others count on as many as there were.
    return jax.tree.map(lambda leaf: leaf[sound[np.arange(num) % len(sound)]], found)


def num_starts(dim: int) -> int:
    """Choose the number of Newton paths; in many dimensions each costs a large eigendecomposition per step."""
    return NUM_STARTS if dim <= 100 else 4 if dim <= 300 else 2


class Stage(NamedTuple):
    """What tells one training of a fit from the others.

    Attributes:
        name: of its checkpoint.
        probes: Gaussians that the starts have found, which tell of modes that the flows may miss.
        goal: training ends early where its first cycle does not come within so many nats of the posterior.
        earlier: the posterior that is trained on.
    """

    name: str = "flow"
    probes: Gaussian | None = None
    goal: float | None = None
    earlier: Posterior | None = None


def train_and_judge(
    target: Target, settings: Settings, flows: AbstractDistribution, key: Key[Array, ""], run: Run, stage: Stage
) -> Steps[tuple[Posterior, Gaussian | None]]:
    """Train stacked flows, choose or mix, judge, and wrap up.

    With the posterior come Gaussians where mass was found that it misses.

    Flows are trained each by itself; one mixture, stacked like them, is trained as a whole. Training ends early enough
    for the verdict to be there by the deadline. It is to be called in the precision of the settings.
    """
    recipe, pace = recipe_for(settings, flows), Pace(run.deadline)
    loop_key, choice_key, judge_key = spawn(key, 3)
    spread = run.spread(target)
    rule = StoppingRule(
        Draws(spread, nth(loop_key, EVALUATION_KEY), recipe, pace),
        stage.goal,
        LONG_CYCLE if stage.earlier is None else LONG_CYCLE_IN_REFINING,
    )
    with Conclusion(target, settings, run, stage, pace, (choice_key, judge_key)) as conclusion:
        begun = begin(flows, settings.optimizer)
        training = Loop(AllRows(spread), loop_key, recipe, pace, conclusion.watch, rule)
        try:
            trained = yield from training.run(begun, conclusion.restore(begun))
        finally:
            conclusion.memory.flush()
        return conclusion.judge(trained)


class Conclusion:
    """Follows a training, judges what it came to, and wraps it up; holds an interruption back meanwhile.

    Args:
        target: the posterior.
        settings: of the fit.
        run: its surroundings.
        stage: which training it is.
        pace: what the time allows.
        keys: for the choice of flows and for the verdict.
    """

    def __init__(
        self,
        target: Target,
        settings: Settings,
        run: Run,
        stage: Stage,
        pace: Pace,
        keys: tuple[Key[Array, ""], Key[Array, ""]],
    ):
        self.target, self.settings, self.run, self.stage, self.pace = target, settings, run, stage, pace
        self.keys = keys
        self._done_before = 0 if stage.earlier is None else int(stage.earlier.settings["steps"])
        self._seen: Look | None = None
        self.recorder = Recorder(run.bar, settings.num_particles, self._done_before, may_end=settings.steps is None)
        self.memory = Memory() if run.resumption is None else run.resumption.memory(stage.name)
        self.watch = Watch(self.recorder, self._keep, self._accept, run.bar.seen)

    def __enter__(self) -> "Conclusion":
        self.run.bar.phase("compiling")
        self._interruption = self.run.interruption().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._interruption.__exit__(*error)

    def restore(self, begun: TrainState) -> LoopState | None:
        """Return where an earlier call ended."""
        return self.memory.restore(begun, self.recorder)

    def judge(self, trained: Trained) -> tuple[Posterior, Gaussian | None]:
        """Judge what a training came to; return the posterior, and Gaussians where mass was found that it misses."""
        self.begin_judging(trained)
        if self.run.is_brief:
            return self._judge_briefly(trained), None
        with use_precision(DIAGNOSTIC_PRECISION):
            seen = self._look_at(trained.state)
            subject = Subject(
                seen.distribution,
                seen.draws,
                seen.log_weights,
                seen.alone,
                self.run.spread(self.target),
                self.settings,
                self.run.deadline,
                *self.keys,
                self.stage.probes if self.run.devices is None else None,
                seen.missing,
                trained.steps,
            )
            evidence = run_checks(subject)
        return self.wrap(trained, seen, subject.judge(evidence)), evidence.places

    def _judge_briefly(self, trained: Trained) -> Posterior:
        choice_key, judge_key = self.keys
        with use_precision(DIAGNOSTIC_PRECISION):
            flows = cast(fetched(trained.state.flow), DIAGNOSTIC_PRECISION)
            best, distribution, missing = choose(flows, self.target, choice_key, self.settings)
            num = num_evaluation_draws(self.target.model, dim=self.target.dim)
            skipped = int(np.asarray(trained.state.num_skipped)[best])
            drawn = draw_and_judge(distribution, self.target, judge_key, num, skipped)
            seen = Look(trained.state, best, distribution, missing, *drawn)
        return self.wrap(trained, seen, seen.judge())

    def begin_judging(self, trained: Trained) -> None:
        """Say that the training is over, and whether it was cut short."""
        self.run.bar.phase("judging")
        if trained.interrupted:
            _warn_interrupted(self._done_before + trained.steps)

    def wrap(self, trained: Trained, seen: Look, diagnostics: Diagnostics) -> Posterior:
        """Return the posterior with its history, and with what was chosen and done."""
        earlier, settings, deadline = self.stage.earlier, self.settings, self.run.deadline
        steps, interrupted = self._done_before + trained.steps, trained.interrupted
        if self._interruption.heard and not interrupted:  # while it was judged
            interrupted = True
            _warn_interrupted(steps)
        if interrupted:
            diagnostics = diagnostics.adding(remark(STOPPED, f"interrupted after {steps} steps", CONTINUE, steps=steps))
        elif trained.out_of_time:
            diagnostics = diagnostics.adding(stopped_by_limit(deadline, f"after {steps} steps", CONTINUE))
        history = self.recorder.history(seen.best) if self.recorder.num_rows else {}
        chosen = settings.describe() if earlier is None else dict(earlier.settings)
        chosen |= describe_run(steps, seen.num_skipped, deadline, interrupted, trained.out_of_time)
        gradients = trained.steps * gradients_per_step(trained.state.flow, settings.num_particles)
        if earlier is not None:
            history = {name: np.concatenate([earlier.history[name], values]) for name, values in history.items()}
            gradients += earlier.settings.get("training_gradients", 0)
        chosen["training_gradients"] = gradients
        return Posterior(
            seen.distribution, self.target.layout, self.target.model, diagnostics, history, chosen, self.run.refiner
        )

    def _keep(self, at: LoopState) -> None:
        self.memory.keep(at, self.recorder)
        self._interruption.check()

    def _accept(self, state: TrainState) -> bool:
        with use_precision(DIAGNOSTIC_PRECISION):
            return self._look_at(state).alone.verdict == "good"

    def _look_at(self, state: TrainState) -> Look:
        """Return fresh draws; those that have ended the training serve the verdict."""
        if self._seen is None or self._seen.trainee is not state:
            self._seen = look(state, self.run.spread(self.target), self.settings, *self.keys, self.pace)
        return self._seen


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
        plain = " ".join(["bernflow:", found.status, *beyond_status(found, posterior.advice)]).replace("`", "")
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


def share(flows: AbstractFlow, target: Target, settings: Settings, key: Key[Array, ""], run: Run) -> Mixture | None:
    """Return the mixture of starts with the highest ELBO, stacked like flows; None where it is a single one."""
    with use_precision(DIAGNOSTIC_PRECISION):
        started = cast(fetched(flows), DIAGNOSTIC_PRECISION)
        _, mixture, _ = choose(started, run.spread(target), key, settings)
        return stacked(mixture, settings.precision) if isinstance(mixture, Mixture) else None


def stacked(distribution: Distribution, precision: str) -> Distribution:
    """Return a distribution as the only one of a stack, ready for training."""
    return cast(jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, distribution), precision)
