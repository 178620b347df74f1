"""The models, as NumPyro functions, and their data."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Float

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
