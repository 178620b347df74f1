from contextlib import redirect_stderr

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bernflow as bf
from bernflow.fit.bar import Bar
from bernflow.fit.deadline import Deadline, Pace
from bernflow.fit.train import loop, stopping
from bernflow.fit.train.draws import Draws
from bernflow.fit.train.loop import Loop, Watch, run_alone
from bernflow.fit.train.objective import AllRows
from bernflow.fit.train.progress import Recorder
from bernflow.fit.train.recipe import CHUNK, Cycle, Recipe, StepConfig
from bernflow.fit.train.state import Trace, begin
from bernflow.fit.train.steps import Chunk, take_steps
from bernflow.fit.train.stopping import StoppingRule
from bernflow.flows.affine import DiagonalAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.keys import as_key
from bernflow.target import Target

OPTIMIZER = optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


def stacked_flow(num=1):
    flow = LocationScale(DiagonalAffine(jnp.zeros(1), jnp.ones(1)))
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * num), flow)


def recipe_of(rate=0.01, use_score=False, **more):
    return Recipe(StepConfig(OPTIMIZER, use_score), rate, 8, **more)


@jax.custom_jvp
def broken_above(u):
    """The identity, whose derivative is NaN above 2.5."""
    return u


broken_above.defjvp(lambda primals, tangents: (primals[0], tangents[0] * jnp.where(primals[0] > 2.5, jnp.nan, 1.0)))


@pytest.fixture(scope="module")
def broken_target():
    return Target(bf.from_log_density(lambda x: -0.5 * (broken_above(x[0]) - 1.0) ** 2 / 0.25, init=jnp.zeros(1)))


def run(trainee, target, num_steps, key=0):
    rates = np.pad(np.full(num_steps, 0.05), (0, CHUNK - num_steps))
    powers, pace = np.zeros(trainee.num_skipped.shape[0]), Pace(Deadline.start())
    return take_steps(Chunk(trainee, AllRows(target), as_key(key), rates, powers, recipe_of(), pace))


def test_steps_that_are_not_finite_are_skipped_and_counted(broken_target):
    trainee, trace = run(begin(stacked_flow(2), OPTIMIZER), broken_target, CHUNK)
    assert np.all(np.asarray(trainee.num_skipped) > 0)
    assert np.all(np.asarray(trainee.num_skipped) < CHUNK)
    for leaf in jax.tree.leaves((trainee.flow, trainee.optimizer_state)):
        assert np.isfinite(leaf).all()
    np.testing.assert_allclose(trainee.flow.outer.shift[:, 0], 1.0, atol=0.2)
    assert trace.elbo.shape == (2, CHUNK)


def test_padding_is_neither_trained_nor_counted(broken_target):
    begun = begin(stacked_flow(), OPTIMIZER)
    untouched, _ = run(begun, broken_target, 0)
    for before, after in zip(jax.tree.leaves(begun), jax.tree.leaves(untouched), strict=True):
        np.testing.assert_array_equal(before, after)
    trainee, _ = run(begun, broken_target, 10)
    assert int(trainee.num_skipped[0]) <= 10


def test_train_takes_the_steps_that_it_was_told(broken_target):
    heard = []
    watch = Watch(lambda done, planned, trace: heard.append((done, planned, trace.elbo.shape)))
    recipe = recipe_of(steps=CHUNK + 7)
    training = Loop(AllRows(broken_target), jax.random.key(0), recipe, Pace(Deadline.start()), watch)
    trained = run_alone(training.run(begin(stacked_flow(), OPTIMIZER)))
    assert (trained.steps, trained.interrupted) == (CHUNK + 7, False)
    assert heard == [(CHUNK, CHUNK + 7, (1, CHUNK)), (CHUNK + 7, CHUNK + 7, (1, 7))]


def test_rates():
    rates = recipe_of(0.1).rates(1000)
    assert rates.shape == (1000,)
    assert rates[0] == pytest.approx(0.1 / 50)
    assert 0.099 < rates.max() <= 0.1
    assert 0 < rates[-1] < 1e-5
    assert np.all(np.diff(rates[50:]) < 0)
    np.testing.assert_array_equal(recipe_of(0.1, constant_rate=True).rates(5), 0.1)
    np.testing.assert_array_equal(recipe_of(None).rates(5), 1.0)
    # The weights of a network follow the same schedule, also where the optimizer of the flow has rates of its own.
    assert recipe_of(0.1).weights_rates(5) is None
    np.testing.assert_allclose(recipe_of(None, weights_rate=0.2).weights_rates(1000), 2.0 * rates)


def test_chunks_end_with_the_epochs():
    assert recipe_of(chunk=10, epoch=3).chunk_lengths(7) == ([3, 3, 1], 3)
    assert recipe_of(chunk=4, epoch=10).chunk_lengths(20) == ([4, 3, 3, 4, 3, 3], 4)
    assert recipe_of().chunk_lengths(2 * CHUNK + 7) == ([CHUNK, CHUNK, 7], CHUNK)
    assert loop._remaining([4, 3, 3], 5) == [2, 3]


@pytest.mark.parametrize(("sd", "highest"), [(1.1, [0.1, 0.1, 0.025]), (3.0, [0.1, 0.05, 0.025])])
def test_near_the_posterior_a_bold_cycle_takes_the_whole_rate_and_in_vain_is_not_the_last(monkeypatch, sd, highest):
    rates = []

    def in_vain(chunk):
        rates.append(float(chunk.rates.max()))
        return chunk.state, Trace(np.zeros((1, CHUNK)), np.zeros((1, CHUNK)))

    monkeypatch.setattr(loop, "take_steps", in_vain)
    monkeypatch.setattr(stopping, "_only_little_is_left", lambda weights: False)
    monkeypatch.setattr(stopping, "_is_invisible", lambda *args: False)
    target = Target(bf.from_log_density(lambda x: -0.5 * (x[0] / sd) ** 2, init=jnp.zeros(1)))
    cycles = (Cycle(CHUNK), Cycle(CHUNK, 0.5, bold=True), Cycle(CHUNK, 0.25))
    recipe, pace = recipe_of(0.1, use_score=True, widened=True), Pace(Deadline.start())
    rule = StoppingRule(Draws(target, as_key(1), recipe, pace), long_cycle=CHUNK)

    def ends_of(cycles):
        ends = []
        watch = Watch(ends=lambda at, is_over: bool(ends.append(is_over)))  # goes on all the same
        monkeypatch.setattr(Recipe, "cycles", lambda *args: cycles)
        rates.clear()
        run_alone(Loop(AllRows(target), as_key(0), recipe, pace, watch, rule).run(begin(stacked_flow(), OPTIMIZER)))
        return ends

    assert ends_of(cycles[:1]) == [False, True]
    ends = ends_of(cycles)
    np.testing.assert_allclose(rates, highest, rtol=0.1)
    is_near = highest[1] == 0.1
    assert ends == [False, True, not is_near, True]


def test_recorder_keeps_the_mean_of_every_chunk_with_its_error():
    recorder = Recorder(Bar(False), num_particles=4, first_step=100)
    recorder(2, 3, Trace(np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([[8.0, 8.0], [0.0, 0.0]])))
    recorder(3, 3, Trace(np.array([[5.0], [1.0]]), np.array([[4.0], [0.0]])))
    history = recorder.history(0)
    np.testing.assert_array_equal(history["step"], [102, 103])
    np.testing.assert_array_equal(history["elbo"], [2.0, 5.0])
    np.testing.assert_array_equal(history["elbo_se"], [1.0, 1.0])
    np.testing.assert_array_equal(recorder.history(1)["elbo"], [0.0, 1.0])


@pytest.fixture(scope="module")
def compilations():
    """Count what XLA compiles from now on."""
    events = []

    def listen(event, duration, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return events


def test_nothing_is_compiled_again_for_a_new_key_or_new_data(posterior, model, y, compilations, same_arrays):
    steps = posterior.settings["steps"]
    # What the fixture compiled may have been dropped at the end of another module.
    again = bf.fit(model, y, steps=steps, progress=False)
    compilations.clear()
    before = model.num_traces
    other_key = bf.fit(model, y, steps=steps, progress=False, key=7)
    setup = model.num_traces - before
    other_data = bf.fit(model, y + 0.25, steps=steps, progress=False)
    assert compilations == []
    # What remains is looking at the model's sites, the same for every call.
    assert model.num_traces == before + 2 * setup
    assert same_arrays(posterior, again)
    assert not same_arrays(posterior, other_key)
    assert not same_arrays(posterior, other_data)


def test_the_same_call_gives_bitwise_the_same(posterior, model, y, same_arrays, terminal):
    with redirect_stderr(terminal):
        again = bf.fit(model, y, steps=posterior.settings["steps"], key=jax.random.key(0), progress=True)
    assert same_arrays(posterior, again)
    assert again.diagnostics == posterior.diagnostics
    np.testing.assert_array_equal(again.history["elbo"], posterior.history["elbo"])
    np.testing.assert_array_equal(again.draws(100)["s"], posterior.draws(100)["s"])
    assert "ELBO" in terminal.getvalue()


def test_settings_and_history_tell_the_steps(posterior):
    assert posterior.settings["steps"] == 600
    assert posterior.history["step"][-1] == 600
    assert posterior.settings["num_skipped"] == 0
