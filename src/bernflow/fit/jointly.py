"""Fit a model on batches of rows, and a network beside its posterior."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key

from bernflow.diagnostics.verdict import judge
from bernflow.fit import joint
from bernflow.fit.bar import Bar
from bernflow.fit.batches import Batches
from bernflow.fit.checks.evidence import Subject
from bernflow.fit.checks.run import run_checks
from bernflow.fit.deadline import Deadline, Pace
from bernflow.fit.devices import Devices, check_batches
from bernflow.fit.engine import describe_run, initial_flows, num_starts, stopped_by_limit, train_and_judge
from bernflow.fit.evaluation import NUM_DIAGNOSTIC_DRAWS, num_diagnostic_draws
from bernflow.fit.judging import DIAGNOSTIC_PRECISION, cast, draw_and_judge
from bernflow.fit.many_rows import MAX_JUDGED_ROWS, find_mode, judge_by_part, with_part
from bernflow.fit.progress import Recorder
from bernflow.fit.resume import Resumption
from bernflow.fit.settings import Settings
from bernflow.fit.start import Gaussian
from bernflow.fit.wide_start import finder
from bernflow.flows.factors import unit_factor
from bernflow.keys import generator, spawn
from bernflow.models import Model
from bernflow.models.base import AbstractJointModel
from bernflow.models.inputs import user_code
from bernflow.placement import fetched
from bernflow.posterior import Posterior
from bernflow.precision import use_precision
from bernflow.preflight import starting_points
from bernflow.target import Target, layout_of

DEFAULT_BATCH_SIZE = 256
# Without a given number of steps: so many epochs, and at least so many steps.
EPOCHS_WITH_NETWORK, EPOCHS_WITHOUT, MIN_STEPS = 20, 5, 4000
# With very many rows: as many as five epochs of a million rows. With control variates the noise of a batch depends on
# its size alone, so that more rows need no more steps.
MAX_STEPS = 20_000
# Rows behind the start of a model without a network.
MAX_START_ROWS = 20_000
WEIGHTS_RATE = 1e-3
# Share of a time limit for the training of a network; the posterior given the network gets the rest.
NETWORK_SHARE = 0.6
# One instance for all fits, see `settings.ADAM`; no clipping, because the loss of a batch counts N / B times.
WEIGHTS_OPTIMIZER = optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


@dataclasses.dataclass(frozen=True)
class NetworkTraining:
    """How the weights of a network are trained.

    Attributes:
        optimizer: turns gradients into updates; `rate` multiplies them.
        rate: peak learning rate.
        constant_rate: no warm-up and no decay.
        epoch_end: hears of every finished epoch; returns True to stop.
        resume: given the flow and weights at the start, returns those of an interrupted run and the steps it had taken.
        keep: given the flow and weights at the end, returns those to go on with (the best seen, say).
        report: hears of every finished chunk of steps, before `epoch_end` does.
    """

    optimizer: optax.GradientTransformation = WEIGHTS_OPTIMIZER
    rate: float = WEIGHTS_RATE
    constant_rate: bool = False
    epoch_end: joint.EpochEnd | None = None
    resume: Callable[[joint.JointTrainee], tuple[joint.JointTrainee, int]] | None = None
    keep: Callable[[joint.JointTrainee], joint.JointTrainee] | None = None
    report: joint.Report | None = None


def is_joint(model: AbstractJointModel, batch_size: int | None) -> bool:
    """Tell whether a model is to be trained on batches."""
    return batch_size is not None or model.trained()[0] is not None or own_batch_size(model) is not None


def own_batch_size(model: AbstractJointModel) -> int | None:
    """Return the batch size that a model brings along (a NumPyro plate with subsample_size)."""
    return getattr(model, "batch_size", None)


def fit_jointly(
    model: AbstractJointModel,
    settings: Settings,
    key: Key[Array, ""],
    batch_size: int | None,
    bar: Bar,
    deadline: Deadline,
    refiner: Callable[..., Posterior],
    training: NetworkTraining | None = None,
    resumption: Resumption | None = None,
    devices: Devices | None = None,
) -> Posterior:
    """Train on batches, then judge on all rows.

    What `resumption` finds in its folder is not done again; over `devices` batches are spread.

    With a network there are two stages: flow and weights are trained together, then the weights are frozen and the
    flow is fitted by the ordinary engine to the posterior that the frozen network leaves. The second stage sees all
    rows, so that the posterior given the network is as accurate as that of any other model.
    """
    training, settings = training or NetworkTraining(), settings.thorough()
    start_key, joint_key, final_key = spawn(key, 3)
    # Rows travel in batches alone: what is compiled for the rest must not take them along.
    without_rows = _of_all_processes(model, devices).without_rows()
    light = Target(without_rows)
    size = batch_size or own_batch_size(model) or min(DEFAULT_BATCH_SIZE, model.num_rows())
    seed = int(generator(joint_key).integers(2**31 - 1))
    batches = _batches(model, size, seed, devices)
    has_weights = model.trained()[0] is not None
    many = batches.total_rows > MAX_JUDGED_ROWS and _is_anchored(model, batches)
    steps = settings.steps or _default_steps(batches.steps_per_epoch, has_weights, many)
    method = _method(light, settings, training)
    pace = Pace(deadline.part(NETWORK_SHARE if has_weights else 1.0))
    recorder = Recorder(bar, settings.num_particles)
    memory = None if resumption is None else resumption.joint()
    try:
        density = _batch_density(light, model, batches)
        # Models that bring their own batches draw from their prior with the rows, which are in memory.
        whole = light if own_batch_size(model) is None else Target(model)
        gaussian, flow_key = _initial_gaussian(whole, density, settings, start_key)
        anchor = None if memory is None else memory.anchor()
        if anchor is None and _is_anchored(model, batches):
            anchor = _find_anchor(density, batches, gaussian, many)
        if many and anchor is not None:
            gaussian = gaussian._replace(loc=anchor.x.astype(gaussian.loc.dtype))
        flow = settings.family.build(flow_key, settings.spec(light.dim), gaussian.loc, gaussian.factor)
        trainee, first_step = joint.begin(flow, model, method), 0
        if memory is not None:
            trainee, first_step = memory.restore(trainee, recorder)
        if training.resume is not None:
            trainee, first_step = training.resume(trainee)
        done = first_step
        if done < steps:
            bar.phase("compiling")
            trainee, done = joint.train_jointly(
                trainee,
                without_rows,
                light.layout,
                batches,
                joint_key,
                method,
                steps,
                recorder if training.report is None else _tell_both(recorder, training.report),
                epoch_end=training.epoch_end,
                anchor=cast(anchor, settings.precision),
                first_step=first_step,
                keep=lambda done, now: memory.keep(done, now, anchor, recorder) if memory else None,
                pace=pace,
            )
        out_of_time = done < steps and pace.is_limited and not pace.may_step()
        if training.keep is not None:
            trainee = training.keep(trainee)
    finally:
        if memory is not None:
            memory.flush()
    history = recorder.history(0) if recorder.num_rows else {}
    more = {"batch_size": size, "joint_steps": done, "tolerance": None}
    if not has_weights:
        bar.phase("judging")
        with use_precision(DIAGNOSTIC_PRECISION):
            flow = cast(fetched(trainee.flow), DIAGNOSTIC_PRECISION)
            skipped = int(trainee.num_skipped)
            if many and anchor is not None:
                part = judge_by_part(flow, density, batches, anchor, final_key, pace.num_draws(NUM_DIAGNOSTIC_DRAWS))
                diagnostics = with_part(judge(part.log_weights, num_failed_steps=skipped), part, batches)
            else:
                spread = Target(model if devices is None else devices.spread(model))
                num = pace.num_draws(num_diagnostic_draws(spread.model, dim=spread.dim))
                drawn = draw_and_judge(flow, spread, final_key, num, skipped)
                subject = Subject(flow, *drawn, spread, settings, deadline, final_key, final_key, steps=done)
                diagnostics = subject.judge(run_checks(subject))
        if out_of_time:
            diagnostics = diagnostics.adding(stopped_by_limit(deadline, f"after {done} of {steps} steps"))
        chosen = settings.describe() | describe_run(done, skipped, deadline, out_of_time=out_of_time) | more
        return Posterior(flow, layout_of(model), model, diagnostics, history, chosen, refiner)
    frozen = Target(model.frozen(*fetched((trainee.weights, trainee.state))))
    given_network = dataclasses.replace(settings, steps=None)
    flow_keys = spawn(final_key, 3)
    bar.stage("given the network")
    flows, probes = initial_flows(frozen, given_network, flow_keys[0], flow_keys[1], devices, deadline)
    posterior, _ = train_and_judge(
        frozen,
        given_network,
        flows,
        flow_keys[2],
        bar,
        deadline,
        refiner,
        probes=probes,
        # A network that will be trained on leaves another posterior, which needs a training of its own.
        memory=None if resumption is None or out_of_time else resumption.loop(),
        devices=devices,
    )
    posterior.settings |= more
    if out_of_time:
        posterior.settings["out_of_time"] = True
        stopped = stopped_by_limit(deadline, f"after {done} of {steps} steps of the network")
        posterior.diagnostics = posterior.diagnostics.adding(stopped)
    posterior.history |= {f"joint_{name}": values for name, values in history.items()}
    return posterior


def _batches(model: AbstractJointModel, size: int, seed: int, devices: Devices | None) -> Batches:
    if devices is None:
        return Batches(model.rows(), model.num_rows(), size, seed)
    check_batches(devices, model, size)
    num = devices.num_processes if devices.own_rows else 1
    # Every process shuffles its own rows in its own order.
    seed += jax.process_index() if devices.own_rows else 0
    return Batches(model.rows(), model.num_rows(), size // num, seed, False, devices.batch, num)


def _of_all_processes(model: AbstractJointModel, devices: Devices | None) -> AbstractJointModel:
    """Return the model as one of the rows of all processes, so that its batches count for those."""
    if devices is None or not devices.own_rows:
        return model
    assert isinstance(model, Model)
    return model.with_rows(*model.split_rows(), devices.total_rows(model.num_rows()))


def _tell_both(recorder: joint.Report, report: joint.Report) -> joint.Report:
    def both(done: int, planned: int, trace: Any) -> None:
        recorder(done, planned, trace)
        report(done, planned, trace)

    return both


def _default_steps(steps_per_epoch: int, has_weights: bool, many: bool = False) -> int:
    if many:
        return MAX_STEPS
    epochs = EPOCHS_WITH_NETWORK if has_weights else EPOCHS_WITHOUT
    least = epochs * steps_per_epoch
    return max(least, math.ceil(MIN_STEPS / steps_per_epoch) * steps_per_epoch) if not has_weights else least


def _method(target: Target, settings: Settings, training: NetworkTraining) -> joint.JointMethod:
    return joint.JointMethod(
        flow_optimizer=settings.optimizer,
        flow_rate=1.0 if settings.learning_rate is None else settings.learning_rate,
        weights_optimizer=training.optimizer,
        weights_rate=training.rate,
        num_particles=settings.num_particles,
        use_score=settings.family.use_score and settings.family.has_tails,
        constant_rate=training.constant_rate,
    )


def _batch_density(target: Target, model: AbstractJointModel, batches: Batches) -> joint.BatchDensity:
    """Return what many rows, but not all, say of the posterior, to start from."""
    fixed = own_batch_size(model)
    num = fixed or batches.batch_size
    if fixed is None and model.trained()[0] is None:
        num = min(batches.share(MAX_START_ROWS), batches.num_rows)
    weights, state, light = joint.on_device((*model.trained(), target.model))
    density = joint.BatchDensity(target.layout, light, weights, state, batches.first(num))
    as_trained = eqx.tree_at(lambda d: d.batch, density, batches.first(batches.batch_size))
    with user_code("The model's log density of a batch of rows"):
        eqx.filter_eval_shape(lambda d, x: d.log_density(x), as_trained, jnp.zeros(target.dim))
    return density


def _initial_gaussian(
    target: Target, density: joint.BatchDensity, settings: Settings, key: Key[Array, ""]
) -> tuple[Gaussian, Key[Array, ""]]:
    """Return mode and curvature of what the first rows say of the posterior, and a key for the flow there."""
    points_key, path_key, flow_key = spawn(key, 3)
    points = starting_points(target, points_key, num_starts(target.dim))
    if not settings.family.use_start:
        return Gaussian(points[0], unit_factor(target.dim, jnp), jnp.zeros(())), flow_key
    return finder(target.dim)(density, points, path_key).at(0), flow_key


def _is_anchored(model: AbstractJointModel, batches: Batches) -> bool:
    """Tell whether batches have control variates; a network has none, because it moves while it is trained."""
    fits = own_batch_size(model) is None or batches.num_rows % batches.batch_size == 0
    return model.trained()[0] is None and fits


def _find_anchor(density: joint.BatchDensity, batches: Batches, gaussian: Gaussian, many: bool) -> joint.Anchor:
    """Return the anchor of the control variates: the start or, of very many rows, their mode.

    The sum of very many rows is beyond single precision.
    """
    if not many:
        return joint.find_anchor(density, batches, gaussian.loc)
    with use_precision(DIAGNOSTIC_PRECISION):
        return find_mode(density, batches, *cast(gaussian[:2], DIAGNOSTIC_PRECISION))
