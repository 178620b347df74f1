"""From checked rows to trained networks."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from bernflow.errors import ArgumentError
from bernflow.models.network import Network
from bernflow.precision import float_dtype
from bernflow.semistructured.checkpoint import Checkpoint
from bernflow.semistructured.crossfit import (
    solve_folds_compiled,
    split_rows,
)
from bernflow.semistructured.design import Design
from bernflow.semistructured.effects import Units, Vector, find_units, normal_prior, sites_of
from bernflow.semistructured.lastlayer import Kind
from bernflow.semistructured.likelihoods import num_extra, num_predictors
from bernflow.semistructured.members import NetworkSource
from bernflow.semistructured.outcomes import make_prior, unit_of
from bernflow.semistructured.runs import Data, Run, Source, train_all
from bernflow.semistructured.training import WEIGHTS_OPTIMIZER, Kept, Objective

# Batches have at most so many rows, and at least so many; between, an epoch has 32 steps.
MAX_BATCH, MIN_BATCH, STEPS = 256, 32, 32
# After every epoch a network is scored on rows of its fold: an eighth as many as it is trained on, and at least 500.
MIN_HELD, HELD_SHARE = 500, 8


class Options(NamedTuple):
    """How networks are trained; see `SemiStructured.fit`. The identity is all that their training depends on."""

    epochs: int
    batch_size: int
    optimizer: optax.GradientTransformation
    rate: float
    patience: int | None
    folder: Path | None
    progress: bool
    identity: dict[str, Any]


class Problem(NamedTuple):
    """The data and priors of a fit.

    Attributes:
        design: the columns.
        kind: of the outcome.
        units: of the parameters.
        priors: by name, in the user's units.
        data: rows with the outcome in units of the linear predictor.
        y: outcomes in their own units.
        prior: mean and precision of a normal prior of the standardized parameters.
        fold: the fold of every row.
        num_folds: number of folds and networks.
    """

    design: Design
    kind: Kind
    units: Units
    priors: dict[str, Any]
    data: Data
    y: np.ndarray
    prior: tuple[np.ndarray, np.ndarray]
    fold: np.ndarray
    num_folds: int

    @property
    def has_level(self) -> bool:
        """Whether the last column is a constant."""
        return self.design.has_level


class Trained(NamedTuple):
    """A trained network after its best epoch and at the midpoint, and its training curves."""

    network: Network
    best: Kept
    middle: Kept | None
    history: dict[str, np.ndarray]
    best_epoch: int


def pose(
    design: Design,
    outcome: str,
    data: Data,
    num_classes: int,
    prior: Any,
    num_folds: int,
    seed: Any,
    groups: np.ndarray | None,
) -> Problem:
    """Assemble data and priors; `data` contains the outcome in its own units."""
    if num_folds * 2 > len(data.y):
        raise ArgumentError(f"networks={num_folds} with {len(data.y)} rows: expected at least two rows for each.")
    kind = Kind(outcome, num_classes, num_predictors(outcome, num_classes), num_extra(outcome, num_classes))
    origin, unit = unit_of(outcome, data.y)
    units = find_units(design, kind, origin, unit)
    priors = make_prior(outcome, design, prior, data.y, num_classes)
    normal = normal_prior(priors, Vector(sites_of(design), kind), units)
    fold = split_rows(len(data.y), num_folds, seed, groups)
    if len(np.unique(fold)) < num_folds:
        raise ArgumentError(f"groups has fewer than networks={num_folds} groups: expected at least one for each.")
    scaled = data._replace(y=(data.y - origin) / unit if outcome == "gaussian" else data.y)
    return Problem(design, kind, units, priors, scaled, data.y, normal, fold, num_folds)


def default_batch_size(num_rows: int, num_folds: int) -> int:
    """Return the number of rows per step; with few rows, batches are small to allow enough steps."""
    trained_on = num_rows * (num_folds - 1) // num_folds
    return int(np.clip(trained_on // STEPS, MIN_BATCH, MAX_BATCH))


def begin_theta(problem: Problem) -> np.ndarray:
    """Return the standardized parameters of the regression on the table alone; raise if they do not exist."""
    num = len(problem.prior[0])
    start = np.zeros(num)
    if problem.kind.outcome == "ordinal":
        share = np.cumsum(np.bincount(problem.y, minlength=problem.kind.num_classes))[:-1] / len(problem.y)
        cuts = np.log(share / (1 - share))
        start[-problem.kind.num_extra :] = [cuts[0], *np.log(np.maximum(np.diff(cuts), 1e-3))]
    none = np.zeros((1, len(problem.y), problem.kind.num_predictors))
    found, *_ = solve_folds_compiled(
        problem.data.x[None],
        problem.has_level,
        none,
        np.zeros((1, len(problem.y), 0)),
        problem.data.y[None].astype(float),
        np.ones((1, len(problem.y))),
        problem.kind,
        problem.prior,
        start,
    )
    theta = np.asarray(found.theta)
    return theta if np.all(np.isfinite(theta)) else start


def train_networks(
    problem: Problem,
    source: NetworkSource,
    valid: Data | None,
    key: Key[Array, ""],
    options: Options,
    theta: np.ndarray,
) -> tuple[list[Trained], bool]:
    """Train one network per fold on the rows of the others; return them, and whether Ctrl-C ended the training."""
    dtype = float_dtype()
    data = problem.data._replace(x=problem.data.x.astype(dtype), y=problem.data.y.astype(dtype))
    runs = []
    for number, own in enumerate(jax.random.split(key, problem.num_folds)):
        network_key, run_key, held_key = jax.random.split(own, 3)
        network = source(network_key)
        rows = np.flatnonzero(problem.fold != number).astype(np.int32)
        objective = Objective(network.apply, problem.kind, options.optimizer, options.rate, len(rows))
        checkpoint = None
        if options.folder is not None:
            number_of = {"network": number, "key": np.asarray(jax.random.key_data(own)).ravel().tolist()}
            checkpoint = Checkpoint(options.folder / f"network-{number}.npz", options.identity | number_of)
        run = Run(
            objective,
            tuple(jnp.asarray(part, dtype) for part in problem.prior),  # type: ignore[arg-type]
            network,
            jnp.asarray(theta, dtype),
            rows,
            _held(problem, number, held_key, dtype) if valid is None else valid._replace(x=valid.x.astype(dtype)),
            run_key,
            options.epochs,
            options.batch_size,
            options.patience,
            checkpoint,
        )
        runs.append((run, network))
    interrupted = train_all([run for run, _ in runs], Source(data), options.epochs, options.progress)
    trained = []
    for run, network in runs:
        assert run.best is not None
        trained.append(Trained(network, run.best, run.middle, run.history, run.best_epoch))
    return trained, interrupted


def _held(problem: Problem, number: int, key: Key[Array, ""], dtype: Any) -> Data:
    """Return some of the rows of a fold."""
    own = np.flatnonzero(problem.fold == number)
    num = min(len(own), max(MIN_HELD, (len(problem.fold) - len(own)) // HELD_SHARE))
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    chosen = np.sort(np.random.default_rng(seed).permutation(own)[:num])
    return Data(problem.data.x[chosen].astype(dtype), problem.data.images[chosen], problem.data.y[chosen].astype(dtype))


def scale_outcome(valid: Data, problem: Problem) -> Data:
    """Return validation rows with the outcome in the units of the regression."""
    return valid._replace(y=(valid.y.astype(float) - problem.units.origin) / problem.units.unit)


def choose_optimizer(optimizer: Any) -> tuple[optax.GradientTransformation, float]:
    """Return the optimizer of the weights and its peak rate, or say what is wrong with them."""
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer, 1.0
    if isinstance(optimizer, int | float) and not isinstance(optimizer, bool) and optimizer > 0:
        return WEIGHTS_OPTIMIZER, float(optimizer)
    raise ArgumentError(
        f"optimizer={optimizer!r}: expected a positive learning rate or an optax optimizer such as optax.adamw(1e-3)."
    )
