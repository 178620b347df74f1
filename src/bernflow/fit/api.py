"""`fit`: from a model to a posterior with a verdict."""

import time
import warnings
from collections.abc import Callable
from importlib import metadata
from os import PathLike
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from bernflow.diagnostics.verdict import judge
from bernflow.errors import ArgumentError
from bernflow.fit import modes
from bernflow.fit.loop import Method, begin, evaluate, num_stacked, pick, train
from bernflow.fit.progress import Recorder
from bernflow.fit.settings import MAX_DIM_SCORE, Settings, resolve_settings
from bernflow.fit.start import find_start
from bernflow.flows.base import AbstractDistribution, AbstractFlow, AbstractScoredFlow
from bernflow.flows.external import FlowjaxFlow
from bernflow.keys import as_key
from bernflow.models import AbstractModel, as_model
from bernflow.posterior import Posterior, archive, sampling
from bernflow.precision import use_precision
from bernflow.preflight import preflight, starting_points
from bernflow.target import Target

NUM_STARTS = 8
# Draws behind the figures of the verdict.
NUM_DIAGNOSTIC_DRAWS = 20_000
DIAGNOSTIC_PRECISION = "float64"


def fit(
    model: Callable[..., Any] | AbstractModel,
    *model_args: Any,
    model_kwargs: dict[str, Any] | None = None,
    key: Any = 0,
    family: Any = "bernstein",
    order: int | None = None,
    base: str | None = None,
    steps: int | None = None,
    num_particles: int | None = None,
    restarts: int | None = None,
    components: int = 1,
    optimizer: float | optax.GradientTransformation | None = None,
    precision: str | None = None,
    progress: bool = True,
) -> Posterior:
    """Fit a posterior and judge it.

    A poor fit never raises: the posterior says so in `diagnostics`, and a warning does. Wrong input raises, with what
    was given, what was expected and what to do.

    Args:
        model: a NumPyro model function, a `bernflow.Model`, or what `bernflow.from_log_density` returns.
        *model_args: positional arguments of a NumPyro model.
        model_kwargs: keyword arguments of a NumPyro model.
        key: integer seed or `jax.random.key`; the same call gives the same result.
        family: "bernstein" (default), "bernstein-meanfield", "gaussian", "gaussian-fullrank", "student-t", or the
            paper's own flow "bernstein-paper". Ablations are written after a colon: "bernstein-paper:f2" and ":f3" are
            the paper's, "bernstein:no-skip" and others leave out one part of the default. With flowjax installed
            also its flows "planar" and "realnvp", trained as in the paper, and any flowjax distribution or bijection
            of shape (p,), which is trained on from what it is.
        order: order M of the Bernstein polynomials (default 20; 50 for the paper's family).
        base: base noise, "normal" (default) or "logistic", whose tails are heavier.
        steps: number of training steps; None trains until nothing is gained any more.
        num_particles: draws per step (default 32; 10 for the paper's family).
        restarts: number of fits from different starts, trained at once; the best is returned, and the others tell
            whether it misses a mode (default 1).
        components: largest number of components of a mixture of flows, for separate modes.
        optimizer: a learning rate, or an optax optimiser with its own.
        precision: "float64" (default on a CPU) or "float32" (default on an accelerator) for training; the verdict is
            always computed in double precision.
        progress: show a progress bar.

    Example:
        >>> import numpyro, numpyro.distributions as dist, bernflow as bf
        >>> def model(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        >>> post = bf.fit(model, np.array([0.3, 0.7]), progress=False)
        >>> post.diagnostics.verdict
        'good'
    """
    began = time.perf_counter()
    settings = resolve_settings(
        family=family,
        order=order,
        base=base,
        steps=steps,
        num_particles=num_particles,
        restarts=restarts,
        components=components,
        optimizer=optimizer,
        precision=precision,
    )
    if model_kwargs is not None and not isinstance(model_kwargs, dict):
        raise ArgumentError(f"model_kwargs={model_kwargs!r}: expected a dict of keyword arguments for the model.")
    start_key, flow_key, train_key = jax.random.split(as_key(key), 3)
    with use_precision(settings.precision):
        target = Target(as_model(model, model_args, model_kwargs or {}))
        flows = _initial_flows(target, settings, start_key, flow_key)
    return _train(target, settings, flows, train_key, progress, began)


def refine(
    posterior: Posterior, steps: int | None = None, key: Any = 3, optimizer: Any = None, progress: bool = True
) -> Posterior:
    """Train a posterior on from where it is; called by `Posterior.refine`."""
    began = time.perf_counter()
    if not isinstance(posterior.distribution, AbstractFlow):
        raise ArgumentError("refine() trains one flow on; this posterior is a mixture: call bf.fit with more steps.")
    chosen = posterior.settings
    settings = resolve_settings(
        family=_family_of(posterior),
        order=None,
        base=None,
        steps=steps,
        num_particles=chosen["num_particles"],
        restarts=None,
        components=1,
        optimizer=chosen["learning_rate"] if optimizer is None else optimizer,
        precision=chosen["precision"],
    )
    assert posterior.model is not None  # Posterior.refine has made sure
    with use_precision(settings.precision):
        target = Target(posterior.model)
        stacked = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, posterior.distribution)
        flows = _cast(stacked, settings.precision)
    return _train(target, settings, flows, as_key(key), progress, began, posterior)


def _family_of(posterior: Posterior) -> Any:
    """Return the family as it was chosen; a flowjax object of the user's own has no name to look it up by."""
    flow = posterior.distribution
    if isinstance(flow, FlowjaxFlow) and flow.name is None:
        return flow.to_flowjax()
    return posterior.settings["family"]


def load(path: str | PathLike, model: Any = None, *model_args: Any, model_kwargs: dict | None = None) -> Posterior:
    """Read a posterior that `Posterior.save` wrote.

    Args:
        path: the file.
        model: the model as it was given to `fit`, for weighted draws, predictions and refining; its code and data are
            not in the file.
        *model_args: positional arguments of a NumPyro model.
        model_kwargs: keyword arguments of a NumPyro model.
    """
    with use_precision(DIAGNOSTIC_PRECISION):
        attached = None if model is None else as_model(model, model_args, model_kwargs or {})
    return archive.load(path, attached, refine)


def _initial_flows(target: Target, settings: Settings, start_key: Key[Array, ""], flow_key: Key[Array, ""]):
    """Return one flow per restart, stacked, each at a start of its own."""
    settings.family.check(target.dim)
    num = max(_num_starts(target.dim), settings.restarts * (4 if settings.restarts > 1 else 1))
    points_key, path_key = jax.random.split(start_key)
    points = starting_points(target, points_key, num)
    usable = preflight(target, points)
    # Unusable points are replaced, not dropped: the number of paths is part of the compiled shape.
    points = usable[jnp.arange(num) % len(usable)]
    if not settings.family.use_start:
        loc, factor = (jnp.stack([leaf] * settings.restarts) for leaf in (points[0], jnp.eye(target.dim)))
    else:
        gaussians = find_start(target, points, path_key)
        chosen = np.array(modes.distinct_starts(gaussians, settings.restarts))
        loc, factor = gaussians.loc[chosen], gaussians.factor[chosen]
    keys = jax.random.split(flow_key, settings.restarts)
    make = _build_flows if settings.family.compiled else _build_one_by_one
    return make(settings.family.build, settings.spec(target.dim), keys, loc, factor)


@eqx.filter_jit
def _build_flows(build, spec, keys, loc, factor):
    return eqx.filter_vmap(lambda key, loc, factor: build(key, spec, loc, factor))(keys, loc, factor)


def _build_one_by_one(build, spec, keys, loc, factor):
    flows = [build(key, spec, *start) for key, *start in zip(keys, loc, factor, strict=True)]
    return jax.tree.map(lambda first, *others: jnp.stack([first, *others]) if eqx.is_array(first) else first, *flows)


def _num_starts(dim: int) -> int:
    """Choose the number of Newton paths; in many dimensions each costs a large eigendecomposition per step."""
    return NUM_STARTS if dim <= 100 else 4 if dim <= 300 else 2


def _train(
    target: Target,
    settings: Settings,
    flows: AbstractFlow,
    key: Key[Array, ""],
    progress: bool,
    began: float,
    earlier: Posterior | None = None,
) -> Posterior:
    """Train stacked flows, choose or mix, judge, and wrap up."""
    use_score = settings.family.use_score and isinstance(flows, AbstractScoredFlow) and target.dim <= MAX_DIM_SCORE
    rate = settings.learning_rate
    if rate is not None and not use_score and not settings.family.paper_recipe:
        # Plain gradients keep their noise at the optimum, and its effect adds up over the dimensions.
        rate *= min(1.0, MAX_DIM_SCORE / target.dim)
    method = Method(
        optimizer=settings.optimizer,
        learning_rate=rate,
        constant_rate=settings.family.paper_recipe,
        num_particles=settings.num_particles,
        use_score=use_score,
        cover=settings.family.cover,
    )
    loop_key, choice_key, judge_key = jax.random.split(key, 3)
    done_before = 0 if earlier is None else int(earlier.settings["steps"])
    recorder = Recorder(progress, settings.num_particles, done_before)
    try:
        with use_precision(settings.precision):
            trainee, done = train(begin(flows, settings.optimizer), target, loop_key, method, settings.steps, recorder)
    finally:
        recorder.close()
    with use_precision(DIAGNOSTIC_PRECISION):
        flows = _cast(trainee.flow, DIAGNOSTIC_PRECISION)
        best, distribution, missing = _choose(flows, target, choice_key, settings.components)
        log_weights = _log_weights(distribution, target, judge_key)
    skipped = int(trainee.num_skipped[best])
    diagnostics = judge(log_weights, missing_mass=missing, num_failed_steps=skipped)
    history = recorder.history(best)
    if earlier is not None:
        history = {name: np.concatenate([earlier.history[name], values]) for name, values in history.items()}
    chosen = settings.describe() if earlier is None else dict(earlier.settings)
    chosen |= {
        "steps": done_before + done,
        "num_skipped": skipped,
        "wall_seconds": time.perf_counter() - began,
        "versions": {name: metadata.version(name) for name in ("bernflow", "jax", "numpyro", "equinox", "optax")},
    }
    posterior = Posterior(distribution, target.layout, target.model, diagnostics, history, chosen, refine)
    if diagnostics.verdict == "poor":
        warnings.warn(f"bernflow: {diagnostics.status}", UserWarning, stacklevel=3)
    return posterior


def _choose(
    flows: AbstractFlow, target: Target, key: Key[Array, ""], components: int
) -> tuple[int, AbstractDistribution, float | None]:
    """Return the best restart's index, what to hand out, and the mass that it misses as far as the others tell."""
    num = num_stacked(flows)
    if num == 1:
        return 0, pick(flows, jnp.asarray(0)), None
    elbos = np.mean(evaluate(flows, target, key, modes.NUM_DRAWS), axis=1)
    best = int(np.nanargmax(np.where(np.isfinite(elbos), elbos, -np.inf)))
    densities = modes.cross_densities(flows, target, key)
    if components > 1:
        parts = modes.choose_parts(densities, components)
        chosen = jax.tree.map(lambda leaf: leaf[np.array(parts)] if eqx.is_array(leaf) else leaf, flows)
        # Fresh draws, more of them where there were many flows: the choice is made, the weights are not.
        densities = modes.cross_densities(chosen, target, jax.random.fold_in(key, 1))
        return best, modes.merge([pick(flows, jnp.asarray(i)) for i in parts], densities), None
    return best, pick(flows, jnp.asarray(best)), modes.missing_mass(densities, best)


def _log_weights(distribution: AbstractDistribution, target: Target, key: Key[Array, ""]) -> np.ndarray:
    x, log_q = sampling.sample(distribution, key, NUM_DIAGNOSTIC_DRAWS)
    return sampling.log_density(target.layout, target.model, x) - log_q


def _cast(flows: Any, precision: str) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(precision) if eqx.is_inexact_array(leaf) else leaf, flows)
