"""Simulated data with groups: varying intercepts and slopes, items and persons, crossed factors.

Data are made from fixed seeds, so that every run sees the same posterior.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int

Group = Int[Array, " n"]
Values = Float[Array, " n"]


def _correlated_effects(num_groups: int, tau: Float[Array, " 2"]) -> Float[Array, "j 2"]:
    """Sample standardized effects and an LKJ correlation, and return the effects."""
    factor = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("groups", num_groups):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    return z @ (tau[:, None] * factor).T


def slopes_lkj(x: Values, group: Group, y: Values, num_groups: int) -> None:
    """Intercepts and slopes that vary by group, correlated, non-centered."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    effects = mu + _correlated_effects(num_groups, tau)
    mean = effects[group, 0] + effects[group, 1] * x
    numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def slopes_lkj_data(num_groups: int, num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return predictor, group and outcome; some groups have few rows."""
    rng = np.random.default_rng(seed)
    group = _unequal_groups(rng, num_groups, num_rows)
    covariance = np.array([[0.5**2, -0.4 * 0.5 * 0.3], [-0.4 * 0.5 * 0.3, 0.3**2]])
    effects = rng.multivariate_normal([1.3, -0.7], covariance, size=num_groups)
    x = rng.normal(size=num_rows)
    y = effects[group, 0] + effects[group, 1] * x + 0.7 * rng.normal(size=num_rows)
    return x, group, y, num_groups


def slopes_centered(x: Values, group: Group, y: Values, num_groups: int) -> None:
    """Intercepts and slopes that vary by group, independent, centered."""
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    mu_beta = numpyro.sample("mu_beta", dist.Normal(0.0, 10.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    sigma_beta = numpyro.sample("sigma_beta", dist.HalfNormal(1.0))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    with numpyro.plate("groups", num_groups):
        alpha = numpyro.sample("alpha", dist.Normal(mu_alpha, sigma_alpha))
        beta = numpyro.sample("beta", dist.Normal(mu_beta, sigma_beta))
    numpyro.sample("y", dist.Normal(alpha[group] + beta[group] * x, sigma_y), obs=y)


def poisson_lkj(x: Values, group: Group, y: Int[Array, " n"], num_groups: int) -> None:
    """Log rates with correlated intercepts and slopes by group, non-centered."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
    effects = mu + _correlated_effects(num_groups, tau)
    numpyro.sample("y", dist.Poisson(jnp.exp(effects[group, 0] + effects[group, 1] * x)), obs=y)


def poisson_lkj_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return 600 counts in 60 groups."""
    rng = np.random.default_rng(13)
    num_groups, num_rows = 60, 600
    group = _unequal_groups(rng, num_groups, num_rows)
    covariance = np.array([[0.6**2, 0.5 * 0.6 * 0.3], [0.5 * 0.6 * 0.3, 0.3**2]])
    effects = rng.multivariate_normal([0.5, 0.3], covariance, size=num_groups)
    x = rng.normal(size=num_rows)
    return x, group, rng.poisson(np.exp(effects[group, 0] + effects[group, 1] * x)), num_groups


def item_response(y: Int[Array, "persons items"]) -> None:
    """Two-parameter item response model with standard normal abilities."""
    num_persons, num_items = y.shape
    sigma_a = numpyro.sample("sigma_a", dist.HalfNormal(1.0))
    with numpyro.plate("items", num_items):
        log_a = numpyro.sample("log_a", dist.Normal(0.0, sigma_a))
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("persons", num_persons):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=jnp.exp(log_a) * (theta[:, None] - b)), obs=y)


def item_response_data() -> tuple[np.ndarray]:
    """Return right and wrong answers of 400 persons to 30 items."""
    rng = np.random.default_rng(14)
    theta, b, a = rng.normal(size=400), rng.normal(size=30), np.exp(0.4 * rng.normal(size=30))
    logits = a * (theta[:, None] - b)
    return ((rng.uniform(size=logits.shape) < 1.0 / (1.0 + np.exp(-logits))).astype(int),)


def crossed(x: Values, first: Group, second: Group, y: Int[Array, " n"], num_levels: int) -> None:
    """Logistic regression with two crossed factors, non-centered."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0).expand([2]).to_event(1))
    with numpyro.plate("levels", num_levels):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        v = numpyro.sample("v", dist.Normal(0.0, 1.0))
    logits = intercept + slope * x + sigma[0] * u[first] + sigma[1] * v[second]
    numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def crossed_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Return 4,000 binary outcomes in two factors of 200 levels each."""
    rng = np.random.default_rng(15)
    num_levels, num_rows = 200, 4_000
    first, second = rng.integers(num_levels, size=(2, num_rows))
    u, v = 0.8 * rng.normal(size=num_levels), 0.5 * rng.normal(size=num_levels)
    x = rng.normal(size=num_rows)
    logits = -0.3 + 0.6 * x + u[first] + v[second]
    y = (rng.uniform(size=num_rows) < 1.0 / (1.0 + np.exp(-logits))).astype(int)
    return x, first, second, y, num_levels


def _unequal_groups(rng: np.random.Generator, num_groups: int, num_rows: int) -> np.ndarray:
    """Assign rows to groups of unequal sizes; every group has at least one row."""
    share = rng.dirichlet(np.full(num_groups, 1.5))
    rest = rng.choice(num_groups, size=num_rows - num_groups, p=share)
    return np.sort(np.concatenate([np.arange(num_groups), rest]))
