import os
import signal
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.fit import judging
from bernflow.fit.train import loop
from bernflow.fit.train.interruption import Interruption
from bernflow.fit.train.progress import Recorder
from bernflow.fit.train.recipe import CHUNK, Recipe

STEPS = 4 * CHUNK
INTERRUPTED = "bernflow: interrupted after {} steps.*judged and returned"


def fit(model, steps):
    return bf.fit(model, steps=steps, family="gaussian-fullrank", progress=False)


def press():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def interrupt_after(monkeypatch):
    """Interrupt the training when so many steps are reported: by the signal, or by an exception."""

    def install(steps, act):
        call = Recorder.__call__

        def report(self, done, planned, trace):
            call(self, done, planned, trace)
            if done == steps:
                act()

        monkeypatch.setattr(Recorder, "__call__", report)

    return install


def stop():
    raise KeyboardInterrupt


@pytest.mark.parametrize("act", [press, stop])
def test_an_interrupted_fit_returns_what_it_has(interrupt_after, gaussian_model, act):
    interrupt_after(CHUNK, act)
    with pytest.warns(UserWarning, match=INTERRUPTED.format(CHUNK)):
        posterior = fit(gaussian_model, STEPS)
    assert posterior.settings["interrupted"] is True
    assert posterior.settings["steps"] == CHUNK
    assert posterior.history["step"][-1] == CHUNK
    # Trained, not only begun: judged like any other fit.
    assert posterior.diagnostics.verdict == "good"
    assert posterior.diagnostics.status.endswith(
        f"Interrupted after {CHUNK} steps; post.refine() continues the training."
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    more = posterior.refine(steps=10, progress=False)
    assert more.settings["interrupted"] is False
    assert "Interrupted" not in more.diagnostics.status


def test_an_interruption_keeps_the_better_of_the_last_cycle_and_now(interrupt_after, gaussian_model, monkeypatch):
    # The second cycle is spoiled on purpose: its rate is far too high.
    rates, seen = Recipe.rates, []

    def spoiled(self, num, share=1.0):
        seen.append(num)
        return rates(self, num, share) * (1.0 if len(seen) == 1 else 300.0)

    monkeypatch.setattr(Recipe, "rates", spoiled)
    interrupt_after(STEPS // 2 + CHUNK, press)
    with pytest.warns(UserWarning, match=INTERRUPTED.format(STEPS // 2 + CHUNK)):
        posterior = fit(gaussian_model, STEPS)
    assert len(seen) == 2
    assert posterior.diagnostics.verdict == "good"


def test_before_anything_is_trained_the_interruption_is_raised(gaussian_model, monkeypatch):
    monkeypatch.setattr(loop, "take_steps", lambda *args, **kwargs: stop())
    with pytest.raises(KeyboardInterrupt):
        fit(gaussian_model, STEPS)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interruption_stops_at_once(interrupt_after, gaussian_model, monkeypatch):
    interrupt_after(CHUNK, press)
    monkeypatch.setattr(judging, "weigh", lambda *args: press())
    with pytest.warns(UserWarning, match="interrupted"), pytest.raises(KeyboardInterrupt):
        fit(gaussian_model, STEPS)


def test_an_interruption_while_judging_is_told_too(gaussian_model, monkeypatch):
    judge, presses = judging.judge_weights, [press]

    def slow(*args, **kwargs):
        while presses:  # once, however often the weights are judged
            presses.pop()()
        return judge(*args, **kwargs)

    monkeypatch.setattr(judging, "judge_weights", slow)
    with pytest.warns(UserWarning, match=INTERRUPTED.format(10)):
        posterior = fit(gaussian_model, 10)
    assert posterior.settings["interrupted"] is True


def test_the_first_is_held_back_the_second_is_not():
    with Interruption() as interruption:
        assert not interruption.heard
        interruption.check()
        press()
        assert interruption.heard
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
        with pytest.raises(KeyboardInterrupt):
            press()


def test_a_callback_does_not_turn_the_second_one_into_an_error():
    def host(x):
        press()
        press()
        return np.asarray(x)

    function = jax.jit(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x))
    with pytest.raises(KeyboardInterrupt), Interruption():
        np.asarray(function(jnp.float32(1.0)))


def test_errors_pass():
    def fail():
        press()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Interruption():
        fail()


def test_handlers_of_others_are_left_alone():
    heard = []
    signal.signal(signal.SIGINT, lambda *args: heard.append(1))
    try:
        with Interruption() as interruption:
            press()
        assert heard == [1]
        assert not interruption.heard
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_hold_nothing_back():
    found = []

    def work():
        with Interruption() as interruption:
            found.append(interruption.heard)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_half_a_fit_is_no_result_of_an_experiment(monkeypatch):
    from benchmarks.study import fits

    monkeypatch.setattr(bf, "fit", lambda *args, **kwargs: SimpleNamespace(settings={"interrupted": True}))
    with pytest.raises(KeyboardInterrupt):
        fits.fit_posterior("bernoulli", "bernflow", 0)
