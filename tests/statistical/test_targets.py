"""The evidence of every benchmark, found again without any variational method.

Where part of the parameters is Gaussian given the rest, it is integrated by the identity
log p(rest, data) = log p(gauss, rest, data) - log p(gauss | rest, data), which holds at any value of `gauss`.
The left side must not depend on that value, so that each test also checks the model's density away from one
point. What remains has one dimension (two for the diamonds) and is integrated on a grid.
"""

import json
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density
from scipy import integrate, stats
from scipy.special import logsumexp

from benchmarks.targets import BENCHMARKS, FUNNEL_DIM, FUNNEL_SD

DRAWS = Path(__file__).parents[3] / "shared" / "data" / "posteriordb" / "draws"


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def log_joint(name, theta):
    """Log prior + log likelihood on the constrained scale; theta carries a leading batch dimension."""
    benchmark = BENCHMARKS[name]
    args = benchmark.args

    def one(values):
        return log_density(benchmark.model, args, {}, values)[0]

    return np.asarray(jax.vmap(one)({k: jnp.asarray(v) for k, v in theta.items()}))


def gaussian_conditional(design, noise, y, prior_mean, prior_precision):
    """Mean and covariance of beta in y = design @ beta + noise, given a Gaussian prior."""
    precision = prior_precision + design.T @ (design / noise[:, None] ** 2)
    covariance = np.linalg.inv(precision)
    return covariance @ (prior_precision @ prior_mean + design.T @ (y / noise**2)), covariance


def log_trapezoid(log_values, grid):
    """Log of the integral of exp(log_values); spectrally accurate where smooth values vanish at both ends."""
    top = log_values.max()
    assert log_values[0] < top - 18
    assert log_values[-1] < top - 18
    return top + np.log(integrate.trapezoid(np.exp(log_values - top), grid))


def toy_regression_marginal(sigma, beta_shift):
    x, y = BENCHMARKS["toy-regression"].args
    design = np.column_stack([np.ones(6), x])
    betas, log_conditional = [], []
    for s in sigma:
        mean, cov = gaussian_conditional(design, np.full(6, s), y, np.zeros(3), np.eye(3) / 100)
        beta = mean + beta_shift * np.sqrt(np.diag(cov))
        betas.append(beta)
        log_conditional.append(stats.multivariate_normal.logpdf(beta, mean, cov))
    betas = np.array(betas)
    joint = log_joint("toy-regression", {"b": betas[:, 0], "w": betas[:, 1:], "sigma": sigma})
    return joint - np.array(log_conditional)


def schools_marginal(name, tau, shift):
    """Log p(tau, y): mu and the eight effects (either parameterization) are Gaussian given tau."""
    y, sigma = BENCHMARKS[name].args
    points, log_conditional = [], []
    for t in tau:
        # Parameters (mu, standardized effects): the Gaussian part of the non-centered model.
        design = np.column_stack([np.ones(8), t * np.eye(8)])
        prior_precision = np.diag([1 / 25] + [1.0] * 8)
        mean, cov = gaussian_conditional(design, sigma, y, np.zeros(9), prior_precision)
        point = mean + shift * np.sqrt(np.diag(cov))
        value = stats.multivariate_normal.logpdf(point, mean, cov)
        if name.endswith("-centered"):
            point = np.concatenate([point[:1], point[0] + t * point[1:]])
            value -= 8 * np.log(t)
        points.append(point)
        log_conditional.append(value)
    points = np.array(points)
    site = "theta" if name.endswith("-centered") else "theta_trans"
    return log_joint(name, {"mu": points[:, 0], "tau": tau, site: points[:, 1:]}) - np.array(log_conditional)


def diamonds_marginal(sigma, shift, num_nodes=12):
    """Log p(sigma, y): b is Gaussian given sigma, the intercept is integrated by Gauss-Hermite quadrature.

    Centered predictors make the likelihood a product of a factor in b and one in the intercept, so that the
    conditional of b does not depend on the intercept.
    """
    x, y = BENCHMARKS["diamonds"].args
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    gram, moment = x.T @ x, x.T @ y
    result = []
    for s in sigma:
        precision = np.eye(24) + gram / s**2
        cov = np.linalg.inv(precision)
        mean = cov @ moment / s**2
        b = mean + shift * np.sqrt(np.diag(cov)) * np.where(np.arange(24) % 2, 1, -1)
        residual = b - mean
        log_conditional = 0.5 * (
            np.linalg.slogdet(precision)[1] - 24 * np.log(2 * np.pi) - residual @ precision @ residual
        )
        se = s / np.sqrt(len(y))
        batch = {
            "b": np.tile(b, (num_nodes, 1)),
            "Intercept": y.mean() + se * nodes,
            "sigma": np.full(num_nodes, s),
        }
        log_values = log_joint_diamonds(batch) + 0.5 * nodes**2
        result.append(logsumexp(log_values, b=weights) + np.log(se) - log_conditional)
    return np.array(result)


_compiled = {}


def log_joint_diamonds(theta):
    # One compilation serves all values of sigma.
    if not _compiled:
        benchmark = BENCHMARKS["diamonds"]
        args = tuple(jnp.asarray(a) for a in benchmark.args)
        _compiled["f"] = jax.jit(jax.vmap(lambda t: log_density(benchmark.model, args, {}, t)[0]))
    return np.asarray(_compiled["f"]({k: jnp.asarray(v) for k, v in theta.items()}))


def test_bernoulli_evidence():
    u = np.linspace(-60, 60, 6001)
    # Logit scale: the density vanishes at both ends, where on [0, 1] its derivative is infinite.
    p = stats.logistic.cdf(u)
    inside = (p > 0) & (p < 1)
    log_values = log_joint("bernoulli", {"p": p[inside]}) + stats.logistic.logpdf(u[inside])
    found = log_trapezoid(log_values, u[inside])
    exact = stats.betabinom.logpmf(2, 2, 1.1, 1.1)
    assert found == pytest.approx(exact, abs=1e-7)
    assert BENCHMARKS["bernoulli"].log_evidence == pytest.approx(exact, abs=1e-6)


def test_cauchy_evidence():
    grid = np.linspace(-8, 8, 4001)
    found = log_trapezoid(log_joint("cauchy", {"xi": grid}), grid)
    assert BENCHMARKS["cauchy"].log_evidence == pytest.approx(found, abs=1e-6)
    assert BENCHMARKS["cauchy"].paper["log_evidence"] == pytest.approx(found, abs=1e-5)


def test_toy_regression_evidence():
    u = np.linspace(-6, 8, 1201)
    log_values = toy_regression_marginal(np.exp(u), 0.0)
    assert toy_regression_marginal(np.exp(u[::60]), 1.3) == pytest.approx(log_values[::60], abs=1e-6)
    assert BENCHMARKS["toy-regression"].log_evidence == pytest.approx(log_trapezoid(log_values + u, u), abs=2e-6)


@pytest.mark.parametrize("name", ["eight-schools-noncentered", "eight-schools-centered"])
def test_eight_schools_evidence(name):
    u = np.linspace(-20, 8, 561)
    log_values = schools_marginal(name, np.exp(u), 0.0)
    assert schools_marginal(name, np.exp(u[200::60]), 0.7) == pytest.approx(log_values[200::60], abs=1e-6)
    assert BENCHMARKS[name].log_evidence == pytest.approx(log_trapezoid(log_values + u, u), abs=2e-6)


def test_diamonds_evidence():
    # log sigma is normal to high accuracy around the residual scale, with sd 1 / sqrt(2 * 5000) = 0.01.
    center = np.log(sigma_hat())
    u = np.linspace(center - 0.08, center + 0.08, 121)
    log_values = diamonds_marginal(np.exp(u), 0.0)
    assert diamonds_marginal(np.exp(u[::30]), 0.5) == pytest.approx(log_values[::30], abs=1e-6)
    assert BENCHMARKS["diamonds"].log_evidence == pytest.approx(log_trapezoid(log_values + u, u), abs=1e-4)


def sigma_hat():
    x, y = BENCHMARKS["diamonds"].args
    b = np.linalg.solve(x.T @ x + 0.01 * np.eye(24), x.T @ y)
    return np.std(y - x @ b)


def test_funnel_evidence():
    v = np.linspace(-30, 30, 1201)
    scale = np.exp(v / 2)
    for shift in (0.0, 1.1):
        x = shift * scale[:, None] * np.ones(FUNNEL_DIM - 1)
        log_values = log_joint("funnel", {"v": v, "x": x}) - stats.norm.logpdf(x, 0, scale[:, None]).sum(axis=1)
        assert log_trapezoid(log_values, v) == pytest.approx(0.0, abs=1e-9)
        mass = np.exp(log_values)
        assert np.sqrt(integrate.trapezoid(mass * v**2, v)) == pytest.approx(FUNNEL_SD, rel=1e-9)


def test_nn_regression_density_matches_its_formula():
    x, y, sigma = BENCHMARKS["nn-regression"].args
    rng = np.random.default_rng(3)
    theta = {k: rng.normal(size=(4, 3)) for k in ("bias_first", "w_first", "w_output")}
    theta["bias_output"] = rng.normal(size=4)
    expected = []
    for i in range(4):
        hidden = 1 / (1 + np.exp(-(np.outer(x, theta["w_first"][i]) + theta["bias_first"][i])))
        mean = hidden @ theta["w_output"][i] + theta["bias_output"][i]
        prior = sum(stats.norm.logpdf(value[i]).sum() for value in theta.values())
        expected.append(prior + stats.norm.logpdf(y, mean, sigma).sum())
    assert log_joint("nn-regression", theta) == pytest.approx(np.array(expected), rel=1e-10)


def reference_draws(name):
    path = DRAWS / f"{name}.json.zip"
    if not path.exists():
        pytest.skip(f"no reference draws at {path}")
    with zipfile.ZipFile(path) as archive:
        chains = json.loads(archive.read(archive.namelist()[0]))
    return {k: np.concatenate([chain[k] for chain in chains]) for k in chains[0]}


def test_eight_schools_agrees_with_reference_draws():
    draws = reference_draws("eight_schools-eight_schools_noncentered")
    u = np.linspace(-20, 8, 561)
    mass = np.exp(schools_marginal("eight-schools-noncentered", np.exp(u), 0.0) + u)
    mass /= mass.sum()
    # 10,000 thinned draws, 4 standard errors: one false alarm in 16,000, were the draws independent.
    assert_mean(draws["tau"], np.sum(mass * np.exp(u)))


def test_diamonds_agree_with_reference_draws():
    draws = reference_draws("diamonds-diamonds")
    x, y = BENCHMARKS["diamonds"].args
    u = np.log(sigma_hat()) + np.linspace(-0.06, 0.06, 25)
    log_values = diamonds_marginal(np.exp(u), 0.0) + u
    mass = np.exp(log_values - logsumexp(log_values))
    gram, moment = x.T @ x, x.T @ y
    b = sum(m * np.linalg.solve(np.eye(24) * s**2 + gram, moment) for m, s in zip(mass, np.exp(u), strict=True))
    # 25 quantities at 4 standard errors: a false alarm in 600 sets of independent draws.
    assert_mean(draws["sigma"], np.sum(mass * np.exp(u)))
    for j in range(24):
        assert_mean(draws[f"b[{j + 1}]"], b[j])


def assert_mean(draws, expected):
    assert abs(draws.mean() - expected) < 4 * draws.std() / np.sqrt(len(draws))
