"""Fits in worker processes: their posteriors come back, and are those of the same call here."""

import multiprocessing
import pickle
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf

Y = np.array([0.3, 0.7, 1.1])


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)


def fit(seed):
    warnings.filterwarnings("ignore", "bernflow: ")
    return bf.fit(model, Y, family="gaussian-fullrank", steps=20, key=seed, progress=False)


@pytest.fixture(scope="module")
def alone():
    with warnings.catch_warnings():
        return fit(1)


@pytest.fixture
def importable(monkeypatch):
    """Let workers import this file by its name, as a module of a user's program."""
    folder = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder)
    import test_workers

    yield test_workers
    sys.modules.pop("test_workers", None)


def check(posterior, alone):
    for name, draws in alone.draws(20).items():
        assert draws.dtype == np.float64
        np.testing.assert_array_equal(posterior.draws(20)[name], draws)
    assert posterior.predict(num=2)["y"].shape == (2, 3)
    assert posterior.diagnostics.verdict == alone.diagnostics.verdict


def test_a_pickled_posterior_is_the_same(alone):
    copy = pickle.loads(pickle.dumps(alone))
    for name, draws in alone.draws(20).items():
        np.testing.assert_array_equal(copy.draws(20)[name], draws)
    np.testing.assert_array_equal(copy.log_weights(20), alone.log_weights(20))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(copy.distribution))
    assert copy.precision == alone.precision == "float64"


@pytest.mark.filterwarnings("ignore:bernflow:UserWarning")
def test_a_pickled_posterior_in_single_precision_stays_in_it():
    post = bf.fit(model, Y, family="gaussian", steps=5, training=bf.Training(precision="float32"), progress=False)
    copy = pickle.loads(pickle.dumps(post))
    assert copy.precision == post.precision
    np.testing.assert_array_equal(copy.draws(5)["mu"], post.draws(5)["mu"])


def test_multiprocessing_with_spawn(importable, alone):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        check(pool.map(importable.fit, [1])[0], alone)


@pytest.mark.slow
def test_joblib(importable, alone):
    joblib = pytest.importorskip("joblib")
    for posterior in joblib.Parallel(n_jobs=2)(joblib.delayed(importable.fit)(seed) for seed in (1, 1)):
        check(posterior, alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask(importable, alone):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        for future in client.map(importable.fit, [1, 1], pure=False):
            check(future.result(), alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_with_two_threads_per_worker(importable, alone):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(1, processes=True, threads_per_worker=2, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        for future in client.map(importable.fit, [1, 1], pure=False):
            check(future.result(), alone)
