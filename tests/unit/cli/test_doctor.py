import json
import tomllib
from pathlib import Path

import jax
import pytest

import bernflow
from bernflow.cli import doctor, main
from bernflow.cli.features import BASE, FEATURES
from bernflow.errors import BernflowError
from bernflow.models.stan.toolchain import NO_HTTPSTAN

PROJECT = Path(bernflow.__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Compile no Stan program, and count how often one would be."""
    calls = []
    monkeypatch.setattr(doctor, "check_compiler", lambda progress: calls.append(progress))
    return calls


def run(capsys, *words):
    code = main(["doctor", *words])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


def test_findings_as_text_and_as_json(capsys):
    code, out = run(capsys)
    assert code == 0
    for word in ("bernflow ", "jax ", "arviz-base", "httpstan", "Devices", "x64", "stanc", "compiler", "Features"):
        assert word in out
    code, out = run(capsys, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["packages"]["jax"] == jax.__version__
    assert found["jax"]["x64"] is False
    assert found["jax"]["devices"][0]["platform"] == jax.devices()[0].platform
    assert {feature["name"] for feature in found["features"]} == {feature.name for feature in FEATURES}


def test_what_is_missing_is_said_with_its_remedy(capsys, monkeypatch):
    def missing(*_):
        raise BernflowError("no compiler: install one.")

    def no_httpstan():
        raise BernflowError(NO_HTTPSTAN)

    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("httpstan", "flax") else real(name))
    monkeypatch.setattr(doctor, "find_compiler", missing)
    monkeypatch.setattr(doctor, "find_stanc", no_httpstan)
    code, out = run(capsys)
    assert code == 0
    assert "needs httpstan, a C++ compiler: pip install 'bernflow[stan]', and a C++ compiler" in out
    assert "needs flax: pip install 'bernflow[networks]'" in out
    assert "no compiler: install one." in out
    assert "a program       not tried" in out


def tools_are_there(monkeypatch):
    monkeypatch.setattr(doctor, "_tool", lambda find: {"command": "tool", "version": "1.0", "problem": None})


def test_a_small_stan_program_is_compiled_unless_that_is_declined(capsys, monkeypatch, compiled):
    tools_are_there(monkeypatch)
    assert "a program       compiled, evaluated, and its errors are caught" in run(capsys)[1]
    assert len(compiled) == 1
    assert "a program       not tried" in run(capsys, "--no-compile")[1]
    assert len(compiled) == 1
    assert json.loads(run(capsys, "--json")[1])["stan_program"] == {"tried": True, "problem": None}


@pytest.mark.parametrize("kind", [BernflowError, ModuleNotFoundError, OSError])
def test_a_stan_program_that_crashes_is_reported(capsys, monkeypatch, kind):
    def crash(progress):
        raise kind("The library crashed: set CXX.")

    tools_are_there(monkeypatch)
    monkeypatch.setattr(doctor, "check_compiler", crash)
    code, out = run(capsys)
    assert code == 0
    assert "a program       fails, see below" in out
    assert "needs a working C++ compiler" in out.replace("httpstan, ", "")
    assert out.endswith("\nThe library crashed: set CXX.\n")


def test_versions_that_are_too_old_are_found(capsys, monkeypatch):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "0.1" if name == "jax" else real(name))
    assert "bernflow needs jax >=" in run(capsys)[1]


def test_devices_that_do_not_answer_are_no_reason_to_fail(capsys, monkeypatch):
    def broken():
        raise RuntimeError("no driver")

    monkeypatch.setattr(doctor.jax, "devices", broken)
    assert "JAX finds none: no driver" in run(capsys)[1]


@pytest.mark.parametrize(
    ("mode", "private", "words"),
    [
        (0o700, True, "writable, private"),
        (0o755, False, "others can read it"),
        (0o777, False, "others can write to it"),
    ],
)
def test_folders_are_examined_and_not_made(capsys, tmp_path, monkeypatch, mode, private, words):
    monkeypatch.setenv("BERNFLOW_CACHE", str(tmp_path))
    assert "created on first use" in run(capsys)[1]
    assert not (tmp_path / "stan").exists()
    (tmp_path / "stan").mkdir()
    (tmp_path / "stan").chmod(mode)
    assert words in run(capsys)[1]
    assert json.loads(run(capsys, "--json")[1])["folders"][0]["private"] is private


def test_a_user_without_a_home_is_told(capsys, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(doctor, "default_folder", homeless)
    assert "Could not determine home directory." in run(capsys)[1]


@pytest.mark.skipif(not PROJECT.is_file(), reason="not a source tree")
def test_every_extra_is_a_feature_with_its_packages():
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = {name: parts for name, parts in project["optional-dependencies"].items() if name not in ("dev", "docs")}
    packages = {name: {part.split(">=")[0].split("[")[0] for part in parts} for name, parts in extras.items()}
    assert {feature.extra: set(feature.packages) for feature in FEATURES} == packages
    required = {part.split(">=")[0].split("[")[0] for part in project["dependencies"]}
    assert set(BASE) - {"jaxlib"} <= required
