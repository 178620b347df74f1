import copy
import dataclasses

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.cli import main
from bernflow.diagnostics import Finding
from bernflow.posterior import archive
from bernflow.runs import material
from bernflow.runs.folder import write_run

ORIGIN = {
    "model": {"path": "/somewhere/model.py", "given": "model.py:model", "sha256": "ab" * 32},
    "data": {"path": "/somewhere/data.json", "sha256": "cd" * 32},
    "options": {"seed": 7},
}


def model(y):
    mu = numpyro.sample("part/mu", dist.Normal(0.0, 1.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    numpyro.deterministic("twice", 2.0 * w)
    numpyro.sample("y", dist.Normal(mu + w.sum(), 1.0), obs=y)


@pytest.fixture(scope="module")
def posterior():
    return bf.fit(model, np.array([3.0, 4.0]), family="gaussian-fullrank", steps=250, progress=False)


@pytest.fixture
def quick(monkeypatch):
    """Leave the slow part of pages out."""
    monkeypatch.setattr("bernflow.report.page.draw_galleries", lambda *args: [])


def run(capsys, *words):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_run_has_a_report_and_another_can_be_made(capsys, posterior, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = write_run(posterior, tmp_path / "schools", num=300, origin=ORIGIN)
    assert "report.html" in found.manifest["files"]
    assert found.manifest["notes"] == []
    before = (tmp_path / "schools" / "report.html").read_text()
    code, out, err = run(capsys, "report", "schools/", "--title", "Eight schools")
    assert (code, err) == (0, "")
    assert out.endswith("Report: schools-report.html\n")
    assert posterior.diagnostics.status.split(":")[0] in out
    page = (tmp_path / "schools-report.html").read_text()
    assert "<h1>Eight schools</h1>" in page
    for part in ("part/mu", "w[0, 0]", "twice[1, 2]", "model.py:model", "ab" * 32, 'id="weights"', 'id="training"'):
        assert part in page
    # The page in the folder, made with the model, knows more and stays.
    assert (tmp_path / "schools" / "report.html").read_text() == before
    assert 'id="predictive"' in before


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("form", ["csv", "netcdf"])
def test_draws_are_those_of_the_files(posterior, tmp_path, form):
    folder = tmp_path / "run"
    write_run(posterior, folder, num=100, formats=(form,), origin=ORIGIN)
    found = material.material_of_run(folder)
    draws = posterior.draws(100)
    assert found.draws.keys() == draws.keys()
    for name, values in draws.items():
        np.testing.assert_allclose(found.draws[name], values)
    np.testing.assert_allclose(found.log_weights, posterior.log_weights(100), atol=1e-9)
    assert found.diagnostics == posterior.diagnostics
    np.testing.assert_array_equal(found.history["elbo"], posterior.history["elbo"])
    assert found.axes.first == 0
    np.testing.assert_array_equal(found.observed["y"], [3.0, 4.0])


@pytest.mark.usefixtures("quick")
def test_weights_of_resampled_draws_are_not_shown(posterior, tmp_path):
    write_run(posterior, tmp_path / "run", num=100, weighted=True, formats=("csv",))
    found = material.material_of_run(tmp_path / "run")
    assert found.weighted
    assert found.log_weights is None


@pytest.mark.usefixtures("quick")
def test_tails_are_looked_for_in_the_files(posterior, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(material, "tails_of_draws", lambda *args: asked.append(args) or (("mu", 0.9),))
    write_run(posterior, tmp_path / "run", num=100, formats=("csv",))
    found = material.material_of_run(tmp_path / "run")
    assert found.tails == (("mu", 0.9),)
    [(diagnostics, draws, _, log_weights)] = asked
    assert diagnostics == posterior.diagnostics
    assert set(draws) == set(posterior.names)
    np.testing.assert_array_equal(log_weights, found.log_weights)


@pytest.mark.usefixtures("quick")
def test_run_of_a_stan_program_needs_no_model(posterior, tmp_path, monkeypatch):
    """Its supports are known to the program alone, so that its flow cannot be used, but its draws can."""
    monkeypatch.setattr(archive, "support_to_json", lambda support: None)
    origin = {**ORIGIN, "model": {"path": "/somewhere/model.stan"}}
    write_run(posterior, tmp_path / "run", num=50, formats=("netcdf",), origin=origin)
    assert set(posterior.names) <= set(bf.load(tmp_path / "run" / "posterior.bernflow").draws(10))
    found = material.material_of_run(tmp_path / "run")
    assert found.axes.first == 1
    assert [site.support for site in found.sites] == [None, None]


@pytest.mark.usefixtures("quick")
def test_saved_posteriors_have_reports(capsys, posterior, tmp_path, monkeypatch):
    path = posterior.save(tmp_path / "fit.bernflow")
    assert run(capsys, "report", path, "--out", tmp_path / "page.html")[0] == 0
    assert "The file of a saved posterior does not contain the model" in (tmp_path / "page.html").read_text()
    monkeypatch.setattr(archive, "support_to_json", lambda support: None)
    posterior.save(path)
    assert run(capsys, "report", path, "--out", tmp_path / "other.html")[0] == 0  # with the draws in the file
    assert "The file of a saved posterior does not contain the model" in (tmp_path / "other.html").read_text()


def test_what_is_no_run_is_refused(capsys, posterior, tmp_path):
    assert "does not exist: expected the folder of a run" in run(capsys, "report", tmp_path / "no")[2]
    assert "is not the folder of a run" in run(capsys, "report", tmp_path)[2]
    (tmp_path / "text").write_text("text")
    assert "is not a saved posterior" in run(capsys, "report", tmp_path / "text")[2]
    write_run(posterior, tmp_path / "run", num=50, formats=("netcdf",))
    (tmp_path / "run" / "report-data.bernflow").write_bytes(b"damaged")
    code, _, err = run(capsys, "report", tmp_path / "run")
    assert code == 1
    assert "is damaged (the checksum of report-data.bernflow is wrong)" in err
    (tmp_path / "run" / "posterior.bernflow").write_bytes(b"damaged")
    assert "the checksum of posterior.bernflow is wrong" in run(capsys, "report", tmp_path / "run")[2]


def test_what_a_file_says_is_not_obeyed(capsys, posterior, tmp_path):
    said = Finding("weights", "good", "Good\x1b]0;title\x07\x1b[2J\u202e, it says")
    found = dataclasses.replace(posterior.diagnostics, findings=(said,))
    other = copy.copy(posterior)
    other.diagnostics = found
    path = other.save(tmp_path / "a\x1b[31m.bernflow")
    code, out, err = run(capsys, "report", path, "--out", tmp_path / "page\x1b[31m.html")
    assert code == 0
    assert "\x1b" not in out + err
    assert "\u202e" not in out
    assert r"\x1b[2J" in out
    path.write_text("no posterior")
    code, out, err = run(capsys, "report", path)
    assert code == 1
    assert "\x1b" not in out + err
