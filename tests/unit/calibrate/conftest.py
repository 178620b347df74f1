"""One calibration, shared by the tests: what costs time is compilation."""

import numpy as np
import numpyro.distributions as dist
import pytest

import bernflow as bf


@pytest.fixture(scope="session")
def model():
    return bf.Model(
        prior={"s": dist.HalfNormal(1.0), "b": dist.Normal(0.0, 1.0).expand([2]).to_event(1)},
        likelihood=lambda theta, x: dist.Normal(theta["b"][0] + theta["b"][1] * x, theta["s"]),
        y=np.zeros(6),
        x=np.linspace(-1, 1, 6),
    )


@pytest.fixture(scope="session")
def calibration(model):
    # As many steps as make the second stage of training, over two blocks of which the last is not full.
    return bf.calibrate(model, num_simulations=65, num_draws=200, steps=500, progress=False)
