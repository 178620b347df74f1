import jax
import numpy as np
import pytest
from numpyro.distributions import constraints

from bernflow.diagnostics import judge
from bernflow.flows.base import AbstractDistribution
from bernflow.models.base import Site
from bernflow.posterior import Posterior
from bernflow.target import Layout


class Gaussian(AbstractDistribution):
    loc: jax.Array
    dim: int

    def sample_and_log_prob(self, key, num):
        x = self.loc + jax.random.normal(key, (num, self.dim))
        return x, self.log_prob(x)

    def log_prob(self, x):
        return jax.scipy.stats.norm.logpdf(x - self.loc).sum(axis=-1)

    def recipe(self):
        return {}


@pytest.fixture
def make():
    def posterior(log_weights=None, history=None, size=3):
        layout = Layout((Site("tau", (), constraints.positive), Site("b", (size,), constraints.real)))
        q = Gaussian(jax.numpy.zeros(layout.dim), layout.dim)
        diagnostics = judge(np.zeros(2000) if log_weights is None else log_weights)
        return Posterior(q, layout, None, diagnostics, history, {"precision": "float32"})

    return posterior
