"""One small model and one fit of it, shared by the tests: what costs time is compilation."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf

Y = np.array([0.3, 1.2, -0.4, 0.9, 0.1, 1.4])
STEPS = 600


class CountedModel:
    """A NumPyro model that counts how often Python runs it."""

    def __init__(self):
        self.num_traces = 0

    def __call__(self, y):
        self.num_traces += 1
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(mu, s), obs=y)


@pytest.fixture(scope="session")
def y():
    return Y


@pytest.fixture(scope="session")
def model():
    return CountedModel()


@pytest.fixture(scope="session")
def posterior(model):
    return bf.fit(model, Y, steps=STEPS, progress=False)


@pytest.fixture(scope="session")
def gaussian_model():
    """A correlated Gaussian: exact for full-rank families, poor for mean-field ones."""
    precision = np.linalg.inv(np.array([[1.0, 0.95], [0.95, 1.0]]))

    def logp(theta):
        return -0.5 * theta["x"] @ precision @ theta["x"]

    return bf.from_log_density(logp, init={"x": np.zeros(2)})


@pytest.fixture(scope="session")
def same_arrays():
    """Tell whether two distributions have bitwise the same arrays."""

    def compare(a, b):
        pairs = zip(jax.tree.leaves(a.distribution), jax.tree.leaves(b.distribution), strict=True)
        return all(np.array_equal(left, right) for left, right in pairs)

    return compare
