"""Many fits: results as they end, one loss per loss, and nothing twice."""

import multiprocessing
import sys
import warnings
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import bernflow as bf
from bernflow.calibrate import api as calibrate_api
from bernflow.errors import ArgumentError, BernflowError


@pytest.fixture(scope="module")
def cases():
    """Let workers import the functions by name."""
    folder = str(Path(__file__).parent)
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(folder)
    patch.setenv("PYTHONPATH", f"{Path(bf.__file__).parents[1]}:{folder}")
    import many_cases

    yield many_cases
    patch.undo()
    sys.modules.pop("many_cases", None)


@pytest.fixture
def pool():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


def collect(*args, **kwargs):
    return {result.name: result for result in bf.map_fits(*args, progress=False, **kwargs)}


def test_one_after_the_other(cases):
    found = collect(cases.act, ["a", "raise"])
    assert found["0"].ok
    assert found["0"].value["what"] == "a"
    assert found["1"].error == "ValueError: not this one"
    assert "in act" in found["1"].traceback
    with pytest.raises(ArgumentError, match="case '1' has no posterior: ValueError"):
        _ = found["1"].posterior
    with pytest.raises(ArgumentError, match="case '0' has no posterior: the function returned a dict"):
        _ = found["0"].posterior


class Scripted:
    """Returns the futures that it was given, one after the other."""

    def __init__(self, *futures):
        self.futures = list(futures)

    def submit(self, function, *args):
        return self.futures.pop(0)


def test_results_arrive_as_they_end():
    first, second = Future(), Future()

    results = bf.map_fits(len, {"one": [], "two": []}, executor=Scripted(first, second), progress=False)
    second.set_result({"n": 2})
    assert next(results).name == "two"
    first.set_result({"n": 1})
    assert next(results).name == "one"


def test_a_future_needs_no_more_than_done_and_result():
    """As the jobs of submitit, which are no futures of Python."""

    class Job:
        def __init__(self, value):
            self.value, self.asked = value, 0

        def done(self):
            self.asked += 1
            return self.asked > 1

        def result(self):
            if isinstance(self.value, Exception):
                raise self.value
            return self.value

    executor = Scripted(Job({"a": 1}), Job(RuntimeError("the job has failed")))
    found = collect(len, ["a", "b"], executor=executor)
    assert found["0"].value == {"a": 1}
    assert found["1"].error == "RuntimeError: the job has failed"


@pytest.mark.parametrize("how", ["die", pytest.param("exit", marks=pytest.mark.slow)])
def test_a_killed_worker_costs_one_case(cases, pool, how):
    whats = {"first": "slow", "bad": how, **{str(i): "slow" for i in range(4)}, "raises": "raise", "odd": "unpicklable"}
    found = collect(cases.act, whats, executor=pool)
    assert found.keys() == whats.keys()
    assert {name for name, result in found.items() if not result.ok} == {"bad", "raises", "odd"}
    assert "its worker ended early" in found["bad"].error
    assert "ValueError: not this one" in found["raises"].error
    assert found["first"].value["values"].tolist() == [0.0, 1.0, 2.0]


def test_posteriors_from_processes_are_those_of_each_alone(cases, pool, tmp_path):
    found = collect(cases.fit, {"narrow": 0.1, "wide": 10.0}, executor=pool, resume=tmp_path)
    for name, scale in (("narrow", 0.1), ("wide", 10.0)):
        with warnings.catch_warnings():
            alone = cases.fit(scale)
        np.testing.assert_array_equal(found[name].posterior.draws(5)["mu"], alone.draws(5)["mu"])
    kept = collect(cases.fit, {"narrow": 0.1, "wide": 10.0}, resume=tmp_path)  # without the pool, and at once
    np.testing.assert_array_equal(kept["wide"].posterior.draws(5)["mu"], found["wide"].posterior.draws(5)["mu"])


def test_a_resumed_call_does_what_is_missing(cases, tmp_path):
    called = []

    def once(what):
        if what == "stop" and len(called) < 5:
            raise ValueError("not yet")
        return {"what": what, "array": np.arange(2.0), "number": np.float64(3.0)}

    def counted(what):
        called.append(what)
        return once(what)

    # The list of calls is no part of what the result depends on.
    class Counted:
        def identity_parts(self):
            return once.__code__

        def __call__(self, what):
            return counted(what)

    names = {"a": "a", "Odd / name": "b", "ODD / name": "c", "stop": "stop"}
    first = collect(Counted(), names, resume=tmp_path)
    assert first["stop"].error == "ValueError: not yet"
    assert len(called) == 4
    again = collect(Counted(), names, resume=tmp_path)
    assert called[4:] == ["stop"]
    assert again["stop"].ok
    assert {name: result.value["what"] for name, result in again.items()} == names
    assert again["a"].value["array"].tolist() == [0.0, 1.0]
    assert again["a"].value["number"] == 3.0
    assert len(collect(Counted(), names, resume=tmp_path)) == 4
    assert len(called) == 5


class Inline:
    """Runs what is submitted at once, but loses some cases."""

    def __init__(self, *lost):
        self.lost, self.submitted = lost, []

    def submit(self, function, *args):
        future, (_, case, *_) = Future(), args
        self.submitted.append(case)
        if case in self.lost:
            future.set_exception(RuntimeError("worker lost"))
        else:
            future.set_result(function(*args))
        return future


def test_a_resumed_call_repeats_only_what_a_worker_lost(cases, tmp_path):
    whats = {name: name for name in ("a", "b", "c")}
    first = collect(cases.act, whats, executor=Inline("b"), resume=tmp_path)
    assert {name: result.error for name, result in first.items() if not result.ok} == {"b": "RuntimeError: worker lost"}
    again = Inline()
    assert all(result.ok for result in collect(cases.act, whats, executor=again, resume=tmp_path).values())
    assert again.submitted == ["b"]


def test_another_case_or_function_is_refused(cases, tmp_path):
    collect(cases.act, {"a": "x"}, resume=tmp_path)
    with pytest.raises(ArgumentError, match=r"a.json belongs to another function or another case 'a'"):
        collect(cases.act, {"a": "y"}, resume=tmp_path)
    with pytest.raises(ArgumentError, match="belongs to another function"):
        collect(lambda what: {"what": what}, {"a": "x"}, resume=tmp_path)


def test_damaged_results_are_computed_again(cases, tmp_path):
    collect(cases.act, {"a": "x"}, resume=tmp_path)
    for name in ("a.npz", "a.json"):
        content = bytearray((tmp_path / name).read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / name).write_bytes(content)
        with pytest.warns(UserWarning, match=rf"{name} cannot be used .*computed again"):
            assert collect(cases.act, {"a": "x"}, resume=tmp_path)["a"].ok
    (tmp_path / "a.json").unlink()
    assert collect(cases.act, {"a": "x"}, resume=tmp_path)["a"].ok


@pytest.mark.parametrize(
    "value", [3, {"a": object()}, {"a": np.array([None])}], ids=["a number", "an object", "an array of objects"]
)
def test_what_cannot_be_kept_is_returned_with_a_warning(value, tmp_path):
    with pytest.warns(UserWarning, match=r"result of '0' is not saved \(.*Return a dict"):
        assert collect(lambda case: value, [1], resume=tmp_path)["0"].value is value
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments(tmp_path):
    with pytest.raises(ArgumentError, match="function is a int: expected a function of one case"):
        bf.map_fits(3, [])
    with pytest.raises(ArgumentError, match=r"executor='pool': expected a concurrent.futures.Executor"):
        bf.map_fits(len, [], executor="pool")
    with pytest.raises(ArgumentError, match="the name 1 of a case is not a string"):
        bf.map_fits(len, {1: 2})
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot be written to"):
        bf.map_fits(len, [], resume=tmp_path / "file")
    with pytest.raises(ArgumentError, match=r"bf\.map_fits no longer takes 'folder': write resume='results'\.$"):
        bf.map_fits(len, [], folder="results")
    assert collect(len, []) == {}


@pytest.mark.slow
def test_a_calibration_on_workers_is_that_of_one_process(cases, pool, monkeypatch):
    how = {"num_simulations": 20, "num_draws": 50, "steps": 20, "family": "gaussian", "progress": False}
    monkeypatch.setattr(calibrate_api, "MAX_BLOCK", 10)
    alone = bf.calibrate(cases.calibrated, np.zeros(3), **how)
    shared = bf.calibrate(cases.calibrated, np.zeros(3), **how, executor=pool)
    for name in alone.ranks:
        np.testing.assert_array_equal(shared.ranks[name], alone.ranks[name])
    assert shared.settings == alone.settings


class Losing:
    """Loses what is submitted first, or all."""

    def __init__(self, num):
        self.left, self.threads = num, ThreadPoolExecutor(1)

    def submit(self, function, *args):
        if self.left:
            self.left -= 1
            lost = Future()
            lost.set_exception(RuntimeError("worker lost"))
            return lost
        return self.threads.submit(function, *args)


def test_a_calibration_goes_on_without_what_was_lost(cases, monkeypatch):
    how = {"num_simulations": 20, "num_draws": 50, "steps": 20, "family": "gaussian", "progress": False}
    monkeypatch.setattr(calibrate_api, "MAX_BLOCK", 10)
    with pytest.warns(UserWarning, match="1 of 2 blocks of 10 simulations are lost and left out .RuntimeError"):
        found = bf.calibrate(cases.calibrated, np.zeros(3), **how, executor=Losing(1))
    assert found.settings["num_simulations"] == 10
    with pytest.raises(BernflowError, match=r"no worker of the executor has returned anything.*worker lost"):
        bf.calibrate(cases.calibrated, np.zeros(3), **how, executor=Losing(2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_on_this_machine(cases, tmp_path):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor(retries=0)
        found = collect(cases.fit, {"narrow": 0.1, "wide": 10.0}, executor=executor, resume=tmp_path)
        assert all(result.ok for result in found.values())
        found = collect(cases.act, {"good": "slow", "bad": "raise", "dead": "die", "fine": "slow"}, executor=executor)
        assert {name for name, result in found.items() if not result.ok} == {"bad", "dead"}
