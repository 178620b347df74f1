"""Fit a model on batches of rows, and a network beside its posterior."""

import dataclasses

from jaxtyping import Array, Key

from bernflow.errors import ArgumentError
from bernflow.fit.batches.stage import BatchStage, NetworkTraining, own_batch_size
from bernflow.fit.engine import Conclusion, Stage, initial_flows, stopped_by_limit, train_and_judge
from bernflow.fit.run import Run
from bernflow.fit.settings import Settings
from bernflow.fit.train.loop import Steps
from bernflow.fit.train.state import single
from bernflow.keys import spawn
from bernflow.models.base import AbstractJointModel
from bernflow.placement import fetched
from bernflow.posterior import Posterior
from bernflow.target import Target


def needs_batches(model: AbstractJointModel, batch_size: int | None) -> bool:
    """Tell whether a model is to be trained on batches."""
    return batch_size is not None or model.trained()[0] is not None or own_batch_size(model) is not None


def check_arguments(model: AbstractJointModel, settings: Settings) -> None:
    """Refuse arguments that a training on batches cannot honor."""
    what = "a network is" if model.trained()[0] is not None else "batches of rows are"
    if settings.tolerance_given:
        raise ArgumentError(
            f"tolerance={settings.tolerance or 0.0!r}: {what} trained on for a number of steps. Leave it out, or give "
            "steps."
        )
    has_several = max(settings.restarts, settings.components or 1) > 1
    if has_several and model.trained()[0] is None:  # given the network, the flow is fitted like any other
        mixes = (settings.components or 1) > 1
        given = f"components={settings.components}" if mixes else f"restarts={settings.restarts}"
        raise ArgumentError(
            f"{given}: a fit on batches of rows has one start and one flow. Leave it out, or fit all rows: without "
            "batch_size, and of a NumPyro model without subsample_size."
        )


def fit_minibatches(
    model: AbstractJointModel,
    settings: Settings,
    key: Key[Array, ""],
    run: Run,
    batch_size: int | None,
    training: NetworkTraining | None = None,
) -> Steps[Posterior]:
    """Train on batches, then judge on all rows. To be called in the precision of the settings.

    With a network there are two stages: flow and weights are trained together, then the weights are frozen and the
    flow is fitted like any other to the posterior that the frozen network leaves. The second stage sees all rows, so
    that the posterior given the network is as accurate as that of any other model. An interruption of the first stage
    leaves the second one out.
    """
    check_arguments(model, settings)
    start_key, batch_key, final_key = spawn(key, 3)
    stage = BatchStage(model, settings.thorough(), run, training or NetworkTraining(), batch_size, batch_key)
    settings = stage.settings
    target = Target(model) if stage.network is None else None
    choice_key, judge_key = spawn(final_key, 2)
    keys = choice_key, judge_key
    with Conclusion(target or stage.light, settings, run, Stage("batches"), stage.pace, keys) as conclusion:
        trained = yield from stage.train(conclusion, start_key)
        if trained.interrupted and stage.training.resume is not None:
            raise KeyboardInterrupt  # whoever keeps checkpoints of the training has no use for half a fit
        if stage.network is None or trained.interrupted:
            if stage.network is not None:
                conclusion.target = Target(model.frozen(*fetched(single(trained.state[1:3]))))
            return stage.describe(stage.judge(conclusion, trained, final_key), trained)
    frozen = Target(model.frozen(*fetched(single(trained.state[1:3]))))
    given_network = dataclasses.replace(settings, steps=None)
    flow_keys = spawn(final_key, 3)
    run.bar.stage("given the network")
    flows, probes = initial_flows(frozen, given_network, flow_keys[0], flow_keys[1], run)
    # A network that will be trained on leaves another posterior, which needs a training of its own.
    second = dataclasses.replace(run, resumption=None) if trained.out_of_time else run
    posterior, _ = yield from train_and_judge(frozen, given_network, flows, flow_keys[2], second, Stage(probes=probes))
    history = conclusion.recorder.history(0) if conclusion.recorder.num_rows else {}
    posterior.history |= {f"joint_{name}": values for name, values in history.items()}
    if trained.out_of_time:
        posterior.settings["out_of_time"] = True
        stopped = stopped_by_limit(run.deadline, f"after {trained.steps} of {stage.steps} steps of the network")
        posterior.diagnostics = posterior.diagnostics.adding(stopped)
    return stage.describe(posterior, trained)
