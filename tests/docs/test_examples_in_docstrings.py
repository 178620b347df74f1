"""Every example in a docstring runs and shows what it says it shows."""

import doctest
import importlib
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import benchmarks
import bernflow as bf

PACKAGES = (Path(bf.__file__).parent, Path(benchmarks.__file__).parent)
MODULES = sorted(
    ".".join(path.relative_to(package.parent).with_suffix("").parts)
    for package in PACKAGES
    for path in package.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
# Modules whose examples need an optional package.
NEEDS = {
    "bernflow.models.pymc.convert": "pymc",
    "bernflow.flows.external": "flowjax",
    "bernflow.semistructured.estimator": "formulaic",
}
# Examples that compile or train for long, by module or by name; unit tests of the same are in the fast suite.
SLOW = {
    "bernflow.calibrate.api",
    "bernflow.calibrate.result",
    "benchmarks.melanoma.cnn",
    "bernflow.fit.api",
    "bernflow.numpyro.guide",
    "bernflow.plots.calibration",
    "bernflow.posterior.posterior.Posterior.refine",
    "bernflow.posterior.posterior.Posterior.to_nuts",
    "bernflow.semistructured.estimator",
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


@pytest.fixture(scope="module")
def names():
    """What docs/reference/index.md says that examples take for granted."""
    y = np.array([0.3, 0.7, 1.1])
    return {"np": np, "bf": bf, "model": model, "y": y, "post": bf.fit(model, y, progress=False)}


def examples_of(module):
    return [test for test in doctest.DocTestFinder().find(importlib.import_module(module)) if test.examples]


def is_slow(name):
    return any(name == slow or name.startswith(f"{slow}.") for slow in SLOW)


def check(examples, names):
    assert examples
    text = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in examples:
        test.globs.update(names)
        runner.run(test, out=text.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(text)


@pytest.mark.parametrize("module", [name for name in MODULES if not is_slow(name)])
def test_examples_of(module, names, tmp_path, monkeypatch):
    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    monkeypatch.chdir(tmp_path)
    check([test for test in examples_of(module) if not is_slow(test.name)], names)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_slow_examples_of(name, names, tmp_path, monkeypatch):
    module = next(module for module in MODULES if name == module or name.startswith(f"{module}."))
    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    monkeypatch.chdir(tmp_path)
    check([test for test in examples_of(module) if test.name == name or test.name.startswith(f"{name}.")], names)
