"""One small fit, shared by the tests."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.handlers.scope(prefix="part"):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    numpyro.deterministic("twice", 2.0 * w)
    numpyro.sample("y", dist.Normal(mu + w.sum(), 1.0), obs=y)


@pytest.fixture(scope="session")
def posterior():
    return bf.fit(model, np.array([3.0, 4.0]), family="gaussian-fullrank", steps=250, progress=False)
