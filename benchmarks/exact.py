"""Independent draws of posteriors that can be integrated: one quantity by quadrature, the others in closed form.

A chain of NUTS has trouble with the necks of funnels, which are in half of these posteriors; here nothing depends on a
chain. Every function takes a seed and a number and returns {site: (num, *shape)}, derived quantities included.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from benchmarks import data

NUM_POINTS = 20_001
Draws = dict[str, np.ndarray]


def bernoulli(seed: int, num: int) -> Draws:
    """Draw the probability of success: the prior is conjugate."""
    y = np.asarray(data.load_bernoulli())
    return {"p": np.random.default_rng(seed).beta(1.1 + y.sum(), 1.1 + (1 - y).sum(), num)}


def cauchy(seed: int, num: int) -> Draws:
    """Draw the location of the Cauchy distribution by quadrature."""
    y, scale = map(np.asarray, data.load_cauchy())

    def log_density(xi: np.ndarray) -> np.ndarray:
        return -0.5 * xi**2 - np.log1p(((y - xi[:, None]) / scale) ** 2).sum(axis=1)

    return {"xi": from_quadrature(log_density, -8.0, 8.0, np.random.default_rng(seed), num)}


def toy_regression(seed: int, num: int) -> Draws:
    """Draw the noise by quadrature, with the coefficients integrated out; then these, which are normal given it."""
    x, y = map(np.asarray, data.load_toy_regression())
    design = np.column_stack([np.ones(len(y)), x])
    variance = 10.0**2
    values, vectors = np.linalg.eigh(variance * design @ design.T)
    rotated = vectors.T @ y

    def log_density(log_sigma: np.ndarray) -> np.ndarray:
        variances = np.maximum(values, 0.0) + np.exp(2 * log_sigma)[:, None]
        log_likelihood = -0.5 * (np.log(variances) + rotated**2 / variances).sum(axis=1)
        return log_likelihood - 0.5 * (log_sigma - 0.5) ** 2

    rng = np.random.default_rng(seed)
    sigma = np.exp(from_quadrature(log_density, -9.0, 9.0, rng, num))
    inverse_variance = sigma[:, None, None] ** -2
    precision = inverse_variance * (design.T @ design) + np.eye(3) / variance
    mean = np.linalg.solve(precision, inverse_variance * (design.T @ y)[:, None])[..., 0]
    # Noise of covariance precision^-1: L^-T z, where precision = L L^T.
    factor = np.swapaxes(np.linalg.cholesky(precision), 1, 2)
    coefficients = mean + np.linalg.solve(factor, rng.normal(size=(num, 3, 1)))[..., 0]
    return {"b": coefficients[:, 0], "w": coefficients[:, 1:], "sigma": sigma}


def eight_schools(seed: int, num: int) -> Draws:
    """Draw tau by quadrature, with mu and the effects integrated out; then mu, then the effects, which are normal."""
    y, s = map(np.asarray, data.load_eight_schools())
    prior_variance = 5.0**2

    def mean_and_precision(tau: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = 1.0 / (s**2 + tau[:, None] ** 2)
        precision = weights.sum(axis=1) + 1.0 / prior_variance
        return (weights * y).sum(axis=1) / precision, precision

    def log_density(log_tau: np.ndarray) -> np.ndarray:
        tau = np.exp(log_tau)
        variances = s**2 + tau[:, None] ** 2
        mean, precision = mean_and_precision(tau)
        log_likelihood = -0.5 * (np.log(variances) + y**2 / variances).sum(axis=1)
        log_likelihood += 0.5 * (mean**2 * precision - np.log(precision))
        return log_likelihood - np.log1p((tau / 5.0) ** 2) + log_tau

    rng = np.random.default_rng(seed)
    tau = np.exp(from_quadrature(log_density, -20.0, 8.0, rng, num))
    mean, precision = mean_and_precision(tau)
    mu = mean + rng.normal(size=num) / np.sqrt(precision)
    # Given mu and tau, y - mu = tau theta_trans + noise with a standard normal prior of theta_trans.
    precision = 1.0 + (tau[:, None] / s) ** 2
    mean = tau[:, None] * (y - mu[:, None]) / s**2 / precision
    theta_trans = mean + rng.normal(size=(num, len(y))) / np.sqrt(precision)
    return {"mu": mu, "tau": tau, "theta_trans": theta_trans, "theta": mu[:, None] + tau[:, None] * theta_trans}


def eight_schools_centered(seed: int, num: int) -> Draws:
    """Draw the parameters of the centered form."""
    draws = eight_schools(seed, num)
    return {name: draws[name] for name in ("mu", "tau", "theta")}


def from_quadrature(
    log_density: Callable[[np.ndarray], np.ndarray], low: float, high: float, rng: np.random.Generator, num: int
) -> Float[np.ndarray, " num"]:
    """Draw one quantity from an unnormalized log density on an interval that holds all of its mass.

    The density counts as constant in each of 20,000 cells.
    """
    edges = np.linspace(low, high, NUM_POINTS)
    values = log_density((edges[:-1] + edges[1:]) / 2)
    masses = np.exp(values - values.max())
    cells = rng.choice(len(masses), num, p=masses / masses.sum())
    return edges[cells] + rng.uniform(size=num) * (edges[1] - edges[0])
