"""PyMC models from the model block to ArviZ."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
import scipy.stats
from arviz_stats import loo
from numpyro.infer.util import log_density

import bernflow as bf
from benchmarks.targets import BENCHMARKS
from bernflow.models.pymc.convert import MinibatchPyMCModel

BENCHMARK = BENCHMARKS["eight-schools-noncentered"]
SCHOOLS = [f"school {letter}" for letter in "ABCDEFGH"]


def eight_schools():
    y, sigma = map(np.asarray, BENCHMARK.args)
    with pm.Model(coords={"school": SCHOOLS}) as model:
        scale = pm.Data("sigma", sigma, dims="school")
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        theta_trans = pm.Normal("theta_trans", 0.0, 1.0, dims="school")
        theta = pm.Deterministic("theta", mu + tau * theta_trans, dims="school")
        pm.Normal("y", theta, scale, observed=y, dims="school")
    return model


@pytest.fixture(scope="module")
def schools():
    return eight_schools()


@pytest.fixture(scope="module")
def posterior(schools):
    return bf.fit(schools, progress=False)


def test_log_density_equals_that_of_the_numpyro_model(schools):
    model = bf.from_pymc(schools)
    rng = np.random.default_rng(1)
    theta = {"mu": rng.normal(size=20), "tau": rng.exponential(size=20), "theta_trans": rng.normal(size=(20, 8))}
    with jax.enable_x64(True):
        theta = jax.tree.map(jnp.asarray, theta)
        args = tuple(map(jnp.asarray, BENCHMARK.args))
        expected = jax.vmap(lambda t: log_density(BENCHMARK.model, args, {}, t)[0])(theta)
        # PyTensor takes the logarithms of constants like 5.0 in single precision.
        assert np.allclose(jax.vmap(model.log_density)(theta), expected, rtol=0, atol=1e-7)


def test_eight_schools(posterior):
    diagnostics = posterior.diagnostics
    # Rare draws with a k-hat above 0.7, as of one key in six, make it "usable" at a KL divergence of 0.0002.
    assert diagnostics.verdict != "poor"
    # Four standard errors: false alarm once in 16,000 fits.
    assert abs(diagnostics.log_evidence - BENCHMARK.log_evidence) < 4 * diagnostics.log_evidence_se
    assert BENCHMARK.log_evidence - diagnostics.elbo < 0.002 + 3 * diagnostics.elbo_se
    # E[tau] by quadrature; 3 % are 4.7 Monte Carlo standard errors of 20,000 draws (sd 3.22).
    assert posterior.draws(20_000)["tau"].mean() == pytest.approx(3.598, rel=0.03)
    assert posterior.names == ("mu", "tau", "theta_trans")
    assert not jax.config.jax_enable_x64


# One school in eight has influence: whether LOO warns of it depends on the draws.
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_arviz_knows_the_labels(posterior):
    tree = posterior.to_arviz(400, predictive=True, kind="datatree")
    assert set(tree.children) == {
        "posterior",
        "posterior_predictive",
        "sample_stats",
        "log_prior",
        "log_likelihood",
        "observed_data",
        "constant_data",
    }
    for group, name in [
        ("posterior", "theta_trans"),
        ("posterior", "theta"),
        ("posterior_predictive", "y"),
        ("log_likelihood", "y"),
        ("observed_data", "y"),
        ("constant_data", "sigma"),
    ]:
        variable = tree[group][name]
        assert variable.dims[-1] == "school"
        assert list(variable["school"].values) == SCHOOLS
    first = tree.posterior.theta.sel(school="school A")
    assert np.allclose(first, tree.posterior.mu + tree.posterior.tau * tree.posterior.theta_trans[..., 0])
    assert np.isclose(loo(tree).elpd, -30.7, atol=0.5)


def test_predictions(posterior):
    num = 1000
    replicated = posterior.predict(num=num)["y"]
    theta = posterior.draws(num, key=2)["theta"]
    sigma = np.asarray(BENCHMARK.args[1])
    noise = (replicated - theta) / sigma
    assert replicated.shape == (num, 8)
    assert np.all(np.abs(noise.mean(axis=0)) < 4 / np.sqrt(num))
    assert abs(noise.std() - 1) < 4 / np.sqrt(2 * noise.size)
    assert np.allclose(posterior.predict(num=num, average=True)["y"], theta.mean(axis=0))
    precise = posterior.predict(num=num, sigma=np.full(8, 1e-3))["y"]
    assert np.allclose(precise, theta, atol=0.01)


def test_save_and_load(posterior, schools, tmp_path):
    path = posterior.save(tmp_path / "schools.bf")
    again = bf.load(path, model=schools)
    drawn, loaded = posterior.draws(50), again.draws(50)
    assert all(np.array_equal(drawn[name], loaded[name]) for name in drawn)
    inside = posterior.log_prob(drawn)
    assert np.isfinite(inside).all()
    assert np.array_equal(inside, again.log_prob(drawn))
    assert np.isneginf(again.log_prob({**drawn, "tau": -drawn["tau"]})).all()


ALONE = """
import json, sys
import bernflow as bf

post = bf.load("post.bernflow")
post.plot().savefig("post.png")
post.report("post.html")
theta = post.to_arviz(100, kind="datatree").posterior["theta"]
found = {
    "labels": theta["school"].values.tolist(),
    "theta": post.draws(5)["theta"].tolist(),
    "rows": list(post.summary("theta").index),
    "text": repr(post),
    "imported": "pymc" in sys.modules,
}
print(json.dumps(found))
"""


def test_another_process_reads_it_without_the_model(posterior, tmp_path):
    posterior.save(tmp_path / "post.bernflow")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["labels"] == SCHOOLS
    np.testing.assert_array_equal(found["theta"], posterior.draws(5)["theta"])
    assert found["rows"] == [f"theta[{school}]" for school in SCHOOLS]
    assert found["text"] == repr(posterior)
    assert not found["imported"]
    assert (tmp_path / "post.png").stat().st_size > 1000
    assert (tmp_path / "post.html").stat().st_size > 10_000


def conjugate(y):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        pm.Normal("y", mu, 0.5, observed=pm.Data("values", y))
    return model


def test_new_data_compile_nothing():
    rng = np.random.default_rng(3)
    model = conjugate(rng.normal(1.0, 0.5, size=12))
    fit = dict(family="gaussian-fullrank", steps=200, progress=False)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    bf.fit(model, **fit)
    assert compiled
    y = rng.normal(-1.0, 0.5, size=12)
    pm.set_data({"values": y}, model=model)
    before = len(compiled)
    posterior = bf.fit(model, **fit)
    assert len(compiled) == before
    # A normal posterior, which the family contains: only Monte Carlo is left as an error.
    precision = 1 / 2.0**2 + 12 / 0.5**2
    mean = y.sum() / 0.5**2 / precision
    covariance = 0.5**2 * np.eye(12) + 2.0**2
    exact = scipy.stats.multivariate_normal(np.zeros(12), covariance).logpdf(y)
    draws = posterior.draws(4000)["mu"]
    assert posterior.diagnostics.verdict == "good"
    assert abs(posterior.diagnostics.log_evidence - exact) < 1e-3
    assert abs(draws.mean() - mean) < 4 / np.sqrt(4000 * precision)
    assert abs(draws.std() * np.sqrt(precision) - 1) < 4 / np.sqrt(2 * 4000) + 0.01


def test_batches():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(600, 2))
    y = x @ np.array([1.0, -0.5]) + 0.7 * rng.normal(size=600)
    with pm.Model() as model:
        rows, outcome = pm.Minibatch(x, y, batch_size=100)
        slopes = pm.Normal("slopes", 0.0, 1.0, shape=2)
        pm.Normal("y", rows @ slopes, 0.7, observed=outcome, total_size=600)
    posterior = bf.fit(model, family="gaussian-fullrank", steps=2000, progress=False)
    assert isinstance(posterior.model, MinibatchPyMCModel)
    assert posterior.settings["batch_size"] == 100
    precision = np.eye(2) + x.T @ x / 0.7**2
    mean = np.linalg.solve(precision, x.T @ y / 0.7**2)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    draws = posterior.draws(4000)["slopes"]
    assert posterior.diagnostics.verdict == "good"
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 0.1 * sd)
    assert np.all(np.abs(draws.std(axis=0) / sd - 1) < 0.1)


def test_what_is_wrong_is_named():
    with pm.Model() as model:
        pm.Beta("share", 2.0, 2.0)
        pm.Exponential("wait", 1.0, observed=[1.0, -2.0])
    with pytest.raises(bf.ModelError, match="the term of 'wait' is -inf"):
        bf.fit(model, progress=False)
    with pytest.raises(bf.ModelError, match="The PyMC model was given together with model arguments"):
        bf.fit(conjugate(np.zeros(2)), np.zeros(2), progress=False)
