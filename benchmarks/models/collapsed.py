"""Models that are Gaussian given some of their parameters, with the others integrated out.

NUTS explores `uk-drivers` and `mcycle-splines` too slowly, or with too many divergences, to serve as a reference. Here
it samples a few parameters from their marginal posterior; the others are drawn from their exact conditional
distribution.

The limits of the level of `uk-drivers` are not part of its marginal posterior: joint draws outside of them are dropped,
and what is left is the posterior.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float
from numpyro.distributions import constraints
from scipy.linalg import solve_triangular

from benchmarks.models.real import NUM_MONTHS, smooth_term

Data = Mapping[str, Any]


def uk_drivers_scales(data: Data) -> None:
    """Sample the scales of `uk_drivers` from their marginal posterior, without the limits of the level."""
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive_ordered_vector, (), (3,)))
    numpyro.factor("sigma_prior", jnp.sum(dist.StudentT(4.0, 0.0, 1.0).log_prob(sigma)))
    numpyro.factor("marginal", _log_marginal(sigma, *map(jnp.asarray, _quadratic_form(data))))


def uk_drivers_given_scales(
    rng: np.random.Generator, scales: Mapping[str, np.ndarray], data: Data
) -> tuple[dict[str, np.ndarray], Bool[np.ndarray, " num"]]:
    """Draw the other parameters given the scales, and say which of the joint draws lie within the limits."""
    grams, moment, _ = _quadratic_form(data)
    sigma = np.asarray(scales["sigma"])
    num = data["n"]
    draws = np.empty((len(sigma), grams.shape[-1]))
    for draw, one in zip(draws, sigma, strict=True):
        factor = np.linalg.cholesky(np.tensordot(one**-2.0, grams, 1))
        half = solve_triangular(factor, moment / one[2] ** 2, lower=True)
        draw[:] = solve_triangular(factor, half + rng.normal(size=len(half)), lower=True, trans="T")
    mu = draws[:, :num]
    sites = {"mu": mu, "seasonal": draws[:, num : 2 * num], "beta": draws[:, -2], "lambda": draws[:, -1]}
    return sites, np.all((mu > data["lower"]) & (mu < data["upper"]), axis=1)


def _quadratic_form(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the Gram matrices that 1 / sigma^2 multiplies in the precision, the moment of y, and its square."""
    num = data["n"]
    eye = np.eye(num)
    season = np.zeros((num - NUM_MONTHS + 1, 2 * num + 2))
    for i in range(len(season)):
        season[i, num + i : num + i + NUM_MONTHS] = 1.0
    level = np.zeros((num - 1, 2 * num + 2))
    level[:, :num] = eye[1:] - eye[:-1]
    observed = np.concatenate([eye, eye, np.stack([data["x"], data["w"]], -1)], axis=1)
    grams = np.stack([part.T @ part for part in (season, level, observed)])
    y = np.asarray(data["y"], np.float64)
    return grams, observed.T @ y, y @ y


def _log_marginal(
    sigma: Float[Array, " 3"], grams: Float[Array, "3 d d"], moment: Float[Array, " d"], square: Float[Array, ""]
) -> Float[Array, ""]:
    """Integrate the Gaussian parameters out."""
    num = (grams.shape[-1] - 2) // 2
    ranks = jnp.array([num - NUM_MONTHS + 1, num - 1, num])
    factor = jnp.linalg.cholesky(jnp.tensordot(sigma**-2.0, grams, 1))
    half = jax.scipy.linalg.solve_triangular(factor, moment / sigma[2] ** 2, lower=True)
    log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
    return -jnp.sum(ranks * jnp.log(sigma)) - log_det - 0.5 * (square / sigma[2] ** 2 - half @ half)


def mcycle_splines_marginal(data: Data) -> None:
    """Integrate the spline of the mean out of `mcycle_splines`."""
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, -13.0, 36.0))
    scale = numpyro.sample("sds_1_1", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 36.0)))
    log_sd = numpyro.deterministic("log_sd", smooth_term(data, "_sigma", dist.StudentT(3.0, 0.0, 10.0)))
    factor, half, square = _spline_given(jnp, data, intercept, scale, log_sd)
    log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
    numpyro.factor("marginal", -jnp.sum(log_sd) - log_det - 0.5 * (square - half @ half))


def mcycle_splines_given(
    rng: np.random.Generator, drawn: Mapping[str, np.ndarray], data: Data
) -> tuple[dict[str, np.ndarray], Bool[np.ndarray, " num"]]:
    """Draw the coefficients of the spline of the mean given the other parameters."""
    num = len(drawn["Intercept"])
    draws = np.empty((num, 1 + data["knots_1"]))
    for draw, intercept, scale, log_sd in zip(
        draws, drawn["Intercept"], drawn["sds_1_1"], drawn["log_sd"], strict=True
    ):
        factor, half, _ = _spline_given(np, data, intercept, scale, log_sd)
        draw[:] = solve_triangular(factor, half + rng.normal(size=len(half)), lower=True, trans="T")
    return {"bs": draws[:, :1], "zs_1_1": draws[:, 1:]}, np.ones(num, bool)


def _spline_given(numpy: Any, data: Data, intercept: Any, scale: Any, log_sd: Any) -> tuple[Any, Any, Any]:
    """Return the Cholesky factor of the precision of slope and coefficients, the solved moment, and the residual."""
    weight = numpy.exp(-log_sd)
    design = weight[:, None] * numpy.concatenate([data["Xs"], scale * data["Zs_1_1"]], axis=1)
    residual = weight * (data["Y"] - intercept)
    # The slope has a flat prior.
    prior = np.concatenate([np.zeros(1), np.ones(data["knots_1"])])
    factor = numpy.linalg.cholesky(design.T @ design + numpy.diag(prior))
    solve = jax.scipy.linalg.solve_triangular if numpy is jnp else solve_triangular
    return factor, solve(factor, design.T @ residual, lower=True), residual @ residual
