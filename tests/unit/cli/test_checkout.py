"""Commands that run the repository's package `benchmarks`: found in a checkout, else explained."""

import runpy
import sys
from pathlib import Path

import pytest

import bernflow
from bernflow.cli import checkout, main

ROOT = Path(bernflow.__file__).parents[2]


def test_the_commands_are_those_of_the_package():
    from benchmarks.commands import COMMANDS

    assert checkout.commands() == COMMANDS
    assert {command.name: command.summary for command in COMMANDS} == checkout.SUMMARIES


@pytest.fixture
def installed(monkeypatch):
    """The library as it lies in site-packages, without the checkout."""
    monkeypatch.setattr(checkout, "_beside_the_source", lambda: iter(()))
    monkeypatch.setattr(checkout, "_importable", lambda: iter(()))


def test_without_a_checkout_a_command_says_where_it_is(capsys, tmp_path, monkeypatch, installed):
    monkeypatch.chdir(tmp_path)
    for words in (["reproduce", "cauchy", "--quick"], ["benchmark", "speed"], ["data"]):
        assert main(words) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert f"`bernflow {words[0]}` needs the package benchmarks" in err
        assert "git clone https://github.com/bernflow/bernflow" in err
        assert main([words[0], "--help"]) == 0
        assert "part of the repository" in capsys.readouterr().out


def test_a_checkout_in_the_current_folder_is_found(capsys, monkeypatch, installed):
    monkeypatch.chdir(ROOT)
    assert main(["reproduce", "--list"]) == 0
    assert "khat-table" in capsys.readouterr().out


def test_other_commands_run_no_code_of_the_current_folder(tmp_path, monkeypatch, installed):
    folder = tmp_path / "benchmarks" / "commands"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent):
        (place / "__init__.py").write_text("raise SystemExit('this ran')")
    monkeypatch.chdir(tmp_path)
    assert checkout.find_root() == tmp_path
    assert checkout.commands("report") == checkout.commands("") == checkout.STAND_INS


def test_another_package_of_that_name_is_not_taken(tmp_path, monkeypatch):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    monkeypatch.setattr(checkout, "_beside_the_source", lambda: iter(()))
    monkeypatch.setattr(
        checkout,
        "find_spec",
        lambda name: type("Spec", (), {"submodule_search_locations": [str(tmp_path / "benchmarks")]}),
    )
    monkeypatch.chdir(tmp_path)
    assert checkout.find_root() is None
    assert checkout.commands("reproduce") == checkout.STAND_INS


def test_the_package_runs_as_a_module(capsys, monkeypatch):
    for module, words in (("benchmarks", ["benchmark", "speed", "--list"]), ("benchmarks.nuts", ["--help"])):
        monkeypatch.setattr(sys, "argv", [module, *words])
        # runpy warns where another test has imported what it is about to run.
        monkeypatch.delitem(sys.modules, f"{module}.__main__", raising=False)
        with pytest.raises(SystemExit, match="0"):
            runpy.run_module(module, run_name="__main__")
    out = capsys.readouterr().out
    assert "roofline" in out
    assert "usage: bernflow benchmark nuts" in out
