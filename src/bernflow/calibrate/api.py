"""`calibrate`: simulate from a model, fit every data set at once, and rank what is known among the draws."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from tqdm.auto import tqdm

from bernflow.calibrate import blocks, simulators
from bernflow.calibrate.blocks import Sample
from bernflow.calibrate.result import LOG_JOINT, Calibration, p_values_of
from bernflow.calibrate.simulators import AbstractSimulator
from bernflow.diagnostics.importance import ess_fraction
from bernflow.diagnostics.verdict import Verdict, judge
from bernflow.errors import ArgumentError, ModelError
from bernflow.fit.loop import CHUNK, COVERING_ESS, Method, Trainee
from bernflow.fit.settings import MAX_DIM_SCORE, Settings, check_count, resolve_settings
from bernflow.flows.base import AbstractScoredFlow
from bernflow.keys import as_key, portable
from bernflow.models.base import Theta
from bernflow.posterior import sampling
from bernflow.precision import use_precision
from bernflow.preflight import preflight, starting_points
from bernflow.target import Target

# Simulations that are fitted together, at most, and what limits them where data are many.
MAX_BLOCK = 64
MAX_ROWS = 2**23
# Draws of the prior behind its variance, and draws behind the choice between two stages of training.
NUM_PRIOR_DRAWS = 4000
NUM_CHOICE_DRAWS = 1000
# Bootstrap samples behind the verdict on every single fit.
NUM_RESAMPLES = 10
MIN_SIMULATIONS = 20
# Points at which the first simulated model is checked.
NUM_STARTS = 4


def calibrate(
    model: Any = None,
    *model_args: Any,
    model_kwargs: dict[str, Any] | None = None,
    simulate: Callable[[Key[Array, ""]], tuple[dict[str, Any], Any]] | None = None,
    num_simulations: int = 200,
    num_draws: int = 1000,
    key: Any = 0,
    family: Any = "bernstein",
    order: int | None = None,
    base: str | None = None,
    steps: int = 1000,
    num_particles: int | None = None,
    optimizer: float | optax.GradientTransformation | None = None,
    precision: str | None = None,
    weighted: bool = False,
    progress: bool = True,
) -> Calibration:
    """Check model and fit together by simulation (Talts et al., 2018).

    Parameters are drawn from the prior and data from the likelihood, many times. Every data set is fitted, all at once
    and with one compilation, and the true parameters are ranked among the draws of the posterior. The ranks are
    uniform if the density, its Jacobians and the fit are right. Draws of a flow are independent, so nothing is thinned.

    Args:
        model: a `bernflow.Model` with `likelihood`, or a NumPyro model function. Its observed values are replaced by
            simulated ones, and what else it is given stays as it is.
        *model_args: positional arguments of a NumPyro model.
        model_kwargs: keyword arguments of a NumPyro model.
        simulate: for all else, in place of a model: `simulate(key)` returns the parameters by name, drawn from the
            prior, and the model of data drawn given them. It is compiled, so it must be written with `jax.numpy`.
        num_simulations: number of data sets.
        num_draws: number of draws that every parameter is ranked among.
        key: integer seed or `jax.random.key`; the same call gives the same result.
        family: see `bernflow.fit`; the flows of flowjax are not available here.
        order: see `bernflow.fit`.
        base: see `bernflow.fit`.
        steps: number of training steps of every fit.
        num_particles: see `bernflow.fit`.
        optimizer: see `bernflow.fit`.
        precision: see `bernflow.fit`.
        weighted: rank among draws that are resampled by their importance weights, as by `draws(weighted=True)`.
        progress: show a progress bar.

    Example:
        >>> import numpyro.distributions as dist
        >>> model = Model(
        ...     prior={"mu": dist.Normal(0, 1)}, likelihood=lambda theta: dist.Normal(theta["mu"], 1), y=np.zeros(5)
        ... )
        >>> calibrate(model, num_simulations=100, steps=200, progress=False).verdict
        'good'
    """
    settings = _settings(family, order, base, steps, num_particles, optimizer, precision)
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
    with use_precision(settings.precision):
        simulator: AbstractSimulator = (
            simulators.from_model(model, model_args, model_kwargs or {})
            if simulate is None
            else simulators.from_function(simulate)
        )
        target = _first_target(simulator, simulation_key)
        settings.family.check(target.dim)
        preflight(target, starting_points(target, fit_key, NUM_STARTS))
        size = _block_size(num, target, settings)
        thetas, samples, verdicts = [], [], []
        with tqdm(total=num, desc="bernflow", unit="simulation", disable=not progress, dynamic_ncols=True) as bar:
            for block in range(math.ceil(num / size)):
                keys = jax.random.split(jax.random.fold_in(simulation_key, block), size)
                noise = jax.random.fold_in(fit_key, block)
                simulated = blocks.simulate_block(simulator, keys)
                sample = _fit_block(simulator, *simulated, noise, target, settings, num_draws, weighted)
                wanted = min(size, num - block * size)
                theta, sample = jax.tree.map(lambda leaf, w=wanted: np.asarray(leaf[:w]), (simulated[0], sample))
                verdicts += [_verdict(row) for row in sample.log_weights]
                samples.append(_resampled(sample, num_draws, noise) if weighted else sample)
                thetas.append(theta)
                bar.update(wanted)
        variance = blocks.prior_variance(simulator, jax.random.split(prior_key, NUM_PRIOR_DRAWS))
    seed = int(jax.random.bits(rank_key, (), "uint32"))
    chosen = {**settings.describe(), "num_simulations": num, "weighted": weighted}
    return _collect(
        target.layout.names, thetas, samples, verdicts, jax.tree.map(np.asarray, variance), num_draws, seed, chosen
    )


def _settings(family, order, base, steps, num_particles, optimizer, precision) -> Settings:
    if steps is None:
        raise ArgumentError("steps=None: expected a number of steps, because all data sets are fitted at once.")
    settings = resolve_settings(
        family=family,
        order=order,
        base=base,
        steps=steps,
        num_particles=num_particles,
        restarts=None,
        components=1,
        optimizer=optimizer,
        precision=precision,
    )
    if not settings.family.compiled:
        raise ArgumentError(
            f"family={settings.family_name!r}: flows of flowjax cannot be built for many data sets at once. Choose a "
            "family of bernflow, or fit simulated data one by one with bf.fit."
        )
    return settings


def _first_target(simulator: AbstractSimulator, key: Key[Array, ""]) -> Target:
    """Simulate once outside of any compiled function, where an error of the model can be told."""
    return Target(simulator.model(simulator.draw(portable(key))[1]))


def _block_size(num: int, target: Target, settings: Settings) -> int:
    """Return how many simulations to fit together: blocks of one size, within the memory."""
    rows = max((leaf.shape[0] for leaf in jax.tree.leaves(target.model) if getattr(leaf, "ndim", 0) > 0), default=1)
    largest = max(1, min(MAX_BLOCK, MAX_ROWS // (rows * settings.num_particles)))
    return math.ceil(num / math.ceil(num / largest))


def _fit_block(
    simulator: AbstractSimulator,
    theta: Theta,
    data: PyTree,
    noise: Key[Array, ""],
    target: Target,
    settings: Settings,
    num_draws: int,
    weighted: bool,
) -> Sample:
    """Fit one posterior per simulated data set, as `fit` does with so many steps, and draw from each."""
    num = len(next(iter(theta.values())))
    start_keys = jax.random.split(jax.random.fold_in(noise, 2**31 + 2), num)
    trainee = blocks.begin_block(simulator, data, start_keys, settings)
    use_score = (
        settings.family.use_score and isinstance(trainee.flow, AbstractScoredFlow) and target.dim <= MAX_DIM_SCORE
    )
    rate = settings.learning_rate
    if rate is not None and not use_score and not settings.family.paper_recipe:
        rate *= min(1.0, MAX_DIM_SCORE / target.dim)
    method = Method(settings.optimizer, rate, settings.family.paper_recipe, settings.num_particles, use_score)
    at_once = max(1, MAX_ROWS // (num * max(1, target.dim)))

    def train(trainee: Trainee, length: int, powers: Float[np.ndarray, " n"], stage: int) -> Trainee:
        rates = method.rates(length)
        for start in range(0, length, CHUNK):
            chunk = rates[start : start + CHUNK]
            trainee = blocks.train_block(
                simulator,
                data,
                trainee,
                jax.random.split(jax.random.fold_in(noise, 2**20 * stage + start), num),
                jnp.asarray(np.pad(chunk, (0, CHUNK - len(chunk)))),
                jnp.asarray(powers),
                settings,
                use_score,
            )
        return trainee

    def sample(trainee: Trainee, number: int, salt: int) -> Sample:
        noise_keys = jax.random.split(jax.random.fold_in(noise, 2**31 + salt), num)
        found = blocks.sample_block(simulator, theta, data, trainee.flow, noise_keys, number, at_once)
        return jax.tree.map(np.asarray, found)

    total = settings.steps
    assert total is not None  # _settings has made sure
    covers = use_score and settings.family.cover and total >= 2 * CHUNK
    bulk = total - total // 2 if covers else total
    trainee = train(trainee, bulk, np.zeros(num), 0)
    if covers:
        before = np.asarray(sample(trainee, NUM_CHOICE_DRAWS, 0).log_weights)
        powers = np.array([float(ess_fraction(_finite(row)) > COVERING_ESS) for row in before])
        after = train(trainee, total // 2, powers, 1)
        better = jnp.asarray(_is_better(before, np.asarray(sample(after, NUM_CHOICE_DRAWS, 0).log_weights)))
        trainee = jax.tree.map(
            lambda new, old: (
                jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old) if eqx.is_array(new) else new
            ),
            after,
            trainee,
        )
    return sample(trainee, num_draws * (sampling.OVERSAMPLING if weighted else 1), 1)


def _is_better(before: Float[np.ndarray, "n s"], after: Float[np.ndarray, "n s"]) -> Bool[np.ndarray, " n"]:
    """Tell of every fit whether its second stage is kept: where the log weights spread less."""
    old, new = (
        np.array([np.mean(np.clip(row - np.median(row), -1.0, 1.0) ** 2) for row in map(_finite, weights)])
        for weights in (before, after)
    )
    return new < old


def _finite(row: Float[np.ndarray, " s"]) -> Float[np.ndarray, " s"]:
    return np.nan_to_num(row, nan=-1e6, neginf=-1e6, posinf=-1e6)


def _verdict(log_weights: Float[np.ndarray, " s"]) -> Verdict:
    return judge(log_weights, num_resamples=NUM_RESAMPLES).verdict


def _resampled(sample: Sample, num_draws: int, key: Key[Array, ""]) -> Sample:
    """Choose draws by their importance weights; of weights that are all zero, the first draws."""
    chosen = []
    for i, row in enumerate(sample.log_weights):
        row = np.where(np.isnan(row) | (row == np.inf), -np.inf, row)
        usable = np.any(row > -np.inf)
        chosen.append(sampling.resample(jax.random.fold_in(key, i), row, num_draws) if usable else np.arange(num_draws))
    rows, picked = np.arange(len(chosen))[:, None], np.stack(chosen)
    draws = {name: value[rows, picked] for name, value in sample.draws.items()}
    return sample._replace(draws=draws, draws_log_joint=sample.draws_log_joint[rows, picked])


def _collect(
    names: tuple[str, ...],
    thetas: list[Theta],
    samples: list[Sample],
    verdicts: list[Verdict],
    variance: dict[str, np.ndarray],
    num_draws: int,
    seed: int,
    settings: dict[str, Any],
) -> Calibration:
    """Rank the true values among the draws, and compare both."""
    theta = {name: np.concatenate([t[name] for t in thetas]) for name in names}
    draws = {name: np.concatenate([s.draws[name] for s in samples]) for name in names}
    log_joint = np.concatenate([s.log_joint for s in samples])
    if not np.all(np.isfinite(log_joint)):
        raise ModelError(
            f"calibrate: the log density of {int(np.sum(~np.isfinite(log_joint)))} of {len(log_joint)} simulated pairs "
            "of parameters and data is not finite: prior draws are so wide that the data overflow, or the data lie "
            "outside of the support of their distribution. Use a prior that makes possible data only."
        )
    rng = np.random.default_rng(seed)
    ranks = {name: _ranks(theta[name], draws[name], rng) for name in names}
    ranks[LOG_JOINT] = _ranks(log_joint, np.concatenate([s.draws_log_joint for s in samples]), rng)
    mean, sd = ({name: f(draws[name], axis=1) for name in names} for f in (np.mean, np.std))
    with np.errstate(invalid="ignore", divide="ignore"):
        z_scores = {name: (mean[name] - theta[name]) / sd[name] for name in names}
        contraction = {name: 1.0 - sd[name] ** 2 / variance[name] for name in names}
    return Calibration(
        ranks, z_scores, contraction, p_values_of(ranks, num_draws), tuple(verdicts), num_draws, settings
    )


def _ranks(
    truth: Float[np.ndarray, "n ..."], draws: Float[np.ndarray, "n s ..."], rng: np.random.Generator
) -> Int[np.ndarray, "n ..."]:
    """Count the draws below the truth; ties, as of a constant in a Cholesky factor, are broken at random."""
    below = np.sum(draws < truth[:, None], axis=1)
    return below + rng.integers(0, np.sum(draws == truth[:, None], axis=1) + 1)
