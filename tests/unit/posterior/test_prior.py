"""Draws of the prior and of its predictions, by name, in ArviZ, and where there is no prior to draw from."""

import jax
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

from bernflow.errors import ModelError
from bernflow.models.numpyro import NumPyroModel
from bernflow.posterior import Posterior
from bernflow.target import Target

X = np.linspace(-1, 1, 5)
NUM = 2000
ERRORS = 5 / np.sqrt(NUM)  # five Monte Carlo errors of a mean in units of the sd


def regression(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(1.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    mean = numpyro.deterministic("mean", slope * x)
    numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


@pytest.fixture
def post(gaussian, make):
    with jax.enable_x64(True):
        model = NumPyroModel(regression, (X,), {"y": X})
        q = gaussian(np.zeros(2), np.full(2, 0.5))
        return Posterior(q, Target(model).layout, model, make().diagnostics)


def test_the_prior_is_drawn_with_what_is_derived(post):
    prior = post.prior(num=NUM)
    assert set(prior) == {"slope", "sigma", "mean"}
    assert abs(prior["slope"].mean() - 1.0) < 2.0 * ERRORS
    assert prior["slope"].std() == pytest.approx(2.0, rel=ERRORS)
    assert prior["sigma"].min() > 0
    np.testing.assert_allclose(prior["mean"], prior["slope"][:, None] * X)
    assert set(post.prior(num=5, deterministic=False)) == {"slope", "sigma"}
    np.testing.assert_array_equal(post.prior(num=5)["slope"], prior["slope"][:5])
    assert not np.any(post.prior(num=5, key=3)["slope"] == prior["slope"][:5])


def test_prior_predictions_are_those_of_the_draws_of_the_prior(post):
    prior, y = post.prior(num=NUM), post.prior_predictive(num=NUM)["y"]
    assert y.shape == (NUM, 5)
    noise = (y - prior["mean"]) / prior["sigma"][:, None]
    assert abs(noise.mean()) < ERRORS
    assert noise.std() == pytest.approx(1.0, rel=ERRORS)
    assert post.prior_predictive(X[:2], num=7)["y"].shape == (7, 2)


def test_arviz_has_prior_and_predictions(post):
    tree = post.to_arviz(50, prior=True, predictive=True, kind="datatree")
    assert {"prior", "prior_predictive", "posterior_predictive", "log_prior", "log_likelihood"} <= set(tree.children)
    assert set(tree.prior.data_vars) == {"slope", "sigma", "mean"}
    np.testing.assert_array_equal(tree.prior["slope"].values[0], post.prior(50, key=1)["slope"])
    assert tree.prior_predictive["y"].shape == (1, 50, 5)
    expected = np.asarray(dist.Normal(1.0, 2.0).log_prob(tree.posterior["slope"].values))
    np.testing.assert_allclose(tree.log_prior["slope"].values, expected, rtol=1e-5)


def test_what_has_no_prior_says_so(make):
    for call in (make().prior, make().prior_predictive):
        with pytest.raises(ModelError, match=r"cannot be sampled.*Give every parameter a proper prior"):
            call(num=5)
