"""Every suite runs, at a scale that shows only that; the larger ones have tests of their own."""

import importlib
import json
import pkgutil

import pytest

import benchmarks
from benchmarks.commands.benchmark import SUITES
from benchmarks.posteriordb.reference import find_folder
from bernflow.cli import main
from bernflow.errors import ArgumentError

MODULES = [m.name for m in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.") if not m.name.endswith("__main__")]
# Words after `bernflow benchmark`, and the file that a suite writes.
TINY = {
    "exactness": ("--models beta-binomial --keys 1 --steps 20", "exactness.json"),
    "nuts": ("--targets eight-schools-noncentered --methods", "nuts.json"),
    "posteriordb": ("--names earnings-logearn_interaction", "posteriordb.json"),
    "semistructured": ("--batch 2 --steps 1 --rounds 1 --particles 2", "figures.json"),
    "stan": ("--models eight-schools-noncentered --rounds 1 --steps 10", "stan.json"),
    "stopping": ("--targets bernoulli --keys 1", "stopping.json"),
}
# More than ten seconds.
SLOW = ("posteriordb", "semistructured", "stan")
# Tests of these run their parts: test_suite.py of their folders.
TESTED_ELSEWHERE = {"accuracy", "speed", "models", "adversarial"}


def test_every_suite_is_run():
    assert {suite.name for suite in SUITES} == set(TINY) | TESTED_ELSEWHERE


def test_every_module_can_be_imported():
    assert len(MODULES) > 100
    for name in MODULES:
        if name not in ("benchmarks.mutation", "benchmarks.speed.tensorflow_flow"):  # which need another package
            importlib.import_module(name)


def test_every_suite_is_a_module_too():
    for name in TINY:
        module = importlib.import_module(f"benchmarks.{name}.__main__")
        assert f"bernflow benchmark {name}`" in module.__doc__


@pytest.mark.filterwarnings("ignore:bernflow")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else []) for n in TINY])
def test_a_suite_runs(name, tmp_path, capsys):
    if name == "stan":
        pytest.importorskip("httpstan")
    if name == "posteriordb":
        try:
            find_folder(None)
        except ArgumentError:
            pytest.skip("posteriordb is not here")
    words, file = TINY[name]
    words = words.split() + (["poor fit", "--keys", "1", "--num", "20"] if name == "nuts" else [])
    out = tmp_path / file if name == "semistructured" else tmp_path
    assert main(["benchmark", name, *words, "--out", str(out)]) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / file).read_text())
    assert capsys.readouterr().out
