"""`calibrate`: simulate from a model, fit all data sets, and rank the true parameters among the draws."""

import math
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from bernflow.calibrate import blocks, ranking
from bernflow.calibrate.result import Calibration
from bernflow.calibrate.work import Request, prepare, run_blocks, settings_of
from bernflow.errors import ArgumentError
from bernflow.fit.settings import Settings, Training, check_count
from bernflow.keys import as_key
from bernflow.models.base import num_rows
from bernflow.models.inputs import compiled_code
from bernflow.moved import INTO_TRAINING, moved
from bernflow.precision import use_precision
from bernflow.preflight import preflight, starting_points
from bernflow.target import Target

# Largest number of simulations that are fitted together, and the limit on their rows.
MAX_BLOCK = 64
MAX_ROWS = 2**23
# Draws of the prior that estimate its variance.
NUM_PRIOR_DRAWS = 4000
MIN_SIMULATIONS = 20
# Points at which the first simulated model is checked.
NUM_STARTS = 4


@moved("bf.calibrate", INTO_TRAINING)
def calibrate(
    model: Any = None,
    *model_args: Any,
    model_kwargs: dict[str, Any] | None = None,
    simulate: Callable[[Key[Array, ""]], tuple[dict[str, Any], Any]] | None = None,
    num_simulations: int = 200,
    num_draws: int = 1000,
    key: Any = 0,
    family: Any = "bernstein",
    steps: int | None = None,
    tolerance: float | None = None,
    training: Training | None = None,
    weighted: bool = False,
    executor: Executor | None = None,
    progress: bool = True,
) -> Calibration:
    """Check model and fit together by simulation-based calibration (Talts et al., 2018).

    Parameters are drawn from the prior and data from the likelihood, many times. Every data set is fitted as by
    `bernflow.fit`, and the true parameters are ranked among the draws of the posterior. The ranks are uniform
    if the density, its Jacobians and the fit are right. Draws of a flow are independent, so nothing is thinned.

    All fits share their compiled code, and many take their training steps together; starts and verdicts are computed
    for one data set after the other. With `steps` the verdict changes no fit and is computed from the weights alone.

    Args:
        model: a `bernflow.Model` with `likelihood`, or a NumPyro model function. Its observed values are replaced by
            simulated ones; its other arguments do not change.
        *model_args: positional arguments of a NumPyro model.
        model_kwargs: keyword arguments of a NumPyro model.
        simulate: a simulation to use instead of a model: `simulate(key)` returns the parameters by name, drawn from
            the prior, and the model of data drawn given them. It is compiled, so it must be written with `jax.numpy`.
        num_simulations: number of data sets.
        num_draws: number of draws among which every parameter is ranked.
        key: integer seed or `jax.random.key`; the same call gives the same result.
        family: see `bernflow.fit`.
        steps: number of training steps of every fit. If None (default), each stops at `tolerance`.
        tolerance: see `bernflow.fit`.
        training: see `bernflow.fit`.
        weighted: rank among draws that are resampled by their importance weights, as by `draws(weighted=True)`.
        executor: a `concurrent.futures.Executor`, such as a process pool, whose workers fit the simulations, see
            `bernflow.map_fits`. Simulations of a worker that was lost are omitted, with a warning.
        progress: show a progress bar, in terminals and notebooks.

    Returns:
        Ranks, z-scores, contraction, p-values and the verdict on them.

    Example:
        >>> found = bf.calibrate(model, y, num_simulations=40, steps=100, progress=False)
        >>> found.verdict != "poor"  # a right model is called poor once in 1,000 times
        True
    """
    choices = {"family": family, "steps": steps, "tolerance": tolerance, "training": training}
    settings = settings_of(choices)
    num = check_count("num_simulations", num_simulations, 200)
    num_draws = check_count("num_draws", num_draws, 1000)
    if num < MIN_SIMULATIONS:
        raise ArgumentError(
            f"num_simulations={num}: expected at least {MIN_SIMULATIONS}; 200 tell apart what can be seen by eye."
        )
    if (model is None) == (simulate is None):
        given = "neither" if model is None else "both"
        raise ArgumentError(f"calibrate got {given} of model and simulate=: expected exactly one of them.")
    simulation_key, fit_key, prior_key, rank_key = jax.random.split(as_key(key), 4)
    with compiled_code(), use_precision(settings.precision):
        keys = np.asarray(jax.random.key_data(simulation_key)), np.asarray(jax.random.key_data(fit_key))
        request = Request(model, model_args, model_kwargs or {}, simulate, choices, keys, num, num_draws, weighted)
        prepared = prepare(request)
        target = prepared.target
        settings.family.check(target.dim)
        preflight(target, starting_points(target, fit_key, NUM_STARTS))
        found = list(run_blocks(request, prepared, _block_size(num, target, settings), executor, progress))
        variance = blocks.prior_variance(prepared.simulator, jax.random.split(prior_key, NUM_PRIOR_DRAWS))
    verdicts = [verdict for block in found for verdict in block.verdicts]
    seed = int(jax.random.bits(rank_key, (), "uint32"))
    chosen = {**settings.describe(), "num_simulations": len(verdicts), "weighted": weighted}
    return ranking.collect(
        target.layout.names,
        [block.theta for block in found],
        [block.sample for block in found],
        verdicts,
        jax.tree.map(np.asarray, variance),
        num_draws,
        seed,
        chosen,
    )


def _block_size(num: int, target: Target, settings: Settings) -> int:
    """Return how many simulations to fit together: equal blocks, within the memory."""
    largest = max(1, min(MAX_BLOCK, MAX_ROWS // (num_rows(target.model) * settings.num_particles)))
    return math.ceil(num / math.ceil(num / largest))
