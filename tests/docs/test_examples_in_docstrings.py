"""Every example in a docstring runs and shows what it says it shows."""

import doctest
import importlib
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf

SOURCE = Path(bf.__file__).parent
MODULES = sorted(
    ".".join(("bernflow", *path.relative_to(SOURCE).with_suffix("").parts))
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
# Modules whose examples need an optional package.
NEEDS = {
    "bernflow.models.pymc.convert": "pymc",
    "bernflow.flows.external": "flowjax",
    "bernflow.semistructured.estimator": "formulaic",
}
# Modules whose examples train for long; pages of the documentation do the same in the fast suite.
SLOW = {"bernflow.experiments.melanoma.cnn", "bernflow.numpyro.guide", "bernflow.semistructured.estimator"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


@pytest.fixture(scope="module")
def names():
    """What docs/reference/index.md says that examples take for granted."""
    y = np.array([0.3, 0.7, 1.1])
    return {"np": np, "bf": bf, "model": model, "y": y, "post": bf.fit(model, y, progress=False)}


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODULES]
)
def test_examples_of(module, names, tmp_path, monkeypatch):
    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    monkeypatch.chdir(tmp_path)
    examples = [
        test
        for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module), extraglobs=names)
        if test.examples
    ]
    assert examples
    text = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in examples:
        runner.run(test, out=text.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(text)
