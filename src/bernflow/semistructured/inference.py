"""From trained networks to the posterior of the effects, and what speaks against it."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from bernflow.fit.api import fit
from bernflow.models.network import Network
from bernflow.posterior import Posterior
from bernflow.precision import use_precision
from bernflow.semistructured.crossfit import (
    Layers,
    agreement,
    dispersion,
    image_variance,
    solve_folds_compiled,
    stack_folds,
)
from bernflow.semistructured.effects import make_model
from bernflow.semistructured.features import evaluate_features, find_last_layer
from bernflow.semistructured.fitting import Problem, Trained
from bernflow.semistructured.lastlayer import Gaussian, Rows
from bernflow.semistructured.tables import describe_priors
from bernflow.semistructured.training import WEIGHTS_OPTIMIZER, Objective
from bernflow.semistructured.verdict import Evidence, attenuation, find, judge_effects

# Outcomes with a logit link, where a predictor that is left out makes the effects of others smaller.
LOGITS = ("bernoulli", "ordinal", "categorical")
# Posterior draws behind tables and predictions.
NUM_DRAWS = 4000


class Effects(NamedTuple):
    """What a fit leaves behind for tables and predictions.

    Attributes:
        posterior: of the effects, in the user's units.
        found: the standardized regression that it belongs to.
        layers: how output and features become columns of that.
        last: number of the array of weights that is the last layer.
        findings: what speaks against the intervals.
        priors: in words.
        draws: of all parameters, and of the intercept.
    """

    posterior: Posterior
    found: Gaussian
    layers: Layers
    last: int | None
    findings: list[str]
    priors: dict[str, dict[str, str]]
    draws: dict[str, np.ndarray]


class Outputs(NamedTuple):
    """Output, features and scores of frozen networks on the rows of their folds, one of each per network.

    Attributes:
        end: of the networks after their best epochs.
        middle: of the networks half of the way there, or None.
        others: the output of another network on the same rows.
        last: number of the array of weights that is the last layer, or None.
    """

    end: list[tuple]
    middle: list[tuple] | None
    others: list[np.ndarray]
    last: int | None


def infer(
    problem: Problem, trained: list[Trained], theta: np.ndarray, key: Key[Array, ""], precision: str, **options: Any
) -> Effects:
    """Find the posterior of the effects from networks that have not seen the rows, and what speaks against it.

    Args:
        problem: what is fitted.
        trained: the networks.
        theta: the standardized parameters of the regression on the table alone.
        key: a random key.
        precision: of the networks.
        **options: `interrupted`, whether the training was; others are those of `bernflow.fit`.
    """
    interrupted = options.pop("interrupted")
    rows, weight = stack_folds(problem.fold, problem.num_folds)
    with use_precision(precision):
        outputs = _evaluate(problem, trained, rows)
    with use_precision("float64"):
        solve = functools.partial(_solve, problem, rows, weight, theta)
        found, layers, layer, stacked = solve(outputs.end)
        findings = find(_evidence(problem, outputs, solve, (found, stacked), interrupted))
        model = make_model(
            problem.design, problem.kind, problem.units, problem.priors, found, layer, stacked, problem.y[rows]
        )
    posterior = fit(model, key=key, **options)
    # Weights are used where the fit given the networks needs them, whatever the verdict on the effects.
    draws = posterior.draws(NUM_DRAWS)
    posterior.diagnostics = judge_effects(posterior.diagnostics, findings)
    found, layers = jax.tree.map(np.asarray, (found, layers))
    priors = describe_priors(problem.design, problem.priors, problem.units.unit)
    return Effects(posterior, found, layers, outputs.last, findings, priors, draws)


def _evaluate(problem: Problem, trained: list[Trained], rows: np.ndarray) -> Outputs:
    """Evaluate every network on the rows of its fold."""
    first = trained[0]
    last = find_last_layer(first.network.with_weights(*first.best[:2]), problem.data.images)
    end = [_outputs(one.network, one.best, problem, rows[k], last) for k, one in enumerate(trained)]
    others = [
        _outputs(two.network, two.best, problem, rows[k], None)[0] for k, two in enumerate([*trained[1:], trained[0]])
    ]
    middle = None
    if all(one.middle is not None for one in trained):
        middle = [_outputs(one.network, one.middle, problem, rows[k], last) for k, one in enumerate(trained)]
    return Outputs(end, middle, others, last)


def _solve(
    problem: Problem,
    rows: np.ndarray,
    weight: np.ndarray,
    theta: np.ndarray,
    parts: list[tuple],
    which: slice = slice(None),
) -> tuple:
    """Solve the standardized regression on what the networks say of their rows, or of those of some folds."""
    x, y = problem.data.x[rows], problem.data.y[rows].astype(float)
    out, features = (np.stack([part[i] for part in parts]).astype(float) for i in (0, 1))
    given = (x[which], problem.has_level, out[which], features[which], y[which], weight[which])
    return solve_folds_compiled(*given, problem.kind, problem.prior, theta)


def _evidence(
    problem: Problem, outputs: Outputs, solve: Callable[..., tuple], solved: tuple[Gaussian, Rows], interrupted: bool
) -> Evidence:
    """Collect what may speak against the intervals; `solved` is what `solve` has found at the end."""
    end, middle, names = outputs.end, outputs.middle, problem.design.names
    found, stacked = solved
    x, said, weight = (np.asarray(part) for part in (stacked.x, stacked.z, stacked.weight))
    d = problem.kind.num_predictors
    num = len(names) * d
    effect, sd = _summary(found, num)
    by_fold = [_summary(solve(end, slice(k, k + 1))[0], num) for k in range(problem.num_folds)]
    agreed = 1.0
    if problem.kind.outcome in LOGITS:
        own, others = (np.stack([out[..., 0] for out in each]) for each in ([part[0] for part in end], outputs.others))
        agreed = float(agreement(own, others, weight))
    excess = dispersion(stacked, problem.kind, found)
    rise, rise_se = None, 0.0
    if middle is not None:
        rises = np.concatenate([(a[2] - b[2])[w > 0] for a, b, w in zip(end, middle, weight, strict=True)])
        rise, rise_se = float(np.mean(rises)), float(np.std(rises) / len(rises) ** 0.5)
    return Evidence(
        names=tuple(name for name in names for _ in range(d)),
        effect=effect,
        sd=sd,
        before=None if middle is None else _summary(solve(middle)[0], num)[0],
        by_fold=np.stack([each[0] for each in by_fold]),
        by_fold_sd=np.stack([each[1] for each in by_fold]),
        rise=rise,
        rise_se=rise_se,
        shown=np.repeat(_shown(x[..., : len(names)], said[..., d:], weight), d),
        agreement=agreed,
        attenuation=attenuation(agreed, float(image_variance(stacked, problem.kind, found))),
        dispersion=(float(excess[0]), float(excess[1])),
        has_features=outputs.last is not None,
        interrupted=interrupted,
    )


def _outputs(network: Network, kept: Any, problem: Problem, rows: np.ndarray, last: int | None) -> tuple:
    """Return output and features of a frozen network on rows, and the score of each."""
    frozen = network.with_weights(kept.weights, kept.state)
    out, features = evaluate_features(frozen, problem.data.images[rows], last)
    objective = Objective(network.apply, problem.kind, WEIGHTS_OPTIMIZER, 0.0, 1)
    theta = jnp.asarray(kept.theta)
    scores = objective.scores(
        jnp.asarray(out, theta.dtype),
        theta,
        jnp.asarray(problem.data.x[rows], theta.dtype),
        jnp.asarray(problem.data.y[rows], theta.dtype),
    )
    return out, features, np.asarray(scores, float)


def _summary(found: Gaussian, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return estimates and standard deviations of the standardized effects."""
    theta, covariance = map(np.asarray, found.marginal())
    return theta[:num], np.sqrt(np.diagonal(covariance))[:num]


def _shown(x: np.ndarray, said: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the squared correlation of the columns with what the networks say of them."""
    p, real = x.shape[-1], weight > 0
    if not said.shape[-1]:
        return np.zeros(p)
    shares = np.zeros(p)
    for own, columns, mask in zip(said, x, real, strict=True):
        a, b = columns[mask], own[mask][:, :p]
        a, b = a - a.mean(0), b - b.mean(0)
        size = np.sqrt((a**2).sum(0) * (b**2).sum(0))
        shares += (np.abs((a * b).sum(0)) / np.maximum(size, 1e-12)) ** 2 / len(x)
    return shares
