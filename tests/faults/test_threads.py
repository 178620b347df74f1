"""Fits in several threads of one process: no errors, and the results of each alone."""

import threading
import warnings

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow import filters
from bernflow.models.running import model_lock, run_model

pytestmark = pytest.mark.filterwarnings("ignore:bernflow:UserWarning")


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)


def subsampled(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0], subsample_size=3):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=numpyro.subsample(y, event_dim=0))


def fit(number):
    function = subsampled if number % 10 == 9 else model
    shape = 5 + number % 2 if number < 10 else 5 + number % 10  # few threads have few shapes: compiling takes time
    post = bf.fit(function, np.linspace(0.0, number, shape), family="gaussian", steps=20, progress=False)
    return post.draws(5)["mu"], post.predict(num=3)["y"]


def in_threads(num_threads, num_fits):
    """Return the results by number, and the errors, of `num_fits` fits in each thread."""
    results, errors = {}, []

    def work(first):
        try:
            for number in range(first, first + num_fits):
                results[number] = fit(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i * num_fits,)) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, errors


@pytest.mark.parametrize(
    ("num_threads", "num_fits"), [(4, 2), pytest.param(4, 25, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_fits_in_threads_are_those_of_each_alone(num_threads, num_fits):
    before = list(warnings.filters)
    results, errors = in_threads(num_threads, num_fits)
    assert errors == []
    assert warnings.filters == before
    for number, found in results.items():
        for one, alone in zip(found, fit(number), strict=True):
            np.testing.assert_array_equal(one, alone)


def test_a_model_runs_while_no_other_does():
    inside, most = [], []

    def slow_model():
        inside.append(1)
        most.append(len(inside))
        numpyro.sample("x", dist.Normal())
        inside.pop()

    seeded = numpyro.handlers.seed(slow_model, 0)
    threads = [threading.Thread(target=run_model, args=(seeded, (), {})) for _ in range(8)]
    with model_lock:
        for thread in threads:
            thread.start()
        assert most == []
        assert run_model(seeded, (), {}).keys() == {"x"}  # the thread that holds the lock goes on
    for thread in threads:
        thread.join()
    assert most == [1] * 9


def test_warning_filters_of_two_threads_are_restored():
    """Entered and left in turns, `catch_warnings` would leave a filter of the first thread behind."""
    before, entered, leave = list(warnings.filters), threading.Event(), threading.Event()

    def first():
        with filters.local_filters():
            warnings.simplefilter("ignore")
            entered.set()
            leave.wait(10)

    def second():
        with filters.local_filters():
            warnings.simplefilter("ignore")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    entered.wait(10)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
