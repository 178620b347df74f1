import dataclasses
import json
import os
import signal
import textwrap
import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import bernflow as bf
from bernflow.cli import fit as command
from bernflow.cli import main
from bernflow.diagnostics import Finding
from bernflow.fit.train.progress import Recorder

MODEL = """
    import numpyro, numpyro.distributions as dist
    print("The file speaks.")

    def model(N, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(mu + b[0] * b[1] * 0, 1.0).expand([N]), obs=y)
"""


class Terminal(StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


QUICK = ("--family", "gaussian-fullrank", "--steps", "500", "--draws", "50")
FILES = [
    "diagnostics.json",
    "draws.csv",
    "draws.nc",
    "posterior.bernflow",
    "report-data.bernflow",
    "report.html",
    "run.json",
    "summary.csv",
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "normal.py").write_text(textwrap.dedent(MODEL))
    (folder / "data.json").write_text('{"N": 3, "y": [0.5, 1.0, 1.5]}')
    return str(folder / "normal.py"), str(folder / "data.json")


class Finished(NamedTuple):
    """One whole run of the command, which the tests share: what costs time is compilation."""

    code: int
    out: str
    err: str
    folder: Path
    source: Any
    posterior: bf.Posterior


@pytest.fixture(scope="module")
def finished(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "new" / "out"
    kept = {}

    def keep(name, function):
        def call(*args, **kwargs):
            kept[name] = function(*args, **kwargs)
            return kept[name]

        return call

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(Terminal()) as err:
        patch.setattr(command, "load_model", keep("source", command.load_model))
        patch.setattr(bf, "fit", keep("posterior", bf.fit))
        code = main(["fit", *inputs, "--out", str(folder), *QUICK])
    return Finished(code, out.getvalue(), err.getvalue(), folder, **kept)


@pytest.fixture(scope="module")
def posterior(finished):
    return finished.posterior


@pytest.fixture
def fitted(posterior, monkeypatch):
    """Have `bernflow.fit` return a fit that was made before; returns what it was asked for."""
    asked = []

    def fit(model, **options):
        asked.append(options)
        return posterior

    monkeypatch.setattr(bf, "fit", fit)
    return asked


@pytest.fixture
def no_fit(monkeypatch):
    monkeypatch.setattr(bf, "fit", lambda *args, **kwargs: pytest.fail("fitted"))


def run(capsys, *words):
    code = main(["fit", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_help_has_examples_and_exit_codes(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for words in (
        "examples:\n  bernflow fit eight_schools.stan",
        "exit codes:\n    0  the fit is good or usable",
        "\n    3  the fit has finished with the verdict poor",
        "\n  130  interrupted",
    ):
        assert words in out
    assert "A Python file is executed" in " ".join(out.split())


def test_a_model_from_files(finished, inputs):
    code, out, err, folder, _, posterior = finished
    assert code == 0
    assert "bernflow: done |████████████|" in err  # the progress bar
    assert sorted(os.listdir(folder)) == FILES
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("mu", "b["))] == ["mu", "b[0]", "b[1]"]
    for words in ("k-hat", "ESS", "ELBO", "log evidence", "500 steps", "Good (ESS", f"Results: {folder}"):
        assert words in out
    manifest = json.loads((folder / "run.json").read_text())
    assert manifest["model"]["given"] == inputs[0]
    assert manifest["data"]["path"] == inputs[1]
    assert manifest["options"]["steps"] == 500
    assert not manifest["interrupted"]
    # What is printed is what is written.
    written = bf.load(folder / "posterior.bernflow").draws(50)["mu"]
    np.testing.assert_array_equal(written, posterior.draws(50)["mu"])
    assert f"{written.mean():.4g}" in out


def test_options_reach_the_fit(capsys, inputs, tmp_path, fitted):
    words = "--seed 3 --family bernstein --order 7 --steps 9 --restarts 2 --components 2 --checks thorough"
    words += " --time-limit 60 --quiet --format csv --draws 7"
    code, out, err = run(capsys, *inputs, "--out", tmp_path / "out", "--resample", *words.split())
    assert code == 0
    (asked,) = fitted
    expected = {
        "key": 3,
        "family": "bernstein",
        "training": bf.Training(order=7),
        "steps": 9,
        "restarts": 2,
        "components": 2,
        "checks": "thorough",
        "time_limit": 60.0,
    }
    assert {name: asked[name] for name in expected} == expected
    assert asked["progress"] is False
    assert asked["model_kwargs"]["N"] == 3
    assert err == ""
    assert out.endswith(f"{tmp_path / 'out'}\n")
    assert "k-hat  " not in out
    manifest = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (manifest["draws"], manifest["weighted"]) == (7, True)
    assert "draws.nc" not in manifest["files"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_is_given_by_name(capsys, inputs, tmp_path, fitted, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    table, path = pd.DataFrame({"y": [0.5, 1.0, 1.5], "name": list("abc")}), tmp_path / f"data.{kind}"
    table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
    words = ("--data", path, "--out", tmp_path / "out", "--quiet", "--draws", 5)
    assert run(capsys, inputs[0], *words, "--tolerance", 0.002)[0] == 0
    [asked] = fitted
    assert asked["tolerance"] == 0.002
    assert asked["model_kwargs"]["N"] == 3
    np.testing.assert_array_equal(asked["model_kwargs"]["y"], table["y"])
    assert json.loads((tmp_path / "out" / "run.json").read_text())["data"]["path"] == str(path)
    code, _, err = run(capsys, *inputs, *words)
    assert code == 2
    assert f"DATA was given twice, {inputs[1]} and --data {path}: expected one." in err


@pytest.mark.parametrize(("word", "meant"), [("--tolerence", "--tolerance"), ("--timelimit", "--time-limit")])
def test_a_misspelt_option_gets_the_usage_of_the_command_and_a_suggestion(capsys, inputs, no_fit, word, meant):
    code, out, err = run(capsys, *inputs, word, "1")
    assert (code, out) == (2, "")
    assert err.startswith("usage: bernflow fit [-h]")
    assert err.endswith(f"bernflow fit: error: unrecognized arguments: {word} 1. Did you mean '{meant}'?\n")


def test_json_is_all_that_is_on_stdout(capsys, inputs, tmp_path, fitted, posterior):
    code, out, err = run(capsys, *inputs, "--out", tmp_path / "out", "--json", "--quiet", "--draws", 50)
    assert code == 0
    found = json.loads(out)
    assert found["verdict"] == posterior.diagnostics.verdict
    assert found["khat"] == posterior.diagnostics.khat
    assert found["exit_code"] == 0
    assert found["files"] == FILES
    assert found["out"] == str(tmp_path / "out")
    assert found["summary"]["mu"]["mean"] == posterior.draws(50)["mu"].mean()
    assert "The file speaks." in err


def test_the_default_folder_has_the_name_of_the_model(capsys, inputs, tmp_path, fitted, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *inputs, "--quiet", "--draws", 5)[0] == 0
    assert os.listdir(tmp_path) == ["normal-fit"]


def test_a_poor_fit_is_written_and_has_a_code_of_its_own(capsys, inputs, tmp_path, posterior, monkeypatch):
    far = Finding("weights", "poor", "the fit is far from the posterior", "try post.refine()")
    diagnostics = dataclasses.replace(posterior.diagnostics, khat=float("inf"), findings=(far,))
    poor = bf.Posterior(
        posterior.distribution, posterior.layout, posterior.model, diagnostics, posterior.history, posterior.settings
    )
    monkeypatch.setattr(bf, "fit", lambda *args, **kwargs: poor)
    code, out, _ = run(capsys, *inputs, "--out", tmp_path / "out", "--draws", 50)
    assert code == 3
    assert sorted(os.listdir(tmp_path / "out")) == FILES
    assert "k-hat above 1000): the fit is far" in " ".join(out.split())
    assert "What to do next" in out
    code, out, _ = run(capsys, *inputs, "--out", tmp_path / "out", "--draws", 50, "--json")
    assert (code, json.loads(out)["exit_code"], json.loads(out)["khat"]) == (3, 3, "inf")


def test_interrupted_training_is_judged_and_written(capsys, inputs, tmp_path, finished, monkeypatch):
    # The same function again, which is compiled.
    monkeypatch.setattr(command, "load_model", lambda *args, **kwargs: finished.source)
    call = Recorder.__call__

    def report(self, done, planned, trace):
        call(self, done, planned, trace)
        if done == 250:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Recorder, "__call__", report)
    code, out, err = run(capsys, *inputs, "--out", tmp_path / "out", *QUICK, "--quiet")
    assert code == 130
    assert err.count("bernflow: interrupted after 250 steps. The posterior as trained so far is judged") == 1
    assert "Interrupted after 250 steps" in out.replace("\n", " ")
    found = json.loads((tmp_path / "out" / "run.json").read_text())
    assert found["interrupted"] is True
    assert json.loads((tmp_path / "out" / "diagnostics.json").read_text())["settings"]["steps"] == 250


def test_an_interruption_before_the_training_writes_nothing(capsys, inputs, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(bf, "fit", stop)
    assert run(capsys, *inputs, "--out", tmp_path / "out", "--quiet")[::2] == (130, "bernflow: interrupted.\n")
    assert os.listdir(tmp_path) == []


def test_folders_of_others_are_refused_before_the_fit(capsys, inputs, tmp_path, no_fit):
    (tmp_path / "notes.txt").write_text("mine")
    code, out, err = run(capsys, *inputs, "--out", tmp_path)
    assert (code, out) == (1, "")
    assert f"bernflow: The folder {tmp_path} contains files that are not of a run of bernflow (notes.txt)" in err
    assert "choose another folder (--out), or add the results to them (--force)." in err
    file = tmp_path / "notes.txt"
    assert run(capsys, *inputs, "--out", file / "out")[0] == 1


def test_a_run_replaces_an_earlier_one_and_force_keeps_files_of_others(capsys, inputs, tmp_path, fitted):
    out = tmp_path / "out"
    for num in (5, 6):
        assert run(capsys, *inputs, "--out", out, "--quiet", "--draws", num)[0] == 0
        assert json.loads((out / "run.json").read_text())["draws"] == num
    (out / "notes.txt").write_text("mine")
    assert run(capsys, *inputs, "--out", out, "--quiet")[0] == 1
    assert run(capsys, *inputs, "--out", out, "--quiet", "--force", "--draws", 7)[0] == 0
    assert sorted(os.listdir(out)) == sorted([*FILES, "notes.txt"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.txt",), "The model 'model.txt' is neither a Stan program nor a Python file: expected MODEL.stan"),
        (("model.py", "--steps", "0"), "argument --steps: '0': expected a whole number of at least 1"),
        (("model.py", "--draws", "many"), "argument --draws: 'many': expected a whole number of at least 1"),
        (("model.py", "--format", "csv,xls"), "'csv,xls': expected some of csv, netcdf, zarr"),
        (("model.py", "--family", "planr"), "family='planr' is unknown: expected one of bernstein,"),
        (("model.py", "--family", "gaussian", "--order", "5"), "order=5: the family 'gaussian' has no polynomial"),
        ((), "the following arguments are required: MODEL"),
    ],
)
def test_wrong_command_lines(capsys, tmp_path, no_fit, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert os.listdir(tmp_path) == []


def test_a_missing_model(capsys, tmp_path, no_fit):
    code, out, err = run(capsys, tmp_path / "none.stan", "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    assert err.startswith(f"bernflow: The model '{tmp_path / 'none.stan'}' does not exist: expected MODEL.stan")


def test_errors_of_the_model_show_where(capsys, inputs, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def model(N, y):\n    raise RuntimeError('here it is')\n")
    code, out, err = run(capsys, path, inputs[1], "--out", tmp_path / "out", "--quiet")
    assert (code, out) == (1, "")
    assert 'broken.py", line 2, in model' in err
    assert err.index("Traceback") < err.index(
        "bernflow: The model function 'model' failed with RuntimeError: here it is"
    )
    assert sorted(os.listdir(tmp_path)) == ["broken.py"]


def test_warnings_are_sentences(capsys, inputs, tmp_path, posterior, monkeypatch):
    def fit(*args, **kwargs):
        warnings.warn("The site has an odd shape.", UserWarning, stacklevel=1)
        warnings.warn("bernflow: Poor (k-hat 3).", UserWarning, stacklevel=1)
        return posterior

    monkeypatch.setattr(bf, "fit", fit)
    _, _, err = run(capsys, *inputs, "--out", tmp_path / "out", "--quiet", "--draws", 5)
    assert err == "bernflow: The site has an odd shape.\n"


def test_long_tables_are_cut(capsys, inputs, tmp_path, fitted, monkeypatch):
    monkeypatch.setattr(command, "MAX_ROWS", 2)
    _, out, _ = run(capsys, *inputs, "--out", tmp_path / "out", "--draws", 5)
    assert f"... and 1 more: {tmp_path / 'out' / 'summary.csv'}" in out
    assert "b[1]" not in out


@pytest.mark.slow
def test_a_stan_program(capsys, tmp_path):
    pytest.importorskip("httpstan")
    program = tmp_path / "coin.stan"
    program.write_text(
        "data { int N; array[N] int y; } parameters { real<lower=0, upper=1> p; } model { p ~ beta(1, 1); y ~ "
        "bernoulli(p); } generated quantities { array[2] real q = {p, 1 - p}; }"
    )
    (tmp_path / "coin.json").write_text('{"N": 5, "y": [1, 0, 1, 1, 1]}')
    code, out, _ = run(capsys, program, tmp_path / "coin.json", "--out", tmp_path / "out", "--json")
    found = json.loads(out)
    assert code == 0
    # p ~ Beta(5, 2): mean 5 / 7, and 4000 draws of sd 0.16.
    assert found["summary"]["p"]["mean"] == pytest.approx(5 / 7, abs=4 * 0.16 / 4000**0.5)
    assert found["summary"]["q[2]"]["mean"] == pytest.approx(1 - found["summary"]["p"]["mean"], abs=1e-9)
    # The evidence is the beta function B(5, 2) = 1 / 30.
    assert found["log_evidence"] == pytest.approx(-3.401197, abs=max(0.002, 4 * found["log_evidence_se"]))
