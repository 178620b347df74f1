import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow import background
from bernflow.background import BackgroundJit, Effort, background_jit


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
    known = background._known(Effort.LIGHT)
    assert known["xla_backend_optimization_level"] == 1
    monkeypatch.setattr(background, "QUICKER", background.QUICKER | {"xla_cpu_nonsense": False})
    background._known.cache_clear()
    assert background._known(Effort.LIGHT) == known
    monkeypatch.setattr(background, "QUICKER", {"xla_cpu_nonsense": False})
    background._known.cache_clear()
    assert background._known(Effort.FULL) is None
    background._known.cache_clear()


def test_variants_of_another_effort_are_compiled_beside_each_other():
    @background_jit(Effort.LEAST)
    def double(x):
        return 2 * x

    light = double.with_effort(Effort.LIGHT)
    assert light is double.with_effort(Effort.LIGHT) is not double
    assert double.with_effort(Effort.LEAST) is light.with_effort(Effort.LEAST) is double
    assert light(jnp.ones(3)).tolist() == double(jnp.ones(3)).tolist() == [2.0] * 3
    assert light._compiled is not double._compiled


def test_an_effort_reaches_the_compiler(monkeypatch):
    seen = []
    monkeypatch.setattr(background.eqx, "filter_jit", lambda function, compiler_options: seen.append(compiler_options))
    for effort in (Effort.LEAST, Effort.LIGHT):
        assert BackgroundJit(abs, effort)._compiled is None
    assert [options["xla_backend_optimization_level"] for options in seen] == [0, 1]
    assert "xla_backend_optimization_level" not in (background._known(Effort.FULL) or {})


def test_on_an_accelerator_efforts_do_not_differ(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    function = BackgroundJit(abs)
    assert function.with_effort(Effort.LEAST) is function


def test_what_cannot_be_traced_says_so_when_it_is_called(monkeypatch):
    monkeypatch.setattr(background, "num_cores", lambda: 2)

    @BackgroundJit
    def fail(x):
        raise ValueError("no density there")

    fail.prepare(np.zeros(3))
    with pytest.raises(ValueError, match="no density there"):
        fail(jnp.zeros(3))


def test_the_garbage_collector_pauses_only_while_no_thread_of_the_user_runs(monkeypatch):
    # Threads that earlier tests of this process have left do not count.
    list_threads, left = threading.enumerate, set(threading.enumerate()) - {threading.current_thread()}
    monkeypatch.setattr(threading, "enumerate", lambda: [thread for thread in list_threads() if thread not in left])
    assert gc.isenabled()
    with background.without_pauses():
        assert not gc.isenabled()
        with background.without_pauses():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    leave = threading.Event()
    for name, is_enabled in (("bernflow-compile_0", False), ("worker", True)):
        thread = threading.Thread(target=leave.wait, name=name)
        thread.start()
        with background.without_pauses():
            assert gc.isenabled() == is_enabled
        leave.set()
        thread.join()
        leave.clear()
    assert gc.isenabled()
