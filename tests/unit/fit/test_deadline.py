"""Time limits: which are refused, and what a start leaves out where the time is short."""

import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.cli.app import main
from bernflow.errors import ArgumentError
from bernflow.fit import engine, structured_start
from bernflow.fit.deadline import Deadline, Pace
from bernflow.fit.run import Run
from bernflow.fit.settings import resolve_settings
from bernflow.keys import as_key
from bernflow.precision import use_precision
from bernflow.target import Target

SETTINGS = resolve_settings()


def banana(x):
    return -0.5 * x[0] ** 2 - 2.0 * (x[1] - x[0] ** 2) ** 2


def groups(x):
    return -0.5 * jnp.sum(x[:2] ** 2) - 0.5 * jnp.sum(((x[2:] - x[1]) / jnp.exp(x[0])) ** 2) - 38 * x[0]


class Clock:
    """A clock that goes on by so many seconds whenever it is looked at."""

    def __init__(self, step=0.0):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.mark.parametrize("limit", [0, -1, 0.0, float("nan"), float("inf"), True, "60", [60.0], np.float64(-2.0)])
def test_what_is_not_a_time_limit_is_refused(limit):
    with pytest.raises(ArgumentError, match=r"time_limit=.*: expected a positive number of seconds such as 60"):
        bf.fit(bf.from_log_density(banana, init=jnp.zeros(2)), time_limit=limit, progress=False)


@pytest.mark.parametrize("limit", ["0", "-5", "nan"])
def test_the_command_line_refuses_it_before_anything_is_read(limit, capsys):
    assert main(["fit", "no-such-file.stan", f"--time-limit={limit}"]) != 0
    assert "expected a positive number of seconds" in capsys.readouterr().err


@pytest.mark.parametrize("limit", [60, 0.5, np.int64(60), np.float32(2.5)])
def test_numbers_of_any_type_are_time_limits(limit):
    deadline = Deadline.start(limit, Clock())
    assert deadline.left() == limit
    assert type(deadline.describe(False)["time_limit"]) is float


def test_steps_and_draws_fit_into_what_is_left():
    clock = Clock()
    pace = Pace(Deadline.start(100.0, clock))
    with pace.evaluating(1000):
        clock.now += 10.0
    assert pace.num_draws(10_000) == 8500  # 5 % are kept
    for _ in range(2):
        with pace.stepping():
            clock.now += 15.0
    assert pace.may_step()  # 60 are left: 5 are kept, 10 are for one more evaluation, 15 for the verdict
    clock.now += 16.0
    assert not pace.may_step()
    clock.now += 60.0
    assert pace.num_draws(10_000) == 1000


def test_a_fit_out_of_time_is_a_posterior_with_a_verdict_that_says_so():
    post = bf.fit(bf.from_log_density(banana, init=jnp.zeros(2)), time_limit=1e-3, progress=False)
    assert post.settings["out_of_time"]
    assert post.settings["steps"] == 0
    assert "Stopped by time_limit=0.001 s after 0 steps" in post.diagnostics.status
    assert np.isfinite(post.diagnostics.elbo)
    assert any("allow more by `time_limit=`" in sentence for sentence in post.advice)


def test_a_search_for_starts_ends_with_the_first_that_is_found(monkeypatch):
    """Paths are followed one after the other as long as the time allows; without a limit all at once."""
    calls = []
    find = engine.finder(2)

    class Finder:
        def with_effort(self, effort):
            return self

        def __call__(self, target, points, key):
            calls.append(len(points))
            return find(target, points, key)

    monkeypatch.setattr(engine, "finder", lambda dim: Finder())
    target = Target(bf.from_log_density(banana, init=jnp.zeros(2)))
    with use_precision("float64"):
        for clock, expected in ((Clock(60.0), [1]), (Clock(), [1, 1, 1, 1])):
            calls.clear()
            starts = engine.find_starts(target, 4, as_key(0), Run(Deadline.start(100.0, clock)))
            assert calls == expected
            assert len(starts.loc) == 4
            assert np.all(np.diff(starts.elbo) <= 0)
        calls.clear()
        engine.find_starts(target, 4, as_key(0), Run())
        assert calls == [4]


def test_a_structured_start_leaves_out_what_only_improves_it(monkeypatch):
    def late(*args, **kwargs):
        raise AssertionError("this takes too long")

    for name in ("match_moments", "are_gaussian", "nearest_gaussians", "fit_globals", "with_skewness"):
        monkeypatch.setattr(structured_start, name, late)
    target = Target(bf.from_log_density(groups, init=jnp.zeros(40)))
    deadline = Deadline.start(100.0, Clock(60.0))
    with use_precision("float64"):
        flow = structured_start.structured_start(target, SETTINGS, as_key(0), deadline)
    assert flow.structure.leaders == (0, 1)
