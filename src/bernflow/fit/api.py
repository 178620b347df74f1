"""`fit`: from a model to a posterior with a verdict."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from os import PathLike
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Key

from bernflow.background import without_pauses
from bernflow.errors import ArgumentError
from bernflow.fit.arguments import model_arguments
from bernflow.fit.automatic import fit_target
from bernflow.fit.bar import Bar
from bernflow.fit.batches.fitting import fit_minibatches, needs_batches
from bernflow.fit.checkpoints.identity import identify
from bernflow.fit.checkpoints.resume import Resumption, claim_folder
from bernflow.fit.deadline import PIECE, Deadline
from bernflow.fit.devices import Devices, as_mesh
from bernflow.fit.engine import Stage, stacked, train_and_judge, warn_if_poor
from bernflow.fit.judging import DIAGNOSTIC_PRECISION
from bernflow.fit.mappings import forget_if_crowded
from bernflow.fit.refining import announce, better
from bernflow.fit.run import Run
from bernflow.fit.settings import Settings, Training, as_training, check_count, resolve_settings
from bernflow.fit.train.loop import run_alone
from bernflow.flows import FAMILIES
from bernflow.flows.external import FlowjaxFlow
from bernflow.flows.mixture import Mixture
from bernflow.forks import check_not_forked
from bernflow.keys import as_key, as_seed
from bernflow.memory import check_memory
from bernflow.models import AbstractModel, as_model
from bernflow.models.base import AbstractJointModel
from bernflow.models.inputs import compiled_code
from bernflow.placement import use_mesh
from bernflow.posterior import Posterior, archive
from bernflow.precision import use_precision
from bernflow.target import Target


def fit(
    model: Callable[..., Any] | AbstractModel,
    *model_args: Any,
    model_kwargs: dict[str, Any] | None = None,
    key: Any = 0,
    family: Any = "bernstein",
    steps: int | None = None,
    tolerance: float | None = None,
    time_limit: float | None = None,
    restarts: int | None = None,
    components: int | None = None,
    batch_size: int | None = None,
    checks: str = "default",
    mesh: Mesh | Mapping[str, int] | None = None,
    resume: str | PathLike | None = None,
    progress: bool = True,
    training: Training | None = None,
    **model_keywords: Any,
) -> Posterior:
    """Fit a posterior and judge it.

    A poor fit never raises: the posterior says so in `diagnostics`, and a warning does. Wrong input raises, with what
    was given, what was expected and what to do. Ctrl-C ends the training: the posterior as trained so far is judged
    and returned, with a warning and `settings["interrupted"]`; a second Ctrl-C stops at once.

    Args:
        model: a NumPyro model function, a `bernflow.Model`, a PyMC or Bambi model, or what
            `bernflow.from_log_density`, `bernflow.from_stan` and `bernflow.from_pymc` return.
        *model_args: positional arguments of a NumPyro model: arrays, columns of pandas or polars, lists of numbers, or
            anything else.
        model_kwargs: keyword arguments of a NumPyro model whose names are those of options of `fit`; all others can be
            given as they are, as in `bf.fit(model, x, y=y)`.
        key: integer seed or `jax.random.key`; the same call gives the same result.
        family: "bernstein" (default), "bernstein-meanfield", "gaussian", "gaussian-fullrank", "student-t", or the
            paper's own flow "bernstein-paper"; or a `bernflow.Family`. With flowjax installed also its flows "planar"
            and "realnvp", trained as in the paper, and any flowjax distribution or bijection of shape (p,), which is
            trained on from what it is.
        steps: number of training steps. If None (default), training stops at `tolerance`.
        tolerance: Kullback-Leibler divergence from the posterior in nats at which to stop. The default is 0.01, which
            is hard to see in any plot; with more than 30 parameters it is in proportion to their number, up to 0.15,
            since the divergences of independent parameters add up. Training stops when the estimate is below
            0.8 * tolerance and the verdict is "good", or when the ELBO no longer improves. With 0, train until the ELBO
            stops improving, which often takes several times as long. Not for batches of rows, which are trained for a
            number of steps.
        time_limit: seconds that the fit may take, counted from this call, compilation included. The best posterior so
            far is judged and returned by then, with `settings["out_of_time"]`; it may end earlier. One call of compiled
            code, such as the search for a start, and most compilations cannot be cut short, so that a limit of a few
            seconds can be exceeded, and where to stop depends on the speed of the machine. With `resume`, the same call
            trains on, and may have another limit.
        restarts: number of fits from different starts, trained at once; the best is returned, and the others tell
            whether it misses a mode (default 1). Not for batches of rows without a network.
        components: largest number of components of a mixture of flows, for separate modes. None (default) fits one
            flow and, without `steps`, a mixture where other starts find mass that it misses, or where it is not good,
            they lie in several places and more than 0.01 nats may be gained (up to 64 dimensions).
        batch_size: rows per step, for many rows and for models with a network (default there 256); a NumPyro model
            brings its own by `numpyro.plate(..., subsample_size=...)`. Batches are shuffled without replacement.
        checks: how hard the verdict looks for posterior mass that the fit misses, "default" or "thorough". Thorough
            checks make five times as many heated draws and paths, and longer tempered runs, of expensive densities and
            in up to 100 dimensions, too; they often take longer than the fit.
        mesh: devices to spread the work over: a `jax.sharding.Mesh` with axes "data" (rows of the data), "particles"
            (draws of a step) or both, or a dict such as {"data": 4, "particles": 2}. In a run of several processes
            (`jax.distributed.initialize`) with a data axis, every process gives the rows that it has, all make the
            same calls, and all get the same posterior.
        resume: a folder that the fit writes checkpoints into. The same call goes on from the last one, however it was
            stopped, and ends with the same result; once it has come to its end, it returns that. Checkpoints of
            another fit are refused.
        progress: show a progress bar, in terminals and notebooks; logs stay silent.
        training: options that are rarely needed, such as the order of the polynomials: see `bernflow.Training`.
        **model_keywords: keyword arguments of a NumPyro model.

    Returns:
        The posterior, with its verdict in `diagnostics`.

    Example:
        >>> import numpyro, numpyro.distributions as dist, bernflow as bf
        >>> def model(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        >>> post = bf.fit(model, y=np.array([0.3, 0.7]), progress=False)
        >>> post.diagnostics.verdict
        'good'
    """
    model_kwargs = model_arguments("bf.fit", _options(fit), model, model_args, model_kwargs, model_keywords)
    deadline = Deadline.start(time_limit)
    check_not_forked()  # before anything asks JAX for its devices, which would hang
    forget_if_crowded()
    check_memory()
    settings = resolve_settings(
        family=family,
        steps=steps,
        tolerance=tolerance,
        restarts=restarts,
        components=components,
        checks=checks,
        training=training,
    )
    if time_limit is not None:
        settings = _with_limit(settings, time_limit)
    if batch_size is not None:
        check_count("batch_size", batch_size, 0)
    random_key = as_key(key)
    devices = None if mesh is None else Devices(as_mesh(mesh))
    mesh_of_fit = use_mesh(None if devices is None else devices.mesh)
    with ExitStack() as claims:
        bar = claims.enter_context(Bar(progress and jax.process_index() == 0, deadline))
        with compiled_code(), mesh_of_fit, use_precision(settings.precision):
            bar.phase("starting", "reading the model")
            with without_pauses():
                accepted = as_model(model, model_args, model_kwargs)
            _check_model(accepted, batch_size, devices)
            run = Run(deadline, bar, refine, None, devices)
            if resume is not None:
                folder = claims.enter_context(claim_folder(resume))  # before anything is computed
                identity = identify(accepted, settings, random_key, batch_size)
                run = dataclasses.replace(run, resumption=Resumption(folder, run.common(identity)))
            posterior = _fit(accepted, settings, random_key, batch_size, run)
        warn_if_poor(posterior)
    return posterior


def _with_limit(settings: Settings, time_limit: float) -> Settings:
    """Return settings for a fit that looks at the clock."""
    if jax.process_count() > 1:
        raise ArgumentError(
            f"time_limit={time_limit!r}: the processes of one run would stop after different steps. Give steps instead."
        )
    return dataclasses.replace(settings, piece=PIECE)


def _check_model(model: AbstractModel, batch_size: int | None, devices: Devices | None) -> None:
    """Refuse batches, or devices, for a model that cannot be spread over them."""
    if batch_size is not None and not isinstance(model, AbstractJointModel):
        raise ArgumentError(
            f"batch_size={batch_size}: a {type(model).__name__} is not made of rows that could be taken in batches. "
            "Leave it out, or give a bf.Model, a NumPyro model with numpyro.plate(..., subsample_size=), or a PyMC "
            "model with pm.Minibatch."
        )
    if devices is not None:
        devices.check(model)


def _fit(model: AbstractModel, settings: Settings, key: Key[Array, ""], batch_size: int | None, run: Run) -> Posterior:
    """Fit a model on batches or on all rows, unless a call before has come to its end."""
    has_own_rows = run.devices is not None and run.devices.own_rows
    if run.resumption is not None:
        # No process has all rows of a fit whose processes have rows of their own.
        finished = run.resumption.finished(None if has_own_rows else model, refine)
        if finished is not None:
            return finished
    if isinstance(model, AbstractJointModel) and needs_batches(model, batch_size):
        steps = fit_minibatches(model, settings, key, run, batch_size)
    else:
        steps = fit_target(Target(model), settings, key, run)
    posterior = run_alone(steps)
    posterior.settings["key"] = as_seed(key)
    if has_own_rows:
        # No process has all rows: weights and predictions from one's own would be wrong.
        posterior.model = None
    if run.resumption is not None and not (posterior.settings["interrupted"] or posterior.settings["out_of_time"]):
        run.resumption.finish(posterior)
    return posterior


def refine(
    posterior: Posterior,
    *,
    steps: int | None = None,
    key: Any = 3,
    training: Training | None = None,
    progress: bool = True,
) -> Posterior:
    """Train a posterior on from where it is; called by `Posterior.refine`."""
    settings = resolve_settings(
        family=_family_of(posterior),
        steps=steps,
        components=1,
        checks=posterior.settings.get("checks", "default"),
        training=_continued(posterior, training),
    ).thorough()
    assert posterior.model is not None  # Posterior.refine has made sure
    with use_precision(settings.precision):
        target = Target(posterior.model)
        flows = stacked(posterior.distribution, settings.precision)
        if isinstance(flows, Mixture) and not settings.trains_by_score(flows):
            raise ArgumentError(
                "refine() trains a mixture on whose flows know their score, and those of the family "
                f"{settings.family.name!r} do not: call bf.fit with more steps."
            )
    announce(posterior, steps, progress)
    deadline = Deadline.start()
    with Bar(progress, deadline, "refine") as bar, use_precision(settings.precision):
        run, stage = Run(deadline, bar, refine), Stage(earlier=posterior)
        refined, _ = run_alone(train_and_judge(target, settings, flows, as_key(key), run, stage))
    kept = better(refined, posterior)
    warn_if_poor(kept)
    return kept


def _continued(posterior: Posterior, training: Training | None) -> Training:
    """Return the options of a further training of a posterior: those given, otherwise those of its fit."""
    chosen = as_training(training)
    fixed = [name for name in ("order", "base", "precision") if getattr(chosen, name) is not None]
    if fixed:
        raise ArgumentError(
            f"refine() got {fixed[0]}={getattr(chosen, fixed[0])!r} in training=, which is that of the posterior: give "
            "optimizer or num_particles alone."
        )
    made = posterior.settings
    return dataclasses.replace(
        chosen,
        num_particles=chosen.num_particles or made["num_particles"],
        optimizer=made["learning_rate"] if chosen.optimizer is None else chosen.optimizer,
        precision=made["precision"],
    )


def _family_of(posterior: Posterior) -> Any:
    """Return the family as it was chosen; a flowjax object of the user's own has no name to look it up by."""
    flow = posterior.distribution
    flow = flow.components[0] if isinstance(flow, Mixture) else flow
    if isinstance(flow, FlowjaxFlow) and flow.name is None:
        return flow.to_flowjax()
    name = posterior.settings["family"]
    if name not in FAMILIES:
        raise ArgumentError(
            f"refine() trains a posterior of a named family on, and {name!r} was given as a bf.Family: call bf.fit "
            "with it and more steps."
        )
    return name


def load(
    path: str | PathLike,
    model: Any = None,
    *model_args: Any,
    model_kwargs: dict[str, Any] | None = None,
    check: bool = True,
    **model_keywords: Any,
) -> Posterior:
    """Read a posterior that `Posterior.save` wrote; `bernflow.load` documents the arguments."""
    given = model_arguments("bf.load", _options(load), model, model_args, model_kwargs, model_keywords)
    with use_precision(DIAGNOSTIC_PRECISION):
        attached = None if model is None else as_model(model, model_args, given)
    posterior = archive.load(path, attached, refine, check)
    if attached is not None and not check:
        warn_if_poor(posterior)
    return posterior


def _options(function: Callable) -> tuple[str, ...]:
    """Return the names that a function takes by keyword as its own."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
