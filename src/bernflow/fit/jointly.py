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
from bernflow.fit.batches import Batches
from bernflow.fit.engine import (
    DIAGNOSTIC_PRECISION,
    cast,
    describe_run,
    initial_flows,
    num_starts,
    train_and_judge,
    warn_if_poor,
)
from bernflow.fit.loop import NUM_DIAGNOSTIC_DRAWS, log_weights_of
from bernflow.fit.progress import Recorder
from bernflow.fit.settings import Settings
from bernflow.fit.start import find_start
from bernflow.models.base import AbstractJointModel
from bernflow.models.inputs import user_code
from bernflow.posterior import Posterior
from bernflow.precision import use_precision
from bernflow.preflight import starting_points
from bernflow.target import Target

DEFAULT_BATCH_SIZE = 256
# Without a given number of steps: so many epochs, and at least so many steps.
EPOCHS_WITH_NETWORK, EPOCHS_WITHOUT, MIN_STEPS = 20, 5, 4000
# Rows behind the start of a model without a network.
MAX_START_ROWS = 20_000
WEIGHTS_RATE = 1e-3
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
    progress: bool,
    began: float,
    refiner: Callable[..., Posterior],
    training: NetworkTraining | None = None,
) -> Posterior:
    """Train on batches, then judge on all rows.

    With a network there are two stages: flow and weights are trained together, then the weights are frozen and the
    flow is fitted by the ordinary engine to the posterior that the frozen network leaves. The second stage sees all
    rows, so that the posterior given the network is as accurate as that of any other model.
    """
    training = training or NetworkTraining()
    start_key, joint_key, final_key = jax.random.split(key, 3)
    target = Target(model)
    size = batch_size or own_batch_size(model) or min(DEFAULT_BATCH_SIZE, model.num_rows())
    seed = int(jax.random.randint(joint_key, (), 0, 2**31 - 1))
    batches = Batches(model.rows(), model.num_rows(), size, seed)
    has_weights = model.trained()[0] is not None
    steps = settings.steps or _default_steps(batches.steps_per_epoch, has_weights)
    method = _method(target, settings, training)
    recorder = Recorder(progress, settings.num_particles)
    try:
        density = _batch_density(target, model, batches)
        flow, loc = _initial_flow(target, density, settings, start_key)
        anchor = _find_anchor(model, density, batches, loc)
        trainee, first_step = joint.begin(flow, model, method), 0
        if training.resume is not None:
            trainee, first_step = training.resume(trainee)
        done = first_step
        if done < steps:
            trainee, done = joint.train_jointly(
                trainee,
                model,
                target.layout,
                batches,
                joint_key,
                method,
                steps,
                recorder if training.report is None else _tell_both(recorder, training.report),
                epoch_end=training.epoch_end,
                anchor=anchor,
                first_step=first_step,
            )
        if training.keep is not None:
            trainee = training.keep(trainee)
    finally:
        recorder.close()
    history = recorder.history(0) if done > first_step else {}
    more = {"batch_size": size, "joint_steps": done}
    if not has_weights:
        with use_precision(DIAGNOSTIC_PRECISION):
            flow = cast(trainee.flow, DIAGNOSTIC_PRECISION)
            diagnostics = judge(
                log_weights_of(flow, target, final_key, NUM_DIAGNOSTIC_DRAWS), num_failed_steps=int(trainee.num_skipped)
            )
        chosen = settings.describe() | describe_run(done, int(trainee.num_skipped), began) | more
        posterior = Posterior(flow, target.layout, model, diagnostics, history, chosen, refiner)
        warn_if_poor(posterior)
        return posterior
    frozen = Target(model.frozen(trainee.weights, trainee.state))
    given_network = dataclasses.replace(settings, steps=None)
    flow_keys = jax.random.split(final_key, 3)
    flows, probes = initial_flows(frozen, given_network, flow_keys[0], flow_keys[1])
    posterior = train_and_judge(frozen, given_network, flows, flow_keys[2], progress, began, refiner, probes=probes)
    posterior.settings |= more
    posterior.history |= {f"joint_{name}": values for name, values in history.items()}
    return posterior


def _tell_both(recorder: joint.Report, report: joint.Report) -> joint.Report:
    def both(done: int, planned: int, trace: Any) -> None:
        recorder(done, planned, trace)
        report(done, planned, trace)

    return both


def _default_steps(steps_per_epoch: int, has_weights: bool) -> int:
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
    num = fixed or (batches.batch_size if model.trained()[0] is not None else min(MAX_START_ROWS, batches.num_rows))
    weights, state, light = joint.on_device((*model.trained(), model.without_rows()))
    density = joint.BatchDensity(target.layout, light, weights, state, batches.first(num))
    as_trained = eqx.tree_at(lambda d: d.batch, density, batches.first(batches.batch_size))
    with user_code("The model's log density of a batch of rows"):
        eqx.filter_eval_shape(lambda d, x: d.log_density(x), as_trained, jnp.zeros(target.dim))
    return density


def _initial_flow(target: Target, density: joint.BatchDensity, settings: Settings, key: Key[Array, ""]):
    """Build the flow at the mode and curvature of what the first rows say of the posterior."""
    points_key, path_key, flow_key = jax.random.split(key, 3)
    points = starting_points(target, points_key, num_starts(target.dim))
    if settings.family.use_start:
        gaussians = find_start(density, points, path_key)  # type: ignore[arg-type]
        loc, factor = gaussians.loc[0], gaussians.factor[0]
    else:
        loc, factor = points[0], jnp.eye(target.dim)
    return settings.family.build(flow_key, settings.spec(target.dim), loc, factor), loc


def _find_anchor(
    model: AbstractJointModel, density: joint.BatchDensity, batches: Batches, x: Array
) -> joint.Anchor | None:
    """Return the anchor of the control variates; a network has none, because it moves while it is trained."""
    fits = own_batch_size(model) is None or batches.num_rows % batches.batch_size == 0
    return joint.find_anchor(density, batches, x) if model.trained()[0] is None and fits else None
