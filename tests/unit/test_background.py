import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow import background
from bernflow.background import BackgroundJit


@pytest.fixture
def compiled(monkeypatch):
    """Where functions are compiled: the names of threads."""
    monkeypatch.setattr(background, "num_cores", lambda: 2)
    seen = []

    def listen(name, *_, **__):
        if "backend_compile" in name:
            seen.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def test_what_was_prepared_is_compiled_once_and_in_the_background(compiled):
    @BackgroundJit
    def scale(x, factor, name):
        return {name: factor * x}

    scale.prepare(np.zeros(3), 2.0, "a")
    x = jnp.asarray(np.arange(3.0))
    compiled.clear()
    assert scale(x, 2.0, "a")["a"].tolist() == [0.0, 2.0, 4.0]
    assert scale(x, 2.0, "a")["a"].tolist() == [0.0, 2.0, 4.0]
    assert all(name.startswith("bernflow-compile") for name in compiled)
    assert len(compiled) <= 1
    assert scale(x, 3.0, "b")["b"].tolist() == [0.0, 3.0, 6.0]  # others than prepared
    assert threading.main_thread().name in compiled


def test_an_error_of_the_compiler_comes_from_the_call(monkeypatch):
    monkeypatch.setattr(background, "num_cores", lambda: 2)

    @BackgroundJit
    def double(x):
        return 2 * x

    class Broken:
        def compile(self):
            raise RuntimeError("out of memory")

    monkeypatch.setattr(double, "lower", lambda *_: Broken())
    double.prepare(np.zeros(3))
    assert double(jnp.ones(3)).tolist() == [2.0] * 3  # the compiler is asked again


def test_inside_of_compiled_code_it_is_a_part_of_it():
    @BackgroundJit
    def double(x):
        return 2 * x

    assert jax.jit(jax.vmap(double))(jnp.ones((2, 3))).tolist() == [[2.0] * 3] * 2
    assert jax.grad(double)(1.0) == 2.0


def test_with_one_core_nothing_is_done_in_the_background(monkeypatch):
    monkeypatch.setattr(background, "num_cores", lambda: 1)

    @BackgroundJit
    def fail(x):
        raise AssertionError("traced")

    fail.prepare(np.zeros(3))


def test_options_that_xla_does_not_know_are_left_out(monkeypatch):
    monkeypatch.setattr(background, "QUICKER", {"xla_cpu_nonsense": False})
    background._options.cache_clear()
    assert background._options() is None
    background._options.cache_clear()
