"""The work of a calibration, block by block: here, or on the workers of an executor."""

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key
from tqdm.auto import tqdm

from bernflow.calibrate import blocks, ranking, simulators
from bernflow.calibrate.blocks import Sample
from bernflow.calibrate.simulators import AbstractSimulator
from bernflow.diagnostics.findings import Verdict
from bernflow.errors import BernflowError
from bernflow.fit.settings import Settings, resolve_settings
from bernflow.keys import GENERATOR, portable
from bernflow.many.pool import Failure, Pool
from bernflow.models.base import Theta
from bernflow.posterior import sampling
from bernflow.precision import use_precision
from bernflow.target import Target
from bernflow.user import user_level
from bernflow.watched import is_watched


class Request(NamedTuple):
    """The request of a user, which can be sent to a worker.

    Attributes:
        model: the model, or None.
        model_args: its positional arguments.
        model_kwargs: its keyword arguments.
        simulate: the function instead of a model, or None.
        choices: the settings of the fits by name.
        keys: data of the keys of simulations and of fits.
        num: number of simulations.
        num_draws: number of draws among which every parameter is ranked.
        weighted: whether the draws are resampled by their importance weights.
    """

    model: Any
    model_args: tuple
    model_kwargs: dict[str, Any]
    simulate: Callable | None
    choices: dict[str, Any]
    keys: tuple[np.ndarray, np.ndarray]
    num: int
    num_draws: int
    weighted: bool


class Prepared(NamedTuple):
    """The objects that every process makes from a request."""

    simulator: AbstractSimulator
    target: Target
    settings: Settings


class Block(NamedTuple):
    """The simulations of one block: true parameters, draws of their posteriors, verdicts on the fits."""

    theta: Theta
    sample: Sample
    verdicts: list[Verdict]


def settings_of(choices: dict[str, Any]) -> Settings:
    """Resolve the settings of the fits."""
    return resolve_settings(**choices)


def prepare(request: Request) -> Prepared:
    """Make the simulator and the target of a first simulation, in the precision of the fits."""
    simulator: AbstractSimulator = (
        simulators.from_model(request.model, request.model_args, request.model_kwargs)
        if request.simulate is None
        else simulators.from_function(request.simulate)
    )
    # Once outside of compiled functions, so that errors of the model are readable.
    target = Target(simulator.model(simulator.draw(portable(_key(request.keys[0])))[1]))
    return Prepared(simulator, target, settings_of(request.choices))


def run_blocks(
    request: Request, prepared: Prepared, size: int, executor: Executor | None, progress: bool
) -> Iterator[Block]:
    """Yield the blocks in order; those of lost workers are omitted, with a warning."""
    count = math.ceil(request.num / size)
    found: dict[int, Block] = {}
    lost: list[str] = []
    with tqdm(
        total=request.num,
        desc="bernflow",
        unit="simulation",
        disable=not (progress and is_watched()),
        dynamic_ncols=True,
    ) as bar:
        results: Iterator[tuple[str, Any]]
        if executor is None:
            results = ((str(i), _fit(request, prepared, size, i)) for i in range(count))
        else:
            results = Pool(executor, functools.partial(_in_worker, request, size)).run(
                {str(i): i for i in range(count)}
            )
        for name, outcome in results:
            if isinstance(outcome, Failure):
                lost.append(outcome.reason)
            else:
                found[int(name)] = outcome
                bar.update(len(outcome.verdicts))
    if lost:
        _tell(lost, count, size)
    yield from (found[i] for i in sorted(found))


def _tell(lost: list[str], count: int, size: int) -> None:
    if len(lost) == count:
        raise BernflowError(f"calibrate: no worker of the executor has returned anything; the first says: {lost[0]}")
    warnings.warn(
        f"bernflow: {len(lost)} of {count} blocks of {size} simulations are lost and left out ({lost[0]}). If what was "
        "lost depends on the data, the ranks of the others are not uniform.",
        UserWarning,
        stacklevel=user_level(),
    )


def _in_worker(request: Request, size: int, number: int) -> Block:
    """Fit a block in a process that has only the request."""
    with use_precision(settings_of(request.choices).precision):
        return _fit(request, prepare(request), size, number)


def _fit(request: Request, prepared: Prepared, size: int, number: int) -> Block:
    simulator, _, settings = prepared
    simulation_key, noise = (jax.random.fold_in(_key(data), number) for data in request.keys)
    simulated = blocks.simulate_block(simulator, jax.random.split(simulation_key, size))
    num_draws = request.num_draws * (sampling.OVERSAMPLING if request.weighted else 1)
    sample = blocks.fit_block(simulator, *simulated, noise, settings, num_draws)
    wanted = min(size, request.num - number * size)
    theta, sample = jax.tree.map(lambda leaf: np.asarray(leaf[:wanted]), (simulated[0], sample))
    verdicts = [ranking.verdict_of(row) for row in sample.log_weights]
    return Block(theta, blocks.resampled(sample, request.num_draws, noise) if request.weighted else sample, verdicts)


def _key(data: np.ndarray) -> Key[Array, ""]:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=GENERATOR)
