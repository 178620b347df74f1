"""Many fits in one process: memory, mappings and what is compiled stay bounded."""

import gc
import resource
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.fit import mappings

needs_linux = pytest.mark.skipif(not mappings.MAPPINGS.exists(), reason="counts the mappings of a Linux process")


def num_mappings():
    return mappings.MAPPINGS.read_bytes().count(b"\n")


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class CountedModel:
    """A NumPyro model that counts how often Python runs it."""

    num_traces = 0

    def __call__(self, y):
        import numpyro
        import numpyro.distributions as dist

        self.num_traces += 1
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def fit(model, *args):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "bernflow: ")
        return bf.fit(model, *args, family="gaussian-fullrank", steps=20, progress=False)


def other_model(number):
    """A model of its own: the number is in its code, so that everything is compiled anew."""
    return bf.from_log_density(lambda x: -0.5 * jnp.sum((x - number) ** 2), np.zeros(2))


def test_other_data_of_one_shape_compile_nothing():
    model, rng = CountedModel(), np.random.default_rng(1)
    counts, maps = [], []
    for _ in range(10):
        fit(model, rng.normal(size=5)).draws(10)
        counts.append(model.num_traces)
        maps.append(num_mappings() if mappings.MAPPINGS.exists() else 0)
    assert counts[0] > counts[1] - counts[0], "a later fit looks at the model, and compiles nothing"
    assert len(set(np.diff(counts))) == 1
    assert maps[-1] <= maps[1] + 20


@needs_linux
def test_crowded_caches_are_forgotten(monkeypatch):
    double = jax.jit(lambda x: 2 * x)
    double(1.0)
    assert not mappings.forget_if_crowded()
    assert double._cache_size() == 1
    monkeypatch.setattr(mappings, "CROWDED", 0.5 * num_mappings() / int(mappings.LIMIT.read_text()))
    assert mappings.forget_if_crowded()
    assert double._cache_size() == 0
    assert double(2.0) == 4.0


def test_many_compiled_functions_are_forgotten(monkeypatch):
    monkeypatch.setattr(mappings, "MOST_COMPILED", mappings._compilations.num + 1)
    assert not mappings.forget_if_crowded()
    double = jax.jit(lambda x: 2 * x, inline=True)
    double(1.0)
    assert mappings.forget_if_crowded()
    assert double._cache_size() == 0
    assert not mappings.forget_if_crowded()


def test_other_systems_have_no_such_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(mappings, "LIMIT", tmp_path / "missing")
    assert not mappings.forget_if_crowded()


@needs_linux
@pytest.mark.slow
def test_two_hundred_fits_of_many_models_stay_bounded(monkeypatch):
    """The limit is set so low that it is met often; without the mend the count rises by dozens with every model."""
    fit(other_model(0.0))
    start = num_mappings()
    room = 800
    monkeypatch.setattr(mappings, "CROWDED", (start + room) / int(mappings.LIMIT.read_text()))
    highest, resident = 0, []
    for number in range(1, 51):
        # Four fits of every model: its own compilations serve all of them.
        model = other_model(float(number))
        for _ in range(4):
            fit(model)
        highest = max(highest, num_mappings())
        if number % 10 == 0:
            gc.collect()
            resident.append(resident_bytes())
    assert highest < start + room + 400, "one fit more than the limit"
    assert resident[-1] < resident[1] + 200 * 2**20
