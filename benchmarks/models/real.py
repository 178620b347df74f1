"""Eleven hierarchical posteriors with real data; each model takes the data of posteriordb as one dictionary.

Sites have the names of the parameters of the Stan programs. Indices in the data start at 1.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

Data = Mapping[str, Any]

NUM_MONTHS = 12


def radon_centered(data: Data) -> None:
    """Log radon levels with one intercept per county."""
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    mu = numpyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    with numpyro.plate("county", data["J"]):
        alpha = numpyro.sample("alpha", dist.Normal(mu, sigma))
    numpyro.sample("y", dist.Normal(alpha[data["county_idx"] - 1], sigma_y), obs=data["log_radon"])


def radon_noncentered(data: Data) -> None:
    """Log radon levels with one standardized intercept per county."""
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    mu = numpyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    with numpyro.plate("county", data["J"]):
        raw = numpyro.sample("alpha_raw", dist.Normal(0.0, 1.0))
    alpha = mu + sigma * raw
    numpyro.sample("y", dist.Normal(alpha[data["county_idx"] - 1], sigma_y), obs=data["log_radon"])


def radon_slopes_noncentered(data: Data) -> None:
    """Log radon levels with a standardized intercept and effect of the floor per county."""
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    sigma_beta = numpyro.sample("sigma_beta", dist.HalfNormal(1.0))
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    mu_beta = numpyro.sample("mu_beta", dist.Normal(0.0, 10.0))
    with numpyro.plate("county", data["J"]):
        alpha_raw = numpyro.sample("alpha_raw", dist.Normal(0.0, 1.0))
        beta_raw = numpyro.sample("beta_raw", dist.Normal(0.0, 1.0))
    county = data["county_idx"] - 1
    alpha, beta = mu_alpha + sigma_alpha * alpha_raw, mu_beta + sigma_beta * beta_raw
    mean = alpha[county] + data["floor_measure"] * beta[county]
    numpyro.sample("y", dist.Normal(mean, sigma_y), obs=data["log_radon"])


def poisson_years(data: Data) -> None:
    """Counts of 40 years with a cubic trend and one effect per year."""
    alpha = numpyro.sample("alpha", dist.Uniform(-20.0, 20.0))
    beta1, beta2, beta3 = (numpyro.sample(f"beta{i}", dist.Uniform(-10.0, 10.0)) for i in (1, 2, 3))
    sigma = numpyro.sample("sigma", dist.Uniform(0.0, 5.0))
    with numpyro.plate("year", data["n"]):
        eps = numpyro.sample("eps", dist.Normal(0.0, sigma))
    year = data["year"]
    log_mean = alpha + beta1 * year + beta2 * year**2 + beta3 * year**3 + eps
    numpyro.sample("C", dist.Poisson(jnp.exp(log_mean)), obs=data["C"])


def rats(data: Data) -> None:
    """Growth of 30 rats: intercepts and slopes, flat priors on the scales."""
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 100.0))
    mu_beta = numpyro.sample("mu_beta", dist.Normal(0.0, 100.0))
    sigma_y, sigma_alpha, sigma_beta = (
        numpyro.sample(name, dist.ImproperUniform(constraints.positive, (), ()))
        for name in ("sigma_y", "sigma_alpha", "sigma_beta")
    )
    with numpyro.plate("rats", data["N"]):
        alpha = numpyro.sample("alpha", dist.Normal(mu_alpha, sigma_alpha))
        beta = numpyro.sample("beta", dist.Normal(mu_beta, sigma_beta))
    rat = data["rat"] - 1
    mean = alpha[rat] + beta[rat] * (data["x"] - data["xbar"])
    numpyro.sample("y", dist.Normal(mean, sigma_y), obs=data["y"])


def irt_2pl(data: Data) -> None:
    """Two-parameter item response model: 20 items, 100 persons."""
    sigma_theta = numpyro.sample("sigma_theta", dist.HalfCauchy(2.0))
    sigma_a = numpyro.sample("sigma_a", dist.HalfCauchy(2.0))
    sigma_b = numpyro.sample("sigma_b", dist.HalfCauchy(2.0))
    mu_b = numpyro.sample("mu_b", dist.Normal(0.0, 5.0))
    with numpyro.plate("persons", data["J"]):
        theta = numpyro.sample("theta", dist.Normal(0.0, sigma_theta))
    with numpyro.plate("items", data["I"]):
        a = numpyro.sample("a", dist.LogNormal(0.0, sigma_a))
        b = numpyro.sample("b", dist.Normal(mu_b, sigma_b))
    numpyro.sample("y", dist.Bernoulli(logits=a[:, None] * (theta - b[:, None])), obs=data["y"])


def seeds_centered(data: Data) -> None:
    """Germination of seeds on 21 plates: a 2 x 2 design with centered plate effects."""
    alpha0, alpha1, alpha2, alpha12 = (
        numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("alpha0", "alpha1", "alpha2", "alpha12")
    )
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    with numpyro.plate("plates", data["I"]):
        c = numpyro.sample("c", dist.Normal(0.0, sigma))
    x1, x2 = data["x1"], data["x2"]
    logits = alpha0 + alpha1 * x1 + alpha2 * x2 + alpha12 * x1 * x2 + c - jnp.mean(c)
    numpyro.sample("n", dist.Binomial(data["N"], logits=logits), obs=data["n"])


def uk_drivers(data: Data) -> None:
    """Monthly drivers killed or injured: a stochastic level and season, two regressors, flat priors.

    `data` has the limits of the level as `lower` and `upper`: see `uk_drivers_data`.
    """
    num = data["n"]
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive_ordered_vector, (), (3,)))
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), ()))
    lambda_ = numpyro.sample("lambda", dist.ImproperUniform(constraints.real, (), ()))
    mu = numpyro.sample("mu", dist.Uniform(data["lower"], data["upper"]).expand([num]).to_event(1))
    seasonal = numpyro.sample("seasonal", dist.ImproperUniform(constraints.real_vector, (), (num,)))
    numpyro.factor("sigma_prior", jnp.sum(dist.StudentT(4.0, 0.0, 1.0).log_prob(sigma)))
    numpyro.factor("level", jnp.sum(dist.Normal(mu[:-1], sigma[1]).log_prob(mu[1:])))
    numpyro.factor("season", jnp.sum(dist.Normal(0.0, sigma[0]).log_prob(_sum_of_year(seasonal))))
    mean = mu + beta * data["x"] + lambda_ * data["w"] + seasonal
    numpyro.sample("y", dist.Normal(mean, sigma[2]), obs=data["y"])


def uk_drivers_data(data: Data) -> dict[str, Any]:
    """Add the limits of the level: three standard deviations of y around its mean."""
    mean, sd = float(np.mean(data["y"])), float(np.std(data["y"], ddof=1))
    return {**data, "lower": mean - 3.0 * sd, "upper": mean + 3.0 * sd}


def _sum_of_year(seasonal: Float[Array, " n"]) -> Float[Array, " n-11"]:
    """Sum every twelve consecutive values."""
    num = len(seasonal) - NUM_MONTHS + 1
    return sum((seasonal[i : i + num] for i in range(NUM_MONTHS)), start=jnp.zeros(num, seasonal.dtype))


def election_88(data: Data) -> None:
    """Votes in the election of 1988: five crossed factors, logistic."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 100.0).expand([5]).to_event(1))
    effects = 0.0
    for name, index, size in (
        ("a", "age", "n_age"),
        ("b", "edu", "n_edu"),
        ("c", "age_edu", "n_age_edu"),
        ("d", "state", "n_state"),
        ("e", "region_full", "n_region_full"),
    ):
        sigma = numpyro.sample(f"sigma_{name}", dist.Uniform(0.0, 100.0))
        with numpyro.plate(index, data[size]):
            effect = numpyro.sample(name, dist.Normal(0.0, sigma))
        effects += effect[data[index] - 1]
    black, female = data["black"], data["female"]
    fixed = beta[0] + beta[1] * black + beta[2] * female + beta[3] * data["v_prev_full"] + beta[4] * female * black
    numpyro.sample("y", dist.Bernoulli(logits=fixed + effects), obs=data["y"])


def mcycle_splines(data: Data) -> None:
    """Head acceleration over time: penalized splines for the mean and for the log standard deviation."""
    mean = smooth_term(data, "", dist.StudentT(3.0, -13.0, 36.0))
    log_sd = smooth_term(data, "_sigma", dist.StudentT(3.0, 0.0, 10.0))
    numpyro.sample("Y", dist.Normal(mean, jnp.exp(log_sd)), obs=data["Y"])


def smooth_term(data: Data, suffix: str, intercept: dist.Distribution) -> Float[Array, " n"]:
    """Sample the parameters of one of the two splines of `mcycle_splines`, and return its values."""
    level = numpyro.sample(f"Intercept{suffix}", intercept)
    slope = numpyro.sample(f"bs{suffix}", dist.ImproperUniform(constraints.real_vector, (), (data[f"Ks{suffix}"],)))
    basis = data[f"Zs{suffix}_1_1"]
    raw = numpyro.sample(f"zs{suffix}_1_1", dist.Normal(0.0, 1.0).expand([basis.shape[1]]).to_event(1))
    scale = numpyro.sample(f"sds{suffix}_1_1", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 36.0)))
    return level + data[f"Xs{suffix}"] @ slope + basis @ (scale * raw)


def prophet(data: Data) -> None:
    """Downloads over time: a piecewise linear trend with 25 change points, seasonal terms and holidays."""
    k = numpyro.sample("k", dist.Normal(0.0, 5.0))
    m = numpyro.sample("m", dist.Normal(0.0, 5.0))
    delta = numpyro.sample("delta", dist.Laplace(0.0, data["tau"]).expand([data["S"]]).to_event(1))
    sigma_obs = numpyro.sample("sigma_obs", dist.HalfNormal(0.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, data["sigmas"]).to_event(1))
    t, change = data["t"], data["t_change"]
    after = (t[:, None] >= change).astype(delta.dtype)
    trend = (k + after @ delta) * t + m - after @ (change * delta)
    mean = trend * (1.0 + data["X"] @ (beta * data["s_m"])) + data["X"] @ (beta * data["s_a"])
    numpyro.sample("y", dist.Normal(mean, sigma_obs), obs=data["y"])
