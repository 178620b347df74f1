"""Models of the same data beside each other: cross-validation and evidence, both known in closed form here."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import bernflow as bf
from bernflow.diagnostics import judge
from bernflow.errors import ArgumentError
from bernflow.flows.affine import DiagonalAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.posterior import Posterior
from bernflow.precision import use_precision
from bernflow.target import layout_of

Y = np.array([0.3, 1.2, -0.4, 0.9, 1.7, 0.2, 1.1, 0.6])
PRIORS = {"near": (0.5, 1.0), "far": (-3.0, 0.5)}


def exact(y, mean, sd):
    """mu ~ N(mean, sd), y ~ N(mu, 1): the posterior, which needs no fit."""
    with use_precision("float64"):
        model = bf.Model(
            prior={"mu": dist.Normal(mean, sd)}, likelihood=lambda theta: dist.Normal(theta["mu"], 1.0), y=y
        )
        precision = len(y) + sd**-2
        loc, scale = (y.sum() + mean * sd**-2) / precision, precision**-0.5
        q = LocationScale(DiagonalAffine(jnp.array([loc]), jnp.array([scale])))
        post = Posterior(q, layout_of(model), model, judge(np.zeros(2000), num_resamples=2))
        post.diagnostics = judge(post.log_weights(2000), num_resamples=2)
    return post


def log_evidence(mean, sd):
    return stats.multivariate_normal(np.full(len(Y), mean), np.eye(len(Y)) + sd**2).logpdf(Y)


def elpd(mean, sd):
    """Leave-one-out in closed form."""
    total = 0.0
    for i in range(len(Y)):
        rest = np.delete(Y, i)
        precision = len(rest) + sd**-2
        total += stats.norm((rest.sum() + mean * sd**-2) / precision, np.sqrt(1 + 1 / precision)).logpdf(Y[i])
    return total


@pytest.fixture(scope="module")
def posteriors():
    return {name: exact(Y, *prior) for name, prior in PRIORS.items()}


def test_cross_validation_and_evidence_stand_side_by_side(posteriors):
    found = bf.compare_models(dict(reversed(posteriors.items())))
    assert list(found.index) == ["near", "far"], "the best first"
    for name, prior in PRIORS.items():
        assert found.loc[name, "elpd_loo"] == pytest.approx(elpd(*prior), abs=0.1)
        assert found.loc[name, "log_evidence"] == pytest.approx(log_evidence(*prior), abs=1e-4)
    assert found.loc["far", "log_bf"] == pytest.approx(log_evidence(*PRIORS["far"]) - log_evidence(*PRIORS["near"]))
    assert found.loc["near", "log_bf"] == 0.0
    assert found.loc["near", "elpd_diff"] == 0.0
    assert list(found["verdict"]) == ["good", "good"]
    assert found["num_bad_k"].sum() == 0
    assert posteriors["near"].loo().elpd == found.loc["near", "elpd_loo"], "of the same draws"


def test_models_without_a_likelihood_are_compared_by_evidence(posteriors, tmp_path):
    loaded = {name: bf.load(post.save(tmp_path / f"{name}.bernflow")) for name, post in posteriors.items()}
    found = bf.compare_models(loaded)
    assert list(found.index) == ["near", "far"]
    assert found["elpd_loo"].isna().all()
    with pytest.raises(ArgumentError, match="needs the pointwise log likelihood"):
        loaded["near"].loo()


def test_what_cannot_be_compared_is_refused(posteriors):
    with pytest.raises(ArgumentError, match=r"at least two models by name.*got 1 of them"):
        bf.compare_models({"one": posteriors["near"]})
    with pytest.raises(ArgumentError, match="got a list"):
        bf.compare_models(list(posteriors.values()))
    with pytest.raises(ArgumentError, match=r"different numbers of data points .near: 8, other: 7."):
        bf.compare_models({"near": posteriors["near"], "other": exact(Y[:7], 0.5, 1.0)})
