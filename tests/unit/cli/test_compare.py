"""`bernflow compare` and `bernflow summary`: posteriors from their files, beside each other and alone."""

import re

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.cli import main
from bernflow.diagnostics import judge
from bernflow.flows.affine import DiagonalAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.posterior import Posterior
from bernflow.precision import use_precision
from bernflow.runs import write_run
from bernflow.target import layout_of


def exact(*names, mean=0.0, error=0.0):
    """Independent normals, which need no fit; one with an error makes the weights correct it."""
    with use_precision("float64"):
        model = bf.Model(
            prior={name: dist.Normal(mean - error, 1.0) for name in names},
            log_likelihood=lambda theta: jnp.zeros(()),
            derived=lambda theta: {"twice": 2 * theta[names[0]]},
        )
        q = LocationScale(DiagonalAffine(jnp.full(len(names), mean), jnp.ones(len(names))))
        settings = {"family": "gaussian", "steps": 100, "wall_seconds": 1.5}
        post = Posterior(q, layout_of(model), model, judge(np.zeros(2000), num_resamples=2), settings=settings)
        post.diagnostics = judge(post.log_weights(2000), num_resamples=2)
    return post


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_run(exact("a", "b"), folder / "run", formats=("csv",))
    exact("a", "b").save(folder / "same.bernflow")
    exact("a", "c", mean=3.0).save(folder / "other.bernflow")
    exact("d").save(folder / "apart.bernflow")
    return folder


def run(capsys, *words):
    code = main([str(word) for word in words])
    return code, *capsys.readouterr()


def test_a_run_and_a_file_are_compared(capsys, files):
    code, out, _ = run(capsys, "compare", files / "run", files / "same.bernflow")
    assert code == 0
    assert "Comparison (2 posteriors, 2 components" in out
    assert "Agree" in out
    for column in ("verdict", "log evidence", "mean diff", "sd diff"):
        assert column in out
    assert "Not compared" not in out


def test_draws_are_those_of_the_runs(capsys, files, tmp_path):
    """Weighted where the verdict says that this corrects the fit, as in the tables of the runs."""
    for name in ("one", "two"):
        write_run(exact("a", "b", mean=0.5, error=0.5), tmp_path / name, formats=("csv",))
    code, out, err = run(capsys, "compare", files / "run", tmp_path / "one", tmp_path / "two")
    assert (code, err) == (0, "")
    assert out.count("usable") == 2
    assert "Agree" in out


def test_what_is_not_shared_is_named(capsys, files):
    code, out, _ = run(capsys, "compare", files / "run", files / "other.bernflow")
    assert code == 0
    assert "Comparison (2 posteriors, 1 component, reference" in out
    assert "differs in a" in " ".join(out.split())
    assert "Not compared, because not all have them with the same shape: b, c." in out
    _, out, _ = run(capsys, "compare", files / "run", files / "apart.bernflow")
    assert "No parameters were compared" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "run", "none"], "none does not exist: expected the folder of a run of bernflow fit"),
        (["summary", "none"], "none does not exist"),
        (["summary", "run", "--var", "twic"], "Did you mean 'twice'"),
    ],
)
def test_what_cannot_be_read_is_refused(capsys, files, monkeypatch, words, message):
    monkeypatch.chdir(files)
    code, out, err = run(capsys, *words)
    assert code == 1
    assert out == ""
    assert re.search(message, err)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["run"], "compare got one run, run: expected at least two"), (["run", "run"], "compare got the same run twice")],
)
def test_fewer_than_two_runs_are_a_wrong_command_line(capsys, files, monkeypatch, words, message):
    monkeypatch.chdir(files)
    code, _, err = run(capsys, "compare", *words)
    assert code == 2
    assert err.startswith("usage: bernflow compare [-h] RUN [RUN ...]")
    assert message in err


@pytest.mark.parametrize("name", ["run", "same.bernflow"])
def test_a_summary_is_that_of_the_posterior(capsys, files, name):
    code, out, _ = run(capsys, "summary", files / name)
    assert code == 0
    assert out.startswith(exact("a", "b").summary().to_string())
    for words in ("log evidence", "100 steps", "Good (ESS"):
        assert words in out
    _, out, _ = run(capsys, "summary", files / name, "--var", "^[ab]$", "--filter", "regex")
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["a", "b"]
    assert "twice" not in out
