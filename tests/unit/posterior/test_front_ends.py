"""A posterior works with the models that users write, not only with the conjugate one of these tests."""

import jax
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

from bernflow.models.declarative import Model
from bernflow.models.numpyro import NumPyroModel
from bernflow.posterior import Posterior
from bernflow.target import Target

X = np.linspace(-1, 1, 6)
Y = 0.5 * X + 0.1


def regression(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    mean = numpyro.deterministic("mean", slope * x)
    with numpyro.plate("n", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def declared():
    prior = {"slope": dist.Normal(0.0, 1.0), "sigma": dist.HalfNormal(1.0)}
    return Model(prior=prior, likelihood=lambda th, x: dist.Normal(th["slope"] * x, th["sigma"]), y=Y, x=X)


@pytest.mark.parametrize("front_end", ["numpyro", "model"])
def test_front_ends(front_end, make, gaussian):
    with jax.enable_x64(True):
        model = NumPyroModel(regression, (X,), {"y": Y}) if front_end == "numpyro" else declared()
        layout = Target(model).layout
        post = Posterior(gaussian(np.zeros(2), np.full(2, 0.5)), layout, model, make().diagnostics)
    draws = post.draws(50)
    average = post.predict(num=1200, key=1, average=True)["y"]
    np.testing.assert_allclose(average, post.draws(1200, key=1)["slope"].mean() * X, rtol=1e-9)
    if front_end == "numpyro":
        np.testing.assert_allclose(draws["mean"], draws["slope"][:, None] * X)
    log_p = dist.Normal(draws["slope"][:, None] * X, draws["sigma"][:, None]).log_prob(Y).sum(axis=1)
    log_p += dist.Normal().log_prob(draws["slope"]) + dist.HalfNormal().log_prob(draws["sigma"])
    # The Jacobians cancel: both densities are on the same scale. NumPyro evaluates the check in single
    # precision.
    np.testing.assert_allclose(post.log_weights(50), np.asarray(log_p) - post.log_prob(draws), rtol=1e-3, atol=1e-3)
    assert all(value.shape == (7, 6) for value in post.predict(num=7).values())
    assert all(value.shape == (7, 3) for value in post.predict(X[:3], num=7).values())
    tree = post.to_arviz(20, kind="datatree")
    assert {"posterior", "log_likelihood", "observed_data"} <= set(tree.children)
    assert np.all(post.draws(20, weighted=True)["sigma"] > 0)
