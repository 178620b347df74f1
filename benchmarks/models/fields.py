"""Simulated data with dependence in time and space: volatility, a map of areas, a latent Gaussian process."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int
from numpyro.distributions import constraints

Values = Float[Array, " n"]
Counts = Int[Array, " n"]

SIDE = 20
# Standard deviation of the mean of the spatial effects: a soft sum-to-zero constraint.
SOFT = 1e-3
# Share of the variance that is added to the diagonal of the kernel, so that it factorizes in single precision, too.
JITTER = 1e-4


def volatility(returns: Values) -> None:
    """Returns whose log variance h is a stationary autoregression; h itself is the parameter."""
    mu, phi, sigma = _volatility_priors()
    h = numpyro.sample("h", dist.ImproperUniform(constraints.real_vector, (), (len(returns),)))
    first = dist.Normal(mu, sigma / jnp.sqrt(1.0 - phi**2)).log_prob(h[0])
    rest = dist.Normal(mu + phi * (h[:-1] - mu), sigma).log_prob(h[1:])
    numpyro.factor("h_prior", first + jnp.sum(rest))
    numpyro.sample("returns", dist.Normal(0.0, jnp.exp(h / 2.0)), obs=returns)


def volatility_noncentered(returns: Values) -> None:
    """Reparameterize `volatility` by standardized innovations; h is derived."""
    mu, phi, sigma = _volatility_priors()
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([len(returns)]).to_event(1))
    steps = jnp.concatenate([z[:1] / jnp.sqrt(1.0 - phi**2), z[1:]])

    def combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    _, path = jax.lax.associative_scan(combine, (jnp.full_like(steps, phi), steps))
    h = numpyro.deterministic("h", mu + sigma * path)
    numpyro.sample("returns", dist.Normal(0.0, jnp.exp(h / 2.0)), obs=returns)


def _volatility_priors() -> tuple[Array, Array, Array]:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    return mu, phi, sigma


def volatility_data() -> tuple[np.ndarray]:
    """Return 1,000 returns."""
    rng = np.random.default_rng(16)
    num, mu, phi, sigma = 1_000, -1.0, 0.95, 0.25
    h = np.empty(num)
    h[0] = mu + sigma / np.sqrt(1.0 - phi**2) * rng.normal()
    for t in range(1, num):
        h[t] = mu + phi * (h[t - 1] - mu) + sigma * rng.normal()
    return (np.exp(h / 2.0) * rng.normal(size=num),)


def bym(x: Values, expected: Values, counts: Counts, edges: Int[Array, "m 2"]) -> None:
    """Counts on a map: intrinsic autoregressive and independent effects of areas (Besag, York and Mollie)."""
    phi = numpyro.sample("phi", dist.ImproperUniform(constraints.real_vector, (), (len(counts),)))
    difference = phi[edges[:, 0]] - phi[edges[:, 1]]
    numpyro.factor("phi_prior", -0.5 * jnp.sum(difference**2) - 0.5 * (jnp.mean(phi) / SOFT) ** 2)
    _bym_counts(x, expected, counts, phi)


def bym_spectral(x: Values, expected: Values, counts: Counts, edges: Int[Array, "m 2"]) -> None:
    """Reparameterize `bym` by independent coordinates of the spatial effects; phi is derived."""
    del edges
    raw = numpyro.sample("phi_raw", dist.Normal(0.0, 1.0).expand([len(counts)]).to_event(1))
    phi = numpyro.deterministic("phi", jnp.asarray(_spatial_factor()) @ raw)
    _bym_counts(x, expected, counts, phi)


def _bym_counts(x: Values, expected: Values, counts: Counts, phi: Values) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    sigma_phi = numpyro.sample("sigma_phi", dist.HalfNormal(1.0))
    sigma_theta = numpyro.sample("sigma_theta", dist.HalfNormal(1.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([len(counts)]).to_event(1))
    log_rate = jnp.log(expected) + beta[0] + beta[1] * x + sigma_phi * phi + sigma_theta * theta
    numpyro.sample("counts", dist.Poisson(jnp.exp(log_rate)), obs=counts)


def bym_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a predictor, expected and observed counts, and the pairs of neighbors of 20 x 20 areas."""
    rng = np.random.default_rng(17)
    num = SIDE**2
    x, expected = rng.normal(size=num), rng.gamma(4.0, 2.5, size=num)
    phi = _spatial_factor() @ rng.normal(size=num)
    log_rate = np.log(expected) - 0.1 + 0.3 * x + 0.4 * phi + 0.2 * rng.normal(size=num)
    return x, expected, rng.poisson(np.exp(log_rate)), _edges()


def _edges() -> np.ndarray:
    area = np.arange(SIDE**2).reshape(SIDE, SIDE)
    return np.concatenate(
        [
            np.stack([area[:, :-1].ravel(), area[:, 1:].ravel()], -1),
            np.stack([area[:-1].ravel(), area[1:].ravel()], -1),
        ]
    )


@cache
def _spatial_factor() -> np.ndarray:
    """Return a square root of the covariance of the spatial effects."""
    num, edges = SIDE**2, _edges()
    precision = np.full((num, num), (num * SOFT) ** -2.0)
    for i, j in edges:
        precision[[i, j], [i, j]] += 1.0
        precision[[i, j], [j, i]] -= 1.0
    values, vectors = np.linalg.eigh(precision)
    return vectors / np.sqrt(values)


def gaussian_process(x: Values, counts: Counts) -> None:
    """Counts whose log rate is a Gaussian process with unknown amplitude and length scale, non-centered."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    amplitude = numpyro.sample("amplitude", dist.HalfNormal(1.0))
    length = numpyro.sample("length", dist.InverseGamma(5.0, 5.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    kernel = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + JITTER * jnp.eye(len(x))
    f = mean + amplitude * (jnp.linalg.cholesky(kernel) @ z)
    numpyro.sample("counts", dist.Poisson(jnp.exp(f)), obs=counts)


def gaussian_process_data() -> tuple[np.ndarray, np.ndarray]:
    """Return 200 places on a line and counts there."""
    rng = np.random.default_rng(18)
    x = np.linspace(0.0, 10.0, 200)
    kernel = np.exp(-0.5 * (x[:, None] - x) ** 2) + JITTER * np.eye(len(x))
    f = 1.0 + 0.8 * np.linalg.cholesky(kernel) @ rng.normal(size=len(x))
    return x, rng.poisson(np.exp(f))
