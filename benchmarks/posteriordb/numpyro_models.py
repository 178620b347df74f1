"""The thirteen posteriors as NumPyro models; each takes the data of posteriordb as one dictionary.

A prior of posteriordb on a half line or an ordered vector is unnormalized there. Here the half-normal and half-Cauchy
priors are normalized, which changes the evidence and not the posterior.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from benchmarks import targets
from bernflow.precision import float_dtype

Data = Mapping[str, Any]

# Steps of the Runge-Kutta method per observed interval: the log populations are then exact to 1e-5 and the log density
# to 2e-4 over all reference draws.
SUBSTEPS = 10


def eight_schools_noncentered(data: Data) -> None:
    """Model eight schools with standardized effects; theta = mu + tau * theta_trans is derived."""
    targets.eight_schools_noncentered(data["y"], data["sigma"])


def diamonds(data: Data) -> None:
    """Regress log prices of diamonds on 24 centered, nearly collinear predictors."""
    x = data["X"][:, 1:]
    targets.diamonds(x - jnp.mean(x, axis=0), data["Y"])


def ark(data: Data) -> None:
    """Regress a time series on its K values before, given the first K."""
    y, num_lags = data["y"], data["K"]
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([num_lags]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    lagged = jnp.stack([y[num_lags - k : len(y) - k] for k in range(1, num_lags + 1)], axis=1)
    numpyro.sample("y", dist.Normal(alpha + lagged @ beta, sigma), obs=y[num_lags:])


def arma11(data: Data) -> None:
    """Follow a time series by its last value and its last error."""
    y = data["y"]
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    phi = numpyro.sample("phi", dist.Normal(0.0, 2.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    # The value before the first is mu and the error before the first is 0.
    surprise = y - mu - phi * jnp.concatenate([mu[None], y[:-1]])

    def step(error: Array, surprise: Array) -> tuple[Array, Array]:
        error = surprise - theta * error
        return error, error

    _, errors = lax.scan(step, jnp.zeros_like(mu), surprise)
    numpyro.sample("y", dist.Normal(y - errors, sigma), obs=y)


def kidscore_interaction(data: Data) -> None:
    """Regress a test score of children on their mother's school, her score and the product of both."""
    school, score = data["mom_hs"], data["mom_iq"]
    beta = flat("beta", 4)
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    design = columns(jnp.ones_like(score), school, score, school * score)
    numpyro.sample("kid_score", dist.Normal(design @ beta, sigma), obs=data["kid_score"])


def logearn_interaction(data: Data) -> None:
    """Regress log earnings on height, sex and the product of both, with flat priors."""
    height, male = data["height"], data["male"]
    design = columns(jnp.ones_like(height), height, male, height * male)
    flat_regression("log_earn", design, jnp.log(data["earn"]))


def logmesquite(data: Data) -> None:
    """Regress the log weight of mesquite bushes on the logs of five measurements and their group, with flat priors."""
    measured = ("diam1", "diam2", "canopy_height", "total_height", "density")
    group = data["group"]
    design = columns(jnp.ones_like(group), *(jnp.log(data[name]) for name in measured), group)
    flat_regression("log_weight", design, jnp.log(data["weight"]))


def nes(data: Data) -> None:
    """Regress party identification on eight properties of a voter, with flat priors."""
    age = data["age_discrete"]
    before, after = ("real_ideo", "race_adj"), ("educ1", "gender", "income")
    design = columns(
        jnp.ones_like(age),
        *(data[name] for name in before),
        *(age == group for group in (2, 3, 4)),
        *(data[name] for name in after),
    )
    flat_regression("partyid7", design, data["partyid7"])


def blr(data: Data) -> None:
    """Regress an outcome on five strongly correlated predictors without an intercept."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([data["D"]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
    numpyro.sample("y", dist.Normal(data["X"] @ beta, sigma), obs=data["y"])


def low_dim_gauss_mix(data: Data) -> None:
    """Mix two normal distributions; their means are ordered, so that the two cannot be exchanged."""
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    numpyro.factor("mu_prior", jnp.sum(dist.Normal(0.0, 2.0).log_prob(mu)))
    parts = dist.Categorical(probs=jnp.stack([theta, 1.0 - theta]))
    numpyro.sample("y", dist.MixtureSameFamily(parts, dist.Normal(mu, sigma)), obs=data["y"])


def gp_regr(data: Data) -> None:
    """Regress by a Gaussian process with a squared exponential kernel; sigma is the variance of the noise."""
    x = data["x"]
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    distance = (x[:, None] - x[None, :]) / rho
    covariance = alpha**2 * jnp.exp(-0.5 * distance**2) + sigma * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(0.0, scale_tril=jnp.linalg.cholesky(covariance)), obs=data["y"])


def lotka_volterra(data: Data) -> None:
    """Follow hares and lynxes by the differential equations of prey and predator, with log-normal errors."""
    means, scales = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    theta = numpyro.sample("theta", dist.TruncatedNormal(means, scales, low=0.0).to_event(1))
    z_init = numpyro.sample("z_init", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    log_z = log_populations(theta, jnp.log(z_init), data["ts"])
    numpyro.sample("y_init", dist.LogNormal(jnp.log(z_init), sigma), obs=data["y_init"])
    numpyro.sample("y", dist.LogNormal(log_z, sigma), obs=data["y"])


def hmm_example(data: Data) -> None:
    """Switch between two hidden states with normal emissions of known scale; the states are summed out."""
    theta1 = numpyro.sample("theta1", dist.ImproperUniform(constraints.simplex, (), (2,)))
    theta2 = numpyro.sample("theta2", dist.ImproperUniform(constraints.simplex, (), (2,)))
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.positive_ordered_vector, (), (2,)))
    numpyro.factor("mu_prior", jnp.sum(dist.Normal(jnp.array([3.0, 10.0]), 1.0).log_prob(mu)))
    emission = dist.Normal(mu, 1.0).log_prob(data["y"][:, None])
    log_transition = jnp.log(jnp.stack([theta1, theta2]))

    def step(forward: Array, emission: Array) -> tuple[Array, None]:
        return jax.nn.logsumexp(forward[:, None] + log_transition, axis=0) + emission, None

    forward, _ = lax.scan(step, emission[0], emission[1:])
    numpyro.factor("y", jax.nn.logsumexp(forward))


def flat(name: str, size: int) -> Array:
    """Sample a vector of real parameters without a prior."""
    return numpyro.sample(name, dist.ImproperUniform(constraints.real_vector, (), (size,)))


def columns(*values: Array) -> Float[Array, "n k"]:
    """Put predictors side by side as floating-point numbers."""
    return jnp.stack([jnp.asarray(value, float_dtype()) for value in values], axis=1)


def flat_regression(name: str, design: Float[Array, "n k"], outcome: Array) -> None:
    """Regress with flat priors on the coefficients and on the scale."""
    beta = flat("beta", design.shape[1])
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.sample(name, dist.Normal(design @ beta, sigma), obs=outcome)


def log_populations(
    theta: Float[Array, "4"], log_start: Float[Array, "2"], times: Array, substeps: int = SUBSTEPS
) -> Float[Array, "n 2"]:
    """Solve the equations of prey and predator from time 0 by the classical Runge-Kutta method.

    On the log scale, (log u)' = theta1 - theta2 v and (log v)' = -theta3 + theta4 u: populations stay positive.

    Args:
        theta: growth of the prey, its loss, loss of the predator, its growth.
        log_start: log populations at time 0.
        times: increasing times at which to return the log populations, (n,).
        substeps: steps per interval between two times.
    """
    growth = jnp.stack([theta[0], -theta[2]])
    contact = jnp.stack([-theta[1], theta[3]])
    ends = jnp.asarray(times, log_start.dtype)
    lengths = jnp.repeat((ends - jnp.concatenate([jnp.zeros(1), ends[:-1]])) / substeps, substeps)

    def slope(log_z: Array) -> Array:
        return growth + contact * jnp.exp(log_z)[::-1]

    def step(log_z: Array, length: Array) -> tuple[Array, Array]:
        first = slope(log_z)
        second = slope(log_z + length / 2 * first)
        third = slope(log_z + length / 2 * second)
        fourth = slope(log_z + length * third)
        log_z = log_z + length / 6 * (first + 2 * second + 2 * third + fourth)
        return log_z, log_z

    _, path = lax.scan(step, log_start, lengths)
    return path[substeps - 1 :: substeps]
