"""A conjugate model whose posterior on R^p is Gaussian, and the Gaussian that is its exact posterior."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import distributions as dist
from numpyro.distributions import constraints

from bernflow.diagnostics import judge
from bernflow.flows.base import AbstractDistribution
from bernflow.models.base import AbstractModel, Site
from bernflow.posterior import Posterior, archive
from bernflow.target import Target

Y = np.array([0.3, 1.2, -0.4, 0.9])


class Gaussian(AbstractDistribution):
    loc: jax.Array
    scale: jax.Array
    dim: int = eqx.field(static=True)

    def __init__(self, loc, scale):
        self.loc, self.scale = jnp.asarray(loc), jnp.asarray(scale)
        self.dim = self.loc.shape[0]

    def sample_and_log_prob(self, key, num):
        x = self.loc + self.scale * jax.random.normal(key, (num, self.dim), self.loc.dtype)
        return x, self.log_prob(x)

    def log_prob(self, x):
        return jnp.sum(jax.scipy.stats.norm.logpdf(x, self.loc, self.scale), axis=-1)

    def recipe(self):
        return {"family": "test-gaussian", "dim": self.dim}


class Conjugate(AbstractModel):
    """mu ~ N(0, 1), s ~ LogNormal(0, 0.5) twice, y ~ N(mu, 1): the log of s keeps its prior."""

    sites: tuple
    y: jax.Array

    def __init__(self, y=Y, sites=None):
        self.sites = sites or (Site("mu", (), constraints.real), Site("s", (2,), constraints.positive))
        self.y = y

    def log_density(self, theta):
        return sum(self.log_terms(theta).values())

    def log_terms(self, theta):
        return {
            "mu": dist.Normal(0.0, 1.0).log_prob(theta["mu"]),
            "s": dist.LogNormal(0.0, 0.5).log_prob(theta["s"]).sum(),
            "y": sum(values.sum() for values in self.log_likelihood(theta).values()),
        }

    def support_of(self, name, theta):
        # Only asked where a test takes the support of s away: its bound is then exp(mu) - exp(mu) = 0.
        return constraints.greater_than(jnp.zeros(()) * jnp.exp(theta["mu"]))

    def sample_prior(self, key):
        return None

    def initial(self):
        return None

    def observed(self):
        return {"y": self.y}

    def log_likelihood(self, theta):
        return {"y": dist.Normal(theta["mu"], 1.0).log_prob(self.y)}

    def deterministic(self, theta):
        return {"twice": 2 * theta["mu"]}

    def predict(self, key, theta, shift=0.0):
        return {"y": theta["mu"] + shift + jax.random.normal(key, self.y.shape)}


def exact_parameters():
    """Location and scale of the posterior on R^3; the layout puts log s first."""
    n = len(Y)
    return np.array([0.0, 0.0, Y.sum() / (n + 1)]), np.array([0.5, 0.5, 1 / np.sqrt(n + 1)])


def make_posterior(shift=0.0, widen=1.0, model=None, precision="float64", **kwargs):
    """Make a posterior that is exact for `shift=0, widen=1`; shifts are in posterior sds."""
    with jax.enable_x64(precision == "float64"):
        model = model or Conjugate()
        loc, scale = exact_parameters()
        q = Gaussian((loc + shift * scale).astype(precision), (scale * widen).astype(precision))
        target = Target(model)
        x, log_q = q.sample_and_log_prob(jax.random.key(3), 4000)
        log_weights = np.asarray(jax.vmap(target.log_density)(x) - log_q)
    options = {
        "history": {"step": np.arange(5), "elbo": np.linspace(-9, -7, 5), "elbo_se": np.full(5, 0.1)},
        "settings": {"family": "gaussian", "order": None, "precision": precision, "seed": 0},
    }
    return Posterior(q, target.layout, model, judge(log_weights), **{**options, **kwargs})


@pytest.fixture
def make():
    return make_posterior


@pytest.fixture
def conjugate():
    return Conjugate


@pytest.fixture
def gaussian():
    return Gaussian


@pytest.fixture
def build(monkeypatch):
    """Let files of the test's Gaussian be loaded."""

    def skeleton(recipe):
        assert recipe["family"] == "test-gaussian"
        return Gaussian(jnp.zeros(recipe["dim"]), jnp.ones(recipe["dim"]))

    monkeypatch.setattr(archive, "_build", skeleton)
