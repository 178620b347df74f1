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
from bernflow import compiled
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


@pytest.fixture
def doubles():
    """A function of the user's and one of bernflow's, each compiled once; and no memory of earlier clearings."""
    users, ours = jax.jit(lambda x: 2 * x), compiled.jit(lambda x: 2 * x)
    users(1.0), ours(1.0)
    mappings._Clearing.next_share = 0.0
    yield users, ours
    mappings._Clearing.next_share = 0.0


def use(monkeypatch, *shares):
    """Pretend that these shares of the mappings are in use, one for each time that they are counted."""
    left = iter(shares)
    monkeypatch.setattr(mappings, "_share_of_mappings", lambda: next(left))


@needs_linux
def test_crowded_mappings_clear_our_functions_and_not_the_users(monkeypatch, doubles):
    users, ours = doubles
    assert not mappings.forget_if_crowded()
    assert (users._cache_size(), ours._cache_size()) == (1, 1)
    monkeypatch.setattr(mappings, "CROWDED", 0.5 * num_mappings() / int(mappings.LIMIT.read_text()))
    assert mappings.forget_if_crowded()
    assert (users._cache_size(), ours._cache_size()) == (1, 0)
    assert ours(2.0) == 4.0


def test_many_compiled_functions_are_cleared(monkeypatch, doubles):
    users, ours = doubles
    monkeypatch.setattr(mappings, "MOST_COMPILED", compiled.num_compiled())
    assert not mappings.forget_if_crowded()
    ours(np.zeros(3))
    assert mappings.forget_if_crowded()
    assert (users._cache_size(), ours._cache_size()) == (1, 0)
    assert not mappings.forget_if_crowded()


def test_mappings_of_others_do_not_make_every_fit_compile_anew(monkeypatch, doubles):
    use(monkeypatch, 0.6, 0.55, 0.6, 0.66, 0.64)
    assert mappings.forget_if_crowded()  # 0.55 are left, which others hold
    assert not mappings.forget_if_crowded()
    assert mappings.forget_if_crowded()


def test_only_a_process_about_to_end_loses_the_functions_of_the_user(monkeypatch, doubles):
    users, _ = doubles
    use(monkeypatch, 0.9, 0.7, 0.9, 0.85, 0.2)
    assert mappings.forget_if_crowded()
    assert users._cache_size() == 1
    with pytest.warns(UserWarning, match=r"uses 85% of the memory mappings.*your own jitted functions"):
        assert mappings.forget_if_crowded()
    assert users._cache_size() == 0
    assert users(2.0) == 4.0


def test_fits_leave_the_functions_of_the_user_compiled(monkeypatch):
    """What is compiled for fits is cleared before each of them, and not what the user has compiled."""
    import equinox as eqx

    monkeypatch.setattr(mappings, "MOST_COMPILED", 0)
    traced = []

    def double(x):
        traced.append(x)
        return 2 * x

    functions = (jax.jit(double), eqx.filter_jit(double))
    for _ in range(2):
        for function in functions:
            function(np.ones(3))
        fit(other_model(0.0)).draws(10)
    for function in functions:
        function(np.ones(3))
    assert len(traced) == len(functions)


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
