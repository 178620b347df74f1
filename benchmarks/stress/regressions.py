"""Bayesian models with simulated data, each with one difficulty that real analyzes meet.

The data are made from a fixed seed, so that every run sees the same posterior.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Float

HORSESHOE_PREDICTORS, HORSESHOE_ROWS = 24, 80
COX_SIDE, COX_LENGTH, COX_VARIANCE = 16, 4.0, 1.0
NUM_PERSONS, NUM_ITEMS = 150, 25
NUM_RETURNS = 297


def horseshoe(x: Float[jax.Array, "n d"], y: Float[jax.Array, " n"]) -> None:
    """Sparse regression: global and local half-Cauchy scales, standardized coefficients."""
    d = x.shape[1]
    tau = numpyro.sample("tau", dist.HalfCauchy(0.1))
    local = numpyro.sample("local", dist.HalfCauchy(1.0).expand([d]).to_event(1))
    raw = numpyro.sample("raw", dist.Normal(0.0, 1.0).expand([d]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    b = numpyro.deterministic("b", tau * local * raw)
    numpyro.sample("y", dist.Normal(x @ b, sigma), obs=y)


def horseshoe_data() -> tuple[np.ndarray, np.ndarray]:
    """Return 80 rows of 24 predictors, four of which matter."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(HORSESHOE_ROWS, HORSESHOE_PREDICTORS))
    b = np.zeros(HORSESHOE_PREDICTORS)
    b[:4] = 2.0, -1.5, 1.0, 0.5
    return x, x @ b + rng.normal(size=HORSESHOE_ROWS)


def cox_process(counts: Float[jax.Array, " n"], factor: Float[jax.Array, "n n"], level: float) -> None:
    """Log-Gaussian Cox process: counts in the cells of a grid, their log intensity a Gaussian process."""
    f = numpyro.sample("f", dist.MultivariateNormal(jnp.full(len(counts), level), scale_tril=factor))
    numpyro.sample("counts", dist.Poisson(jnp.exp(f)).to_event(1), obs=counts)


def cox_data() -> tuple[np.ndarray, np.ndarray, float]:
    """Return counts on a grid of 16 x 16 cells, the Cholesky factor of the prior, and the log level."""
    rng = np.random.default_rng(2)
    cell = np.stack(np.meshgrid(*[np.arange(COX_SIDE)] * 2), -1).reshape(-1, 2)
    distance = np.linalg.norm(cell[:, None] - cell[None], axis=-1)
    factor = np.linalg.cholesky(COX_VARIANCE * np.exp(-distance / COX_LENGTH))
    level = 0.5
    return rng.poisson(np.exp(level + factor @ rng.normal(size=len(cell)))), factor, level


def item_response(y: Float[jax.Array, "s i"]) -> None:
    """Two-parameter item response model: abilities of 150 persons, difficulty and discrimination of 25 items."""
    num_persons, num_items = y.shape
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    discrimination = numpyro.sample("discrimination", dist.LogNormal(0.0, 0.5).expand([num_items]).to_event(1))
    ability = numpyro.sample("ability", dist.Normal(0.0, 1.0).expand([num_persons]).to_event(1))
    difficulty = numpyro.sample("difficulty", dist.Normal(0.0, spread).expand([num_items]).to_event(1))
    logits = discrimination * (ability[:, None] - difficulty)
    numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(2), obs=y)


def item_response_data() -> tuple[np.ndarray]:
    """Return right and wrong answers of 150 persons to 25 items."""
    rng = np.random.default_rng(3)
    ability, difficulty = rng.normal(size=NUM_PERSONS), rng.normal(size=NUM_ITEMS)
    discrimination = np.exp(0.3 * rng.normal(size=NUM_ITEMS))
    logits = discrimination * (ability[:, None] - difficulty)
    return ((rng.uniform(size=logits.shape) < 1 / (1 + np.exp(-logits))).astype(int),)


def stochastic_volatility(returns: Float[jax.Array, " t"]) -> None:
    """Returns whose log variance is a stationary autoregression, with standardized innovations."""
    mu = numpyro.sample("mu", dist.Normal(-1.0, 1.0))
    phi = numpyro.sample("phi", dist.TransformedDistribution(dist.Beta(20.0, 1.5), _FROM_UNIT))
    sigma = numpyro.sample("sigma", dist.HalfNormal(0.5))
    innovations = numpyro.sample("innovations", dist.Normal(0.0, 1.0).expand([len(returns)]).to_event(1))
    first = innovations[0] / jnp.sqrt(1.0 - phi**2)

    def step(h, innovation):
        h = phi * h + innovation
        return h, h

    _, rest = jax.lax.scan(step, first, innovations[1:])
    h = mu + sigma * jnp.concatenate([first[None], rest])
    numpyro.sample("returns", dist.Normal(0.0, jnp.exp(h / 2)).to_event(1), obs=returns)


# Maps the unit interval to (-1, 1), where an autoregression is stationary.
_FROM_UNIT = dist.transforms.AffineTransform(-1.0, 2.0, domain=dist.constraints.unit_interval)


def volatility_data() -> tuple[np.ndarray]:
    """Return 297 simulated returns."""
    rng = np.random.default_rng(4)
    h = np.empty(NUM_RETURNS)
    h[0] = rng.normal() * 0.3 / np.sqrt(1 - 0.95**2)
    for t in range(1, NUM_RETURNS):
        h[t] = 0.95 * h[t - 1] + 0.3 * rng.normal()
    return (np.exp((h - 1.0) / 2) * rng.normal(size=NUM_RETURNS),)


def logistic(x: Float[jax.Array, "n d"], y: Float[jax.Array, " n"]) -> None:
    """Logistic regression with a wide prior."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    b = numpyro.sample("b", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ b).to_event(1), obs=y)


def separated_data() -> tuple[np.ndarray, np.ndarray]:
    """Return 40 rows whose classes a line separates: the likelihood has no maximum."""
    x = np.random.default_rng(5).normal(size=(40, 2))
    return x, (x @ np.array([1.0, 0.7]) > 0.2).astype(int)


def regression(x: Float[jax.Array, "n d"], y: Float[jax.Array, " n"], scale: Float[jax.Array, " d"]) -> None:
    """Linear regression with known noise and normal priors: conjugate, whatever its units."""
    b = numpyro.sample("b", dist.Normal(0.0, scale).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, 1.0).to_event(1), obs=y)


def units_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a regression with one coefficient of about 1e-5, one of 1e5 and one of 1."""
    rng = np.random.default_rng(6)
    units = np.array([1e5, 1e-5, 1.0])
    x = rng.normal(size=(50, 3)) * units
    return x, x @ (np.array([1.0, -1.0, 0.5]) / units) + rng.normal(size=50), 10.0 / units


def calendar_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a trend over uncentered calendar years: intercept and slope are correlated by -0.9999."""
    rng = np.random.default_rng(7)
    year = np.arange(1970.0, 2021.0)
    x = np.stack([np.ones_like(year), year], -1)
    return x, 0.02 * (year - 1995.0) + rng.normal(size=year.size), np.array([1e3, 1.0])


def conjugate_posterior(x: np.ndarray, y: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return mean and Cholesky factor of the covariance of the posterior of `regression`, and its log evidence."""
    # In units of the prior, so that the matrix to invert is as well conditioned as the posterior allows.
    design = x * scale
    precision = np.linalg.cholesky(np.eye(len(scale)) + design.T @ design)
    inverse = np.linalg.inv(precision)
    mean = inverse.T @ (inverse @ (design.T @ y))
    fit = y @ y - mean @ (design.T @ y)
    log_evidence = -0.5 * (len(y) * np.log(2 * np.pi) + fit) - np.sum(np.log(np.diagonal(precision)))
    return scale * mean, scale[:, None] * inverse.T, float(log_evidence)
