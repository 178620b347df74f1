"""The plan of the suite and what is kept of it, with measurements that are made up."""

import json

import numpy as np
import pytest

from benchmarks.accuracy import cases, measure, reference, suite
from benchmarks.accuracy.methods import METHODS, Drawn, Fitted, RefusedError
from benchmarks.accuracy.suite import Options, Suite, describe
from benchmarks.study.digest import closure
from bernflow.errors import ArgumentError, FileFormatError


class Runner:
    """Measures nothing, remembers what it was asked for."""

    def __init__(self, **statuses):
        self.tasks, self.statuses = [], statuses

    def __call__(self, tasks, jobs, seconds):
        for task in tasks:
            self.tasks.append(task)
            method = task.arguments.get("method", "reference")
            status = self.statuses.get(method, "ok")
            figures = {"elbo": -1.0, "elbo_se": 0.01, "khat": 0.1, "ess_fraction": 0.9, "kl": None, "seconds": 1.0}
            figures |= {"gradients": 1000 + task.arguments.get("key", 0), "verdict": None}
            yield task, {"status": status, **(figures if status == "ok" else {})}

    def methods(self, matched=False):
        return [t.arguments["method"] for t in self.tasks if t.arguments["matched"] == matched]


def run(tmp_path, runner=None, said=None, **options):
    runner = runner or Runner()
    methods = ["bernflow-thorough", "AutoIAFNormal", "nuts"]
    options = {"targets": ["funnel-10"], "methods": methods, "keys": 3, **options}
    one = Suite(Options("full", tmp_path, **options), (said if said is not None else []).append, runner)
    one.run()
    return runner, one


def test_every_method_by_itself_and_then_with_our_budget(tmp_path):
    runner, _ = run(tmp_path)
    assert runner.methods() == ["bernflow-thorough"] * 3 + ["AutoIAFNormal"] * 3 + ["nuts"] * 3
    # The median of 1000, 1001 and 1002 gradients, by steps of ten particles.
    matched = [t.arguments["settings"]["steps"] for t in runner.tasks if t.arguments["matched"]]
    assert (runner.methods(matched=True), matched) == (["AutoIAFNormal"] * 3, [100] * 3)


def test_choices_only_where_there_are_any(tmp_path):
    runner, _ = run(tmp_path, methods=["bernflow-choices"], targets=["cauchy", "funnel-10"], keys=1)
    assert [(t.arguments["target"], t.arguments["settings"]) for t in runner.tasks] == [
        ("cauchy", {"tolerance": 0, "order": 50})
    ]


def test_what_is_kept_is_not_run_again(tmp_path):
    run(tmp_path)
    assert run(tmp_path)[0].tasks == []
    assert run(tmp_path, keys=4)[0].methods() == ["bernflow-thorough", "AutoIAFNormal", "nuts"]
    assert len(run(tmp_path, fresh=True)[0].tasks) == 12


def test_other_settings_run_again(tmp_path, monkeypatch):
    run(tmp_path)
    monkeypatch.setitem(METHODS["nuts"].settings, "warmup", 77)
    assert run(tmp_path)[0].methods() == ["nuts"] * 3


@pytest.mark.parametrize(
    ("status", "again"),
    [
        ("failed: ValueError: no", True),
        ("exceeded the time limit of 10 s", False),
        ("refuses 1-D", False),
        ("numpyro is not installed: pip", True),
    ],
)
def test_failures_run_again_and_refusals_do_not(tmp_path, status, again):
    run(tmp_path, Runner(nuts=status), time_limit=10.0)
    assert bool(run(tmp_path, time_limit=10.0)[0].methods()) == again


@pytest.mark.parametrize("limit", [5.0, 20.0])
def test_another_time_limit_is_one_for_all(tmp_path, limit):
    run(tmp_path, Runner(nuts="exceeded the time limit of 10 s"), time_limit=10.0)
    assert run(tmp_path, time_limit=10.0)[0].methods() == []
    assert len(run(tmp_path, time_limit=limit)[0].methods()) == 9


def test_a_record_is_stamped_and_other_code_measures_again(tmp_path, monkeypatch):
    _, one = run(tmp_path, methods=["nuts"], keys=1)
    (record,) = one.sorted_records()
    assert {"date", "commit", "machine", "versions", "code", "time_limit"} <= set(record)
    monkeypatch.setattr(suite, "code_of", lambda method: "other" if method == "nuts" else "same")
    assert run(tmp_path, methods=["nuts"], keys=1)[0].methods() == ["nuts"]


def test_the_code_behind_a_method_is_its_own():
    assert suite.code_of("pymc-advi") != suite.code_of("nuts")
    needed = closure([METHODS["start-IAF"].module])
    assert {"benchmarks.accuracy.methods.numpyro_guides", "bernflow.fit.engine"} <= needed
    # What changes in bernflow leaves the figures of other libraries valid.
    for name in ("AutoIAFNormal", "flowjax-spline", "pymc-advi", "blackjax-pathfinder", "nuts"):
        assert "bernflow.fit.engine" not in closure([*suite.COMMON, METHODS[name].module])


def test_records_are_written_after_each_fit_one_per_line(tmp_path):
    class Stops(Exception):
        pass

    def stops(tasks, jobs, seconds):
        yield from list(Runner()(tasks, jobs, seconds))[:2]
        if tasks:
            raise Stops

    with pytest.raises(Stops):
        run(tmp_path, stops)
    lines = (tmp_path / suite.FILE).read_text().splitlines()
    assert sum('"target": "funnel-10"' in line for line in lines) == 2
    assert len(json.loads("\n".join(lines))["records"]) == 2


def test_targets_whose_data_are_missing_are_left_out_and_said_so(tmp_path):
    said = []
    _, one = run(
        tmp_path, said=said, targets=["funnel-10", "posteriordb"], methods=["nuts"], keys=1, data=tmp_path / "nowhere"
    )
    assert list(one.cases) == ["funnel-10"]
    assert said[0].startswith("The 13 posteriors of posteriordb are left out.")
    assert "nowhere" in said[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"targets": ["fnnel"]},
            r"There is no target fnnel: expected a group \(held-out, paper, posteriordb, stress\) or some of",
        ),
        ({"methods": ["advi"]}, "There is no method advi: expected some of bernflow"),
        ({"keys": 0}, "--keys 0: expected a whole number of at least 1"),
        ({"jobs": 0}, "--jobs 0: expected a whole number of at least 1"),
        ({"time_limit": 0.0}, "--time-limit 0: expected a positive number"),
    ],
)
def test_wrong_options(tmp_path, options, message):
    with pytest.raises(ArgumentError, match=message):
        run(tmp_path, **options)


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / suite.FILE).write_text('{"records": [{"target": "funnel-10"}]}')
    with pytest.raises(FileFormatError, match="does not hold records of this suite"):
        run(tmp_path)


def test_lines_of_progress():
    base = {"target": "t", "method": "m", "key": 0, "matched": True, "status": "ok", "seconds": 3.0}
    full = {**base, "kl": 0.5, "elbo": 1.0, "khat": 0.3, "ess_fraction": 0.9, "mean_error": 0.1, "sd_error": -0.2}
    line = describe({**full, "verdict": "good"})
    assert line.startswith("t, m, key 0, matched: KL 0.5000, ELBO 1.0000, k-hat 0.30, ESS 0.900, worst mean +0.100 sd")
    assert line.endswith("3 s, good")
    assert describe({**base, "status": "refuses 1-D"}) == "t, m, key 0, matched: refuses 1-D"


def test_references_are_made_where_nothing_exact_is_known(tmp_path):
    runner = Runner()
    run(tmp_path, runner, targets=["nn-regression", "funnel-10"], methods=[])
    assert [t.arguments["target"] for t in runner.tasks] == ["nn-regression"]


@pytest.mark.slow
def test_a_reference_is_kept_with_its_verdict(tmp_path, gaussian, case):
    settings = {"warmup": 300, "samples": 500, "target_accept_prob": 0.9, "dense_mass": True}
    hidden = cases.Case(cases.Benchmark("hidden", "Hidden", gaussian.model, tuple), cases.STRESS)
    assert reference.needs_run(hidden)
    assert not reference.needs_run(case)
    assert reference.load(hidden, tmp_path) == (None, "no reference was made")
    status = reference.make(hidden.benchmark, tmp_path, settings)
    columns, described = reference.load(hidden, tmp_path)
    assert described == f"NUTS: {status}"
    assert {name: values.shape for name, values in columns.items()} == dict.fromkeys(("a", "b", "twice"), (4, 500))
    assert reference.is_made(hidden.benchmark, tmp_path, settings)
    assert not reference.is_made(hidden.benchmark, tmp_path, {**settings, "samples": 501})
    check_damage(hidden, tmp_path, settings)


def check_damage(hidden, out, settings):
    """A kept run that was cut off, flipped in a bit anywhere, or is another file, is named and never used."""
    path = out / reference.FOLDER / "hidden.npz"
    whole = path.read_bytes()
    cut = [whole[: len(whole) // 2], whole[:-1], b"", b"no archive"]
    places = np.random.default_rng(0).integers(len(whole), size=40)
    flipped = [whole[:k] + bytes([whole[k] ^ 16]) + whole[k + 1 :] for k in places]
    kept, _ = reference.load(hidden, out)
    refused = 0
    for content in [*cut, *flipped]:
        path.write_bytes(content)
        try:
            found, _ = reference.load(hidden, out)
        except FileFormatError:
            refused += 1
            with pytest.raises(FileFormatError, match=r"hidden.npz is not a reference .*delete it, and the next run"):
                reference.is_made(hidden.benchmark, out, settings)
        else:  # a bit that means nothing, such as a date
            assert all(np.array_equal(found[name], kept[name]) for name in kept)
    assert refused > 40


@pytest.fixture
def one_case(case, monkeypatch):
    monkeypatch.setattr(measure, "all_cases", lambda data=None: {"gaussian": case})


def fake(monkeypatch, fit):
    monkeypatch.setitem(METHODS, "fake", type(METHODS["nuts"])("fake", "Fake", fit, ""))


def measured(tmp_path):
    task = measure.fit_task("gaussian", "fake", 0, {}, num_draws=5000, out=tmp_path, data=None)
    return measure.measure(**task.arguments)


def test_a_measurement_of_exact_draws(tmp_path, monkeypatch, gaussian, one_case):
    def fit(benchmark, key, settings):
        return Fitted(lambda num, seed: Drawn(gaussian.exact_draws(seed, num), np.zeros(num)), 1.5, 7, "good")

    fake(monkeypatch, fit)
    record = measured(tmp_path)
    assert record["status"] == "ok"
    assert (record["kl"], record["ess_fraction"], record["gradients"], record["seconds"]) == (0.0, 1.0, 7, 1.5)
    assert record["verdict_is_right"]
    assert record["reference"] == "40,000 exact draws"
    assert record["wasserstein"] < 3 * record["wasserstein_floor"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RefusedError("refuses 2-D"), "refuses 2-D"),
        (ValueError("odd\nmore"), "failed: ValueError: odd"),
        (FloatingPointError(), "failed: FloatingPointError: "),
    ],
)
def test_what_goes_wrong_becomes_a_status(tmp_path, monkeypatch, one_case, error, status):
    def fit(*args):
        raise error

    fake(monkeypatch, fit)
    record = measured(tmp_path)
    assert record["status"] == status
    assert "elbo" not in record


def test_what_is_not_installed_becomes_a_status(tmp_path, monkeypatch, one_case):
    absent = type(METHODS["nuts"])("fake", "Fake", None, "", needs=("no_such_package", "peers"))
    monkeypatch.setitem(METHODS, "fake", absent)
    assert measured(tmp_path)["status"].startswith("no_such_package is not installed")


def test_targets_have_names_of_their_own():
    known = cases.all_cases()
    assert {case.group for case in known.values()} <= set(cases.GROUPS)
    assert all(name == case.benchmark.name for name, case in known.items())
    assert set(cases.choose(known, ["paper"])) == set(cases.BENCHMARKS) - {"funnel"}
    assert set(cases.held_out(known)) | set(cases.in_development(known)) == set(known)
    assert len(cases.in_development(known)) == 40
