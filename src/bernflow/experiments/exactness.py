"""Small models whose evidence and posterior are known exactly, in closed form or by quadrature.

What a fit says of such a model can be checked without a sampler. With w(theta) = p(theta, y) / q(theta) the evidence is
Z = E_q[w], and the divergence of the fit from the posterior can be had from either side:

    KL(q || p) = log Z - E_q[log w]                  draws of the fit: the ELBO
               = E_q[W - 1 - log W],  W = w / Z      the same, of smaller variance, because E_q[W] = 1
               = E_p[r log r - r + 1], r = q / p     draws of the exact posterior, and log q at them through the inverse

Example:
    >>> found = MODELS["beta-binomial"]
    >>> round(found.log_evidence, 6)
    -2.537657
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Float
from scipy import special, stats

Draws = dict[str, np.ndarray]
LOG_2PI = float(np.log(2 * np.pi))

Y_REAL = np.array([1.3, 0.2, 2.1, 0.8, 1.7])
Y_POSITIVE = np.array([0.7, 1.9, 0.4, 2.6, 1.1, 0.3])
Y_COUNTS = np.array([3, 0, 2, 4])
Y_WAITS = np.array([2, 0, 5, 1, 1])
Y_KINDS = np.array([4, 1, 7])
Y_PAIRS = np.array([[0.3, 1.1], [-0.6, 0.4], [0.9, 2.0]])
Y_FAR = np.array([-1.2, 0.1, 0.3, 0.6, 4.0])
Y_BINARY = np.array([0, 0, 1, 0, 1, 1, 1, 1])
X_LINE = np.linspace(-1.0, 1.0, 8)
Y_LINE = np.array([-0.9, -1.1, -0.2, 0.1, 0.4, 0.3, 1.4, 1.2])
Y_GROUPS, SD_GROUPS = np.array([1.4, -0.3, 0.8, 2.2]), np.array([0.8, 0.5, 0.7, 1.0])
COVARIANCE = np.array([[1.0, 0.6], [0.6, 1.5]])


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


def design() -> Float[np.ndarray, "8 2"]:
    """Return the design matrix of the regressions: one, and x."""
    return np.stack([np.ones_like(X_LINE), X_LINE], 1)


def beta_binomial(y):
    """Successes out of 20."""
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    numpyro.sample("y", dist.Binomial(20, p), obs=y)


def beta_geometric(y):
    """Failures before a success."""
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    numpyro.sample("y", dist.Geometric(p), obs=y)


def gamma_poisson(y):
    """Counts of an unknown rate."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.5))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def gamma_exponential(y):
    """Waiting times of an unknown rate."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.5))
    numpyro.sample("y", dist.Exponential(rate), obs=y)


def normal_normal(y):
    """A mean, with known variance."""
    mu = numpyro.sample("mu", dist.Normal(-1.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, 1.5), obs=y)


def normal_variance(y):
    """A variance, with known mean."""
    v = numpyro.sample("v", dist.InverseGamma(3.0, 2.0))
    numpyro.sample("y", dist.Normal(1.0, jnp.sqrt(v)), obs=y)


def dirichlet_multinomial(y):
    """Shares of three kinds."""
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.5, 2.0, 1.0])))
    numpyro.sample("y", dist.Multinomial(total_count=12, probs=p), obs=y)


def normal_vector(y):
    """The mean of a bivariate normal with known covariance."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.MultivariateNormal(mu, covariance_matrix=jnp.asarray(COVARIANCE)), obs=y)


def linear_regression(x, y):
    """Regression with known variance."""
    b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, 0.5), obs=y)


def conjugate_regression(x, y):
    """Regression with a normal-inverse-gamma prior."""
    v = numpyro.sample("v", dist.InverseGamma(3.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0 * jnp.sqrt(v)).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, jnp.sqrt(v)), obs=y)


def logistic_slope(x, y):
    """Logistic regression through the origin."""
    b = numpyro.sample("b", dist.Normal(0.0, 2.5))
    numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)


def cauchy_location(y):
    """The location of a Cauchy distribution."""
    xi = numpyro.sample("xi", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Cauchy(xi, 0.7), obs=y)


def student_location(y):
    """The location of a Student-t distribution, with an outlier."""
    xi = numpyro.sample("xi", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.StudentT(4.0, xi, 0.6), obs=y)


def hierarchy(y, sd):
    """Groups around a mean with an unknown scale; the group effects are integrated out."""
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.5))
    numpyro.sample("y", dist.Normal(mu, jnp.sqrt(sd**2 + tau**2)), obs=y)


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
        normal_variance,
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
        dirichlet_multinomial,
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

    return ExactModel("conjugate-regression", conjugate_regression, (x, y), float(log_evidence), draws)


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
    return ExactModel("hierarchy", hierarchy, (Y_GROUPS, SD_GROUPS), log_evidence, draws, "quadrature")


def _catalogue() -> list[ExactModel]:
    ones = np.ones((len(Y_REAL), 1))
    pairs = np.kron(np.ones((len(Y_PAIRS), 1)), np.eye(2))
    num, total = len(Y_COUNTS), Y_COUNTS.sum()
    return [
        _beta("beta-binomial", beta_binomial, np.array(7), 9.0, 16.0, float(np.log(special.comb(20, 7)))),
        _beta("beta-geometric", beta_geometric, Y_WAITS, 2.0 + len(Y_WAITS), 3.0 + Y_WAITS.sum(), 0.0),
        _gamma(
            "gamma-poisson", gamma_poisson, Y_COUNTS, 2.0 + total, 1.5 + num, -np.sum(special.gammaln(Y_COUNTS + 1.0))
        ),
        _gamma("gamma-exponential", gamma_exponential, Y_POSITIVE, 2.0 + len(Y_POSITIVE), 1.5 + Y_POSITIVE.sum(), 0.0),
        _normal(
            "normal-normal",
            normal_normal,
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
            normal_vector,
            "mu",
            (Y_PAIRS,),
            pairs,
            Y_PAIRS.ravel(),
            np.kron(np.eye(len(Y_PAIRS)), COVARIANCE),
            (np.zeros(2), 4.0 * np.eye(2)),
        ),
        _normal(
            "linear-regression",
            linear_regression,
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
            logistic_slope,
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
            cauchy_location,
            "xi",
            (Y_REAL,),
            lambda b: stats.norm.logpdf(b, 0.0, 2.0) + np.sum(stats.cauchy.logpdf(Y_REAL, b[:, None], 0.7), 1),
            2.0,
        ),
        _integrated(
            "student-location",
            student_location,
            "xi",
            (Y_FAR,),
            lambda b: stats.norm.logpdf(b, 0.0, 2.0) + np.sum(stats.t.logpdf(Y_FAR, 4.0, b[:, None], 0.6), 1),
            2.0,
        ),
        _hierarchy(),
    ]


MODELS: dict[str, ExactModel] = {model.name: model for model in _catalogue()}


@dataclass(frozen=True)
class Exactness:
    """What a fit says of a model whose answers are known.

    Attributes:
        evidence_error: estimated less exact log evidence.
        evidence_se: the standard error that the fit states.
        kl: KL(q || p) by draws of the fit, with its standard error.
        kl_se: its standard error.
        kl_other: KL(q || p) by draws of the exact posterior.
        kl_other_se: its standard error.
    """

    evidence_error: float
    evidence_se: float
    kl: float
    kl_se: float
    kl_other: float
    kl_other_se: float

    @property
    def evidence_z(self) -> float:
        """Error of the evidence in units of its standard error."""
        return self.evidence_error / self.evidence_se

    @property
    def kl_z(self) -> float:
        """Difference of the two divergences in units of its standard error."""
        return (self.kl - self.kl_other) / float(np.hypot(self.kl_se, self.kl_other_se))


def examine(posterior: Any, exact: ExactModel, num: int = 20_000, seed: int = 0) -> Exactness:
    """Compare a fit with the answers; the formulae are in the module's documentation.

    Args:
        posterior: the fit of `exact.model` to `exact.args`.
        exact: the model with its answers.
        num: number of draws on either side.
        seed: seed of the draws.
    """
    log_w = posterior.log_weights(num, seed) - exact.log_evidence
    from_q = np.expm1(log_w) - log_w
    theta = exact.draws(np.random.default_rng(seed), num)
    with jax.enable_x64(True):
        log_p = np.asarray(jax.vmap(posterior.model.log_density)(jax.tree.map(jnp.asarray, theta)))
    log_r = posterior.log_prob(theta) - (log_p - exact.log_evidence)
    from_p = np.exp(log_r) * log_r - np.expm1(log_r)
    found = posterior.diagnostics
    return Exactness(
        found.log_evidence - exact.log_evidence,
        found.log_evidence_se,
        *(float(f(v)) for v in (from_q, from_p) for f in (np.mean, lambda v: np.std(v) / np.sqrt(num))),
    )
