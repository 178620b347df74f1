"""The suite of wrong verdicts: its truths, its judgment and its page."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from benchmarks.adversarial import page, suite
from benchmarks.adversarial.case import Moments, errors_of
from benchmarks.adversarial.catalogue import CASES, FAMILIES, NAMED
from benchmarks.adversarial.schedule import longest_first
from benchmarks.study import stamp
from benchmarks.study.records import save_records
from bernflow.errors import ArgumentError
from bernflow.models import as_model
from bernflow.target import Target

ROOT = Path(__file__).resolve().parents[3]


def target_of(name):
    model, args = CASES[name].build()
    return Target(as_model(model, args, {}))


def test_there_are_enough_cases_of_every_kind():
    assert len(CASES) >= 60
    assert sum(case.num_keys for case in CASES.values() if case.family in NAMED) >= 300
    assert set(FAMILIES) >= {"concentric", "far mode", "narrow spike", "prior in conflict", "wrong sign", "not proper"}
    assert all(np.isfinite(moments.sd).all() for case in CASES.values() for moments in (case.truth or {}).values())


# Few parameters, so that their moments follow from a grid.
SMALL = [
    "concentric-0",
    "far-mode-0",
    "far-mode-1",
    "spike-0",
    "prior-mode-0",
    "prior-mode-1",
    "conflict-1",
    "conflict-3",
    "conflict-9",
    "labels-0",
    "change-point-0",
    "clusters-0",
    "normal-0",
    "corner-2",
]


@pytest.mark.parametrize("name", SMALL)
def test_truths_are_those_of_the_density(name):
    with jax.enable_x64(True):
        target, (truth,) = target_of(name), CASES[name].truth.values()
        # On the unconstrained scale, wide enough for all of these.
        points = [_grid(target, truth, i) for i in range(target.dim)]
        x = np.stack([axis.ravel() for axis in np.meshgrid(*points, indexing="ij")], -1)
        log_p = np.asarray(jax.jit(jax.vmap(target.log_density))(x))
        theta = np.asarray(jax.vmap(lambda x: next(iter(target.layout.constrain(x)[0].values())))(x))
    weights = np.exp(log_p - log_p.max())
    weights = (weights / weights.sum())[:, None]
    theta = theta.reshape(len(x), -1)
    mean = np.sum(weights * theta, 0)
    assert mean == pytest.approx(truth.mean, abs=0.02 * truth.sd.min())
    assert np.sqrt(np.sum(weights * (theta - mean) ** 2, 0)) == pytest.approx(truth.sd, rel=0.02)


def _grid(target, truth, i):
    num = 200_001 if target.dim == 1 else 701
    center = next(iter(target.layout.constrain(np.zeros(target.dim))[0].values()))
    if np.any(np.asarray(center) != 0.0):  # on the log scale
        return np.linspace(-14.0, 6.0, num)
    return np.linspace(truth.mean[i] - 12.0 * truth.sd[i], truth.mean[i] + 12.0 * truth.sd[i], num)


def test_errors_count_beyond_those_of_the_draws():
    draws = {"x": np.random.default_rng(0).normal(size=(10_000, 2)), "s": np.exp(np.ones((10_000, 1)))}
    exact = {"x": Moments(np.zeros(2), np.ones(2))}
    assert errors_of(draws, exact) == (0.0, 0.0)
    assert not errors_of(draws, exact).wrong
    off = errors_of(draws, {"x": Moments(np.array([0.0, 0.5]), np.array([1.0, 2.0]))})
    assert off.mean == pytest.approx(0.25, abs=0.03)
    assert off.sd == pytest.approx(0.5, abs=0.03)
    assert off.wrong
    assert errors_of(draws, {"log s": Moments(np.ones(1), np.ones(1))}).mean == pytest.approx(0.0, abs=1e-9)


def test_wilson_intervals():
    assert page.wilson(0, 300)[1] == pytest.approx(0.0126, abs=1e-4)
    assert page.wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert page.wilson(0, 0) == (0.0, 1.0)


def test_unknown_cases_and_counts_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="There is no case nonsense"):
        suite.choose(["nonsense"])
    with pytest.raises(ArgumentError, match="--keys 0: expected a whole number"):
        suite.Suite(suite.Options(tmp_path, keys=0), print)
    with pytest.raises(ArgumentError, match="--jobs 0: expected a whole number"):
        suite.Suite(suite.Options(tmp_path, jobs=0), print)


def test_a_run_keeps_what_it_has_and_writes_a_page(tmp_path, monkeypatch):
    fitted = []

    def fit(model, *args, key, progress):
        fitted.append(key)
        diagnostics = SimpleNamespace(
            verdict="good", khat=0.1, ess_fraction=1.0, missing_mass=0.0, improper=None, status="Good."
        )
        draws = {"x": np.random.default_rng(0).normal(size=(1000, 1))}
        return SimpleNamespace(diagnostics=diagnostics, draws=lambda num, key: draws, distribution=None)

    monkeypatch.setattr(suite.bf, "fit", fit)
    options = suite.Options(tmp_path, ["sign-square-1", "student-0"], keys=2)
    said = []
    suite.Suite(options, said.append).run()
    assert sorted(fitted) == [0, 0, 1, 1]
    again = suite.Suite(options, said.append)
    again.run()
    assert len(fitted) == 4
    assert "sign-square-1: good, wrong" in said[0]
    text = page.write(tmp_path, again.sorted_records(), "bernflow benchmark adversarial").read_text()
    assert f"Fits: 4 of the {sum(case.num_keys for case in CASES.values())} of a whole run" in text
    assert "False good: 4 of 4" in text
    assert "| wrong sign | 2 | 2 | 0 | 0 | 2 | 2 |" in text
    assert len(json.loads((tmp_path / suite.FILE).read_text())["records"]) == 4


def test_no_fit_begins_too_late(tmp_path):
    suite.Suite(suite.Options(tmp_path, ["normal-0"], minutes=0.0), print).run()
    assert not (tmp_path / suite.FILE).exists()


def test_a_fit_that_fails_costs_only_itself(tmp_path, monkeypatch):
    def measure(case, key):
        if case.name == "normal-0":
            raise ValueError("no fit")
        return {"case": case.name, "key": key, "verdict": "good", "wrong": False, "mean_error": None, "cpu_seconds": 1}

    monkeypatch.setattr(suite, "measure", measure)
    said = []
    suite.Suite(suite.Options(tmp_path, ["normal-0", "normal-1"], keys=1), said.append).run()
    assert "ValueError: no fit" in said[0]
    assert [record["case"] for record in json.loads((tmp_path / suite.FILE).read_text())["records"]] == ["normal-1"]


def record_of(case, key=0, seconds=1.0, verdict="good"):
    judged = {"verdict": verdict, "khat": 0.1, "ess_fraction": 1.0, "improper": None, "wrong": False}
    errors = {"mean_error": 0.0, "sd_error": 0.0, "cpu_seconds": seconds, "date": "2026-01-01", "commit": None}
    return {"case": case, "family": CASES[case].family, "key": key, **judged, **errors}


def test_results_of_other_folders_are_merged(tmp_path):
    here, first, second = (tmp_path / name for name in ("here", "first", "second"))
    save_records(here / suite.FILE, [record_of("normal-0"), record_of("normal-1")], ())
    save_records(first / suite.FILE, [record_of("normal-1", verdict="usable"), record_of("student-0")], ())
    save_records(second / suite.FILE, [record_of("student-0", verdict="poor")], ())
    merged = suite.Suite(suite.Options(here, ["normal-0"], keys=1, merge=(first, second)), print)
    merged.run()
    kept = {r["case"]: r["verdict"] for r in json.loads((here / suite.FILE).read_text())["records"]}
    assert kept == {"normal-0": "good", "normal-1": "usable", "student-0": "poor"}
    with pytest.raises(ArgumentError, match=r"--merge: there is no .*nowhere"):
        suite.Suite(suite.Options(here, merge=(tmp_path / "nowhere",)), print)


def test_long_fits_begin_first():
    records = [
        record_of("normal-0", seconds=1.0),
        record_of("normal-1", seconds=9.0),
        record_of("funnel-0", seconds=4.0),
    ]
    tasks = [(name, key) for key in (0, 1) for name in ("normal-0", "normal-2", "funnel-3", "normal-1", "student-0")]
    names = [name for name, _ in longest_first(tasks, records)]
    assert names[::2] == ["student-0", "normal-1", "normal-2", "funnel-3", "normal-0"]
    assert names[::2] == names[1::2], "both keys take as long"


def test_a_copy_without_its_repository_is_told_its_commit(monkeypatch):
    monkeypatch.setattr(stamp, "commit", lambda: None)
    monkeypatch.delenv("SOURCE_COMMIT", raising=False)
    assert stamp.stamp()["commit"] is None
    monkeypatch.setenv("SOURCE_COMMIT", "abc1234")
    assert stamp.stamp()["commit"] == "abc1234"


WITHOUT_WHAT_DRAWS_AND_SAVES = """
import sys

class Absent:
    names = {*"matplotlib arviz arviz_base arviz_plots xarray pandas h5py h5netcdf jinja2 flowjax blackjax".split()}

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
from benchmarks.adversarial import __main__, suite
print(suite.describe(suite.measure(suite.CASES["sign-square-1"], 0)))
"""


@pytest.mark.slow
def test_the_suite_needs_only_what_a_fit_needs():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_WHAT_DRAWS_AND_SAVES], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sign-square-1: poor, wrong")
