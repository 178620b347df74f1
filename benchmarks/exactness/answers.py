"""Evidence and posterior of every model, in closed form or by quadrature."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

from benchmarks.exactness import models
from benchmarks.exactness.models import (
    COVARIANCE,
    SD_GROUPS,
    X_LINE,
    Y_BINARY,
    Y_COUNTS,
    Y_FAR,
    Y_GROUPS,
    Y_KINDS,
    Y_LINE,
    Y_PAIRS,
    Y_POSITIVE,
    Y_REAL,
    Y_WAITS,
    design,
)

Draws = dict[str, np.ndarray]
LOG_2PI = float(np.log(2 * np.pi))


@dataclass(frozen=True)
class ExactModel:
    """A model with its answers.

    Attributes:
        name: how tables call it.
        model: a NumPyro model function.
        args: its arguments.
        log_evidence: the exact log p(data).
        draws: makes independent draws of the exact posterior, {site: (num, *shape)}.
        source: where the evidence comes from, "closed form" or "quadrature".
    """

    name: str
    model: Callable[..., None]
    args: tuple[Any, ...]
    log_evidence: float
    draws: Callable[[np.random.Generator, int], Draws]
    source: str = "closed form"


def _beta(name: str, model: Callable, y: np.ndarray, a: float, b: float, constant: float) -> ExactModel:
    log_evidence = constant + special.betaln(a, b) - special.betaln(2.0, 3.0)
    return ExactModel(name, model, (y,), float(log_evidence), lambda rng, num: {"p": rng.beta(a, b, num)})


def _gamma(name: str, model: Callable, y: np.ndarray, shape: float, rate: float, constant: float) -> ExactModel:
    log_evidence = constant + 2.0 * np.log(1.5) - special.gammaln(2.0) + special.gammaln(shape) - shape * np.log(rate)
    return ExactModel(
        name, model, (y,), float(log_evidence), lambda rng, num: {"rate": rng.gamma(shape, 1 / rate, num)}
    )


def _normal(name: str, model: Callable, site: str, args: tuple, x: Any, y: Any, noise: Any, prior: Any) -> ExactModel:
    """Solve y = x b + noise with b ~ N(m, S) and noise of a known covariance."""
    m, S = prior
    log_evidence = stats.multivariate_normal(x @ m, x @ S @ x.T + noise).logpdf(y)
    precision = np.linalg.inv(S) + x.T @ np.linalg.solve(noise, x)
    mean = np.linalg.solve(precision, np.linalg.solve(S, m) + x.T @ np.linalg.solve(noise, y))
    factor = np.linalg.cholesky(np.linalg.inv(precision))

    def draws(rng: np.random.Generator, num: int) -> Draws:
        values = mean + rng.normal(size=(num, len(m))) @ factor.T
        return {site: values[:, 0] if len(m) == 1 else values}

    return ExactModel(name, model, args, float(log_evidence), draws)


def _variance() -> ExactModel:
    shape, scale = 3.0 + 0.5 * len(Y_REAL), 2.0 + 0.5 * np.sum((Y_REAL - 1.0) ** 2)
    log_evidence = (
        3.0 * np.log(2.0) - special.gammaln(3.0) + special.gammaln(shape) - shape * np.log(scale)
    ) - 0.5 * len(Y_REAL) * LOG_2PI
    return ExactModel(
        "normal-variance",
        models.normal_variance,
        (Y_REAL,),
        float(log_evidence),
        lambda rng, num: {"v": scale / rng.gamma(shape, 1.0, num)},
    )


def _dirichlet() -> ExactModel:
    prior = np.array([1.5, 2.0, 1.0])

    def log_beta(a: np.ndarray) -> float:
        return float(np.sum(special.gammaln(a)) - special.gammaln(np.sum(a)))

    constant = special.gammaln(np.sum(Y_KINDS) + 1) - np.sum(special.gammaln(Y_KINDS + 1))
    return ExactModel(
        "dirichlet-multinomial",
        models.dirichlet_multinomial,
        (Y_KINDS,),
        float(constant + log_beta(prior + Y_KINDS) - log_beta(prior)),
        lambda rng, num: {"p": rng.dirichlet(prior + Y_KINDS, num)},
    )


def _conjugate_regression() -> ExactModel:
    """Solve y ~ N(x b, v), b ~ N(0, 4 v), v ~ InverseGamma(3, 1)."""
    x, y = design(), Y_LINE
    precision = x.T @ x + 0.25 * np.eye(2)
    mean = np.linalg.solve(precision, x.T @ y)
    shape, scale = 3.0 + 0.5 * len(y), 1.0 + 0.5 * (y @ y - mean @ precision @ mean)
    log_evidence = (
        -0.5 * len(y) * LOG_2PI
        + 0.5 * (2 * np.log(0.25) - np.linalg.slogdet(precision)[1])
        + 3.0 * np.log(1.0)
        - shape * np.log(scale)
        + special.gammaln(shape)
        - special.gammaln(3.0)
    )
    factor = np.linalg.cholesky(np.linalg.inv(precision))

    def draws(rng: np.random.Generator, num: int) -> Draws:
        v = scale / rng.gamma(shape, 1.0, num)
        return {"v": v, "b": mean + np.sqrt(v)[:, None] * (rng.normal(size=(num, 2)) @ factor.T)}

    return ExactModel("conjugate-regression", models.conjugate_regression, (x, y), float(log_evidence), draws)


def _integrated(name: str, model: Callable, site: str, args: tuple, log_density: Callable, sd: float) -> ExactModel:
    """Integrate a density on the line by the trapezoidal rule, whose error falls faster than any power of its step."""
    grid = np.linspace(-12 * sd, 12 * sd, 40_001)
    log_p = log_density(grid)
    top, step = log_p.max(), grid[1] - grid[0]
    density = np.exp(log_p - top)
    cumulated = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])

    def draws(rng: np.random.Generator, num: int) -> Draws:
        return {site: np.interp(rng.uniform(0, cumulated[-1], num), cumulated, grid)}

    log_evidence = float(top + np.log(np.sum(density) * step))
    return ExactModel(name, model, args, log_evidence, draws, "quadrature")


def _hierarchy() -> ExactModel:
    """Integrate tau by quadrature on the log scale; mu given tau is normal."""
    u = np.linspace(-30.0, 4.0, 20_001)
    variance = SD_GROUPS**2 + np.exp(2 * u)[:, None]
    weight = 1.0 / variance
    precision = 1 / 1.5**2 + weight.sum(1)
    mean = (weight @ Y_GROUPS) / precision
    log_p = (
        stats.halfnorm.logpdf(np.exp(u))
        + u
        - 0.5 * np.sum(np.log(2 * np.pi * variance) + Y_GROUPS**2 * weight, 1)
        - np.log(1.5)
        - 0.5 * np.log(precision)
        + 0.5 * mean**2 * precision
    )
    top = log_p.max()
    density = np.exp(log_p - top)
    cumulated = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])

    def draws(rng: np.random.Generator, num: int) -> Draws:
        at = np.interp(rng.uniform(0, cumulated[-1], num), cumulated, u)
        return {
            "tau": np.exp(at),
            "mu": np.interp(at, u, mean) + rng.normal(size=num) / np.sqrt(np.interp(at, u, precision)),
        }

    log_evidence = float(top + np.log(np.sum(density) * (u[1] - u[0])))
    return ExactModel("hierarchy", models.hierarchy, (Y_GROUPS, SD_GROUPS), log_evidence, draws, "quadrature")


def _catalogue() -> list[ExactModel]:
    ones = np.ones((len(Y_REAL), 1))
    pairs = np.kron(np.ones((len(Y_PAIRS), 1)), np.eye(2))
    num, total = len(Y_COUNTS), Y_COUNTS.sum()
    return [
        _beta("beta-binomial", models.beta_binomial, np.array(7), 9.0, 16.0, float(np.log(special.comb(20, 7)))),
        _beta("beta-geometric", models.beta_geometric, Y_WAITS, 2.0 + len(Y_WAITS), 3.0 + Y_WAITS.sum(), 0.0),
        _gamma(
            "gamma-poisson",
            models.gamma_poisson,
            Y_COUNTS,
            2.0 + total,
            1.5 + num,
            -np.sum(special.gammaln(Y_COUNTS + 1.0)),
        ),
        _gamma(
            "gamma-exponential",
            models.gamma_exponential,
            Y_POSITIVE,
            2.0 + len(Y_POSITIVE),
            1.5 + Y_POSITIVE.sum(),
            0.0,
        ),
        _normal(
            "normal-normal",
            models.normal_normal,
            "mu",
            (Y_REAL,),
            ones,
            Y_REAL,
            2.25 * np.eye(len(Y_REAL)),
            (np.array([-1.0]), np.array([[4.0]])),
        ),
        _variance(),
        _dirichlet(),
        _normal(
            "normal-vector",
            models.normal_vector,
            "mu",
            (Y_PAIRS,),
            pairs,
            Y_PAIRS.ravel(),
            np.kron(np.eye(len(Y_PAIRS)), COVARIANCE),
            (np.zeros(2), 4.0 * np.eye(2)),
        ),
        _normal(
            "linear-regression",
            models.linear_regression,
            "b",
            (design(), Y_LINE),
            design(),
            Y_LINE,
            0.25 * np.eye(len(Y_LINE)),
            (np.zeros(2), 4.0 * np.eye(2)),
        ),
        _conjugate_regression(),
        _integrated(
            "logistic-slope",
            models.logistic_slope,
            "b",
            (X_LINE, Y_BINARY),
            lambda b: (
                stats.norm.logpdf(b, 0.0, 2.5)
                - np.sum(np.logaddexp(0.0, np.where(Y_BINARY == 1, -1.0, 1.0) * X_LINE * b[:, None]), 1)
            ),
            2.5,
        ),
        _integrated(
            "cauchy-location",
            models.cauchy_location,
            "xi",
            (Y_REAL,),
            lambda b: stats.norm.logpdf(b, 0.0, 2.0) + np.sum(stats.cauchy.logpdf(Y_REAL, b[:, None], 0.7), 1),
            2.0,
        ),
        _integrated(
            "student-location",
            models.student_location,
            "xi",
            (Y_FAR,),
            lambda b: stats.norm.logpdf(b, 0.0, 2.0) + np.sum(stats.t.logpdf(Y_FAR, 4.0, b[:, None], 0.6), 1),
            2.0,
        ),
        _hierarchy(),
    ]


MODELS: dict[str, ExactModel] = {model.name: model for model in _catalogue()}
