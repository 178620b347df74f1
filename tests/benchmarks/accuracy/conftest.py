import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from benchmarks.accuracy.cases import STRESS, Case
from benchmarks.targets import Benchmark

MEAN, SD = np.array([1.0, -0.5]), np.array([0.5, 1.5])


def gaussian_model():
    # b comes first, unlike in a sorted dictionary.
    b = numpyro.sample("b", dist.Normal(MEAN[0], SD[0]))
    numpyro.sample("a", dist.LogNormal(MEAN[1], SD[1]))
    numpyro.deterministic("twice", 2 * b)


def gaussian_draws(seed, num):
    x = np.random.default_rng(seed).normal(MEAN, SD, (num, 2))
    return {"b": x[:, 0], "a": np.exp(x[:, 1])}


@pytest.fixture(scope="session")
def gaussian():
    """Two independent normals, one of them the logarithm of its parameter; normalized."""
    return Benchmark(
        "gaussian", "Gaussian", gaussian_model, tuple, log_evidence=0.0, exact_draws=gaussian_draws, order=5
    )


@pytest.fixture
def case(gaussian):
    return Case(gaussian, STRESS)
