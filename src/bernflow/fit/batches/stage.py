"""The training on batches of rows: where it starts, how it trains, and what it is judged by."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from bernflow.diagnostics.verdict import judge
from bernflow.errors import ArgumentError
from bernflow.fit.batches.many_rows import MAX_JUDGED_ROWS, find_mode, judge_by_part, with_part
from bernflow.fit.batches.rows import Batches
from bernflow.fit.deadline import PIECE, Pace
from bernflow.fit.devices import Devices, check_batches
from bernflow.fit.engine import Conclusion, num_starts
from bernflow.fit.evaluation import NUM_DIAGNOSTIC_DRAWS
from bernflow.fit.judging import DIAGNOSTIC_PRECISION, Look, cast
from bernflow.fit.run import Run
from bernflow.fit.settings import Settings
from bernflow.fit.start import Gaussian
from bernflow.fit.train.loop import Loop, LoopState, Report, Steps, Trained
from bernflow.fit.train.objective import Anchor, BatchDensity, BatchFeed, BatchOfRows, find_anchor
from bernflow.fit.train.recipe import CHUNK, Recipe, StepConfig
from bernflow.fit.train.scan import network_steps_at_once
from bernflow.fit.train.state import TrainState, as_stack, begin, on_device, single, with_network
from bernflow.fit.wide_start import finder
from bernflow.flows.base import AbstractFlow
from bernflow.flows.factors import unit_factor
from bernflow.keys import generator, spawn
from bernflow.models import Model
from bernflow.models.base import AbstractJointModel
from bernflow.models.inputs import user_code
from bernflow.placement import fetched
from bernflow.posterior import Posterior
from bernflow.precision import use_precision
from bernflow.preflight import starting_points
from bernflow.target import Target

DEFAULT_BATCH_SIZE = 256
# Without a given number of steps: so many epochs, and at least so many steps.
EPOCHS_WITH_NETWORK, EPOCHS_WITHOUT, MIN_STEPS = 20, 5, 4000
# With very many rows: as many as five epochs of a million rows. With control variates the noise of a batch depends on
# its size alone, so that more rows need no more steps.
MAX_STEPS = 20_000
# Rows behind the start of a model without a network.
MAX_START_ROWS = 20_000
WEIGHTS_RATE = 1e-3
# Steps of a network, at least, between two looks from the host.
FEW_STEPS = 10
# Share of a time limit for the training of a network; the posterior given the network gets the rest.
NETWORK_SHARE = 0.6
# One instance for all fits, see `settings.ADAM`; no clipping, because the loss of a batch counts N / B times.
WEIGHTS_OPTIMIZER = optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


# Hears of every finished epoch, with flow, weights and state as they are, without an axis of restarts; returns True to
# stop.
EpochEnd = Callable[[int, TrainState], bool]


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
    epoch_end: EpochEnd | None = None
    resume: Callable[[TrainState], tuple[TrainState, int]] | None = None
    keep: Callable[[TrainState], TrainState] | None = None
    report: Report | None = None


def own_batch_size(model: AbstractJointModel) -> int | None:
    """Return the batch size that a model brings along (a NumPyro plate with subsample_size)."""
    return getattr(model, "batch_size", None)


class BatchStage:
    """The training on batches of one fit."""

    def __init__(
        self,
        model: AbstractJointModel,
        settings: Settings,
        run: Run,
        training: NetworkTraining,
        batch_size: int | None,
        key: Key[Array, ""],
    ):
        self.model, self.run, self.training, self.key = model, run, training, key
        # The data are not closed over: only batches are passed to compiled code.
        self.light = Target(_of_all_processes(model, run.devices).without_rows())
        self.network = model.trained()[0]
        self.size = batch_size or own_batch_size(model) or min(DEFAULT_BATCH_SIZE, model.num_rows())
        self.batches = _batches(model, self.size, int(generator(key).integers(2**31 - 1)), run.devices)
        self.is_anchored = _is_anchored(model, self.batches)
        self.has_many = self.is_anchored and self.batches.total_rows > MAX_JUDGED_ROWS
        per_epoch, has_network = self.batches.steps_per_epoch, self.network is not None
        self.steps = settings.steps or _default_steps(per_epoch, has_network, self.has_many)
        self.settings = dataclasses.replace(settings, steps=self.steps)
        if self.has_many and settings.checks.thorough:
            raise ArgumentError(
                f"checks={settings.checks.name!r}: of more than {MAX_JUDGED_ROWS:,} rows in batches a part judges, and "
                "nothing is searched for elsewhere. Leave checks out."
            )
        self.pace = Pace(run.deadline.part(NETWORK_SHARE if has_network else 1.0))
        self.density = _batch_density(self.light, model, self.batches)
        self.anchor: Anchor | None = None

    def train(self, conclusion: Conclusion, start_key: Key[Array, ""]) -> Steps[Trained]:
        """Train flow and weights together for a number of steps."""
        memory, training, watch = conclusion.memory, self.training, conclusion.watch
        try:
            flow = self._initial_flow(start_key, memory.constants)
            recipe = self._recipe()
            begun = begin(as_stack(flow), recipe.optimizer)
            if self.network is not None:
                begun = with_network(begun, *self.model.trained(), training.optimizer)
            resumed = conclusion.restore(begun)
            if training.resume is not None:
                state, done = training.resume(single(begun))
                resumed = LoopState.at_start(as_stack(state))._replace(step=done, done=done)
            if training.report is not None or training.epoch_end is not None:
                watch = self._watched(watch)
            objective = BatchOfRows(
                self.light.layout, on_device(self.light.model), cast(self.anchor, self.settings.precision)
            )
            steps = Loop(BatchFeed(objective, self.batches), self.key, recipe, self.pace, watch)
            trained = yield from steps.run(begun, resumed)
        finally:
            memory.flush()
        if training.keep is not None:
            trained = trained._replace(state=as_stack(training.keep(single(trained.state))))
        return trained

    def judge(self, conclusion: Conclusion, trained: Trained, key: Key[Array, ""]) -> Posterior:
        """Judge the flow by all rows or, of very many, by a part of them."""
        if not self.has_many:
            return conclusion.judge(trained)[0]
        assert self.anchor is not None
        conclusion.begin_judging(trained)
        with use_precision(DIAGNOSTIC_PRECISION):
            flow = cast(fetched(single(trained.state.flow)), DIAGNOSTIC_PRECISION)
            num = self.pace.num_draws(NUM_DIAGNOSTIC_DRAWS)
            part = judge_by_part(flow, self.density, self.batches, self.anchor, key, num)
            skipped = int(np.asarray(trained.state.num_skipped)[0])
            alone = judge(part.log_weights, num_failed_steps=skipped)
            seen = Look(trained.state, 0, flow, None, np.zeros((0, flow.dim)), part.log_weights, alone)
        return conclusion.wrap(trained, seen, with_part(alone, part, self.batches))

    def describe(self, posterior: Posterior, trained: Trained) -> Posterior:
        """Add what was done on batches to a posterior."""
        if self.network is None:
            del posterior.settings["training_gradients"]  # they were of batches
        posterior.settings |= {"batch_size": self.size, "joint_steps": trained.steps, "tolerance": None}
        return posterior

    def _initial_flow(self, key: Key[Array, ""], constants: dict[str, Any]) -> AbstractFlow:
        """Return the flow at mode and curvature of what some rows say, and find the anchor of the control variates."""
        # Models that bring their own batches draw from their prior with the rows, which are in memory.
        whole = self.light if own_batch_size(self.model) is None else Target(self.model)
        gaussian, flow_key = _initial_gaussian(whole, self.density, self.settings, key)
        if constants:
            # Of very many rows it is in double precision whatever the training is in.
            self.anchor = Anchor(*(constants[name] for name in Anchor._fields))
        elif self.is_anchored:
            self.anchor = _find_anchor(self.density, self.batches, gaussian, self.has_many)
            constants |= self.anchor._asdict()
        if self.has_many and self.anchor is not None:
            gaussian = gaussian._replace(loc=self.anchor.x.astype(gaussian.loc.dtype))
        spec = self.settings.spec(self.light.dim)
        return self.settings.family.build(flow_key, spec, gaussian.loc, gaussian.factor)

    def _recipe(self) -> Recipe:
        """Return how flow and weights are trained: by the reverse KL, the only one that a batch estimates well."""
        settings, training, is_limited = self.settings, self.training, self.pace.is_limited
        has_network = self.network is not None
        use_score = settings.family.use_score and settings.family.has_tails
        at_once = network_steps_at_once() if has_network else PIECE if is_limited else CHUNK
        # Batches that are streamed would fill the memory if those of many steps were there before the first is taken.
        chunk = max(at_once, FEW_STEPS) if self.batches.resident else at_once
        return Recipe(
            config=StepConfig(settings.optimizer, use_score, training.optimizer if has_network else None),
            learning_rate=settings.rate_in(self.light.dim),
            num_particles=settings.num_particles,
            weights_rate=training.rate if has_network else None,
            constant_rate=training.constant_rate or settings.family.paper_recipe,
            cover=False,
            steps=self.steps,
            piece=None if at_once >= chunk else at_once,
            chunk=chunk,
            epoch=None if training.epoch_end is None else self.batches.steps_per_epoch,
            follows_clock=is_limited,
        )

    def _watched(self, watch: Any) -> Any:
        """Tell those who follow a network of chunks and epochs, too."""
        training, per_epoch = self.training, self.batches.steps_per_epoch

        def report(done: int, planned: int, trace: Any) -> None:
            watch.report(done, planned, trace)
            if training.report is not None:
                training.report(done, planned, trace)

        def keep(at: LoopState) -> bool:
            watch.keep(at)
            is_end = at.done % per_epoch == 0 or at.done == self.steps
            if training.epoch_end is None or not is_end:
                return False
            return training.epoch_end(math.ceil(at.done / per_epoch), single(at.current))

        return dataclasses.replace(watch, report=report, keep=keep)


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


def _default_steps(steps_per_epoch: int, has_weights: bool, many: bool = False) -> int:
    if many:
        return MAX_STEPS
    epochs = EPOCHS_WITH_NETWORK if has_weights else EPOCHS_WITHOUT
    least = epochs * steps_per_epoch
    return max(least, math.ceil(MIN_STEPS / steps_per_epoch) * steps_per_epoch) if not has_weights else least


def _batch_density(target: Target, model: AbstractJointModel, batches: Batches) -> BatchDensity:
    """Return what many rows, but not all, say of the posterior, to start from."""
    fixed = own_batch_size(model)
    num = fixed or batches.batch_size
    if fixed is None and model.trained()[0] is None:
        num = min(batches.share(MAX_START_ROWS), batches.num_rows)
    weights, state, light = on_device((*model.trained(), target.model))
    density = BatchDensity(target.layout, light, weights, state, batches.first(num))
    as_trained = eqx.tree_at(lambda d: d.batch, density, batches.first(batches.batch_size))
    with user_code("The model's log density of a batch of rows"):
        eqx.filter_eval_shape(lambda d, x: d.log_density(x), as_trained, jnp.zeros(target.dim))
    return density


def _initial_gaussian(
    target: Target, density: BatchDensity, settings: Settings, key: Key[Array, ""]
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


def _find_anchor(density: BatchDensity, batches: Batches, gaussian: Gaussian, many: bool) -> Anchor:
    """Return the anchor of the control variates: the start or, of very many rows, their mode.

    The sum of very many rows is beyond single precision.
    """
    if not many:
        return find_anchor(density, batches, gaussian.loc)
    with use_precision(DIAGNOSTIC_PRECISION):
        return find_mode(density, batches, *cast(gaussian[:2], DIAGNOSTIC_PRECISION))
