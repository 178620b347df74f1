"""Fits beside other users of JAX: order and settings change neither their results nor those of others.

Every combination runs in a new process, by `neighbours.py`. Its cells (a front end and a kind of data each) have
functions and arrays of their own; the neighbour runs on the functions and arrays that are fitted.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from bernflow.models.stan.toolchain import COMPILERS

PROGRAM = Path(__file__).parent / "neighbours.py"
NUMPYRO = ("NumPyro arguments", "NumPyro closure")
OTHERS = {
    "bf.Model": (("bf.Model arguments", "bf.Model closure"), ("numpy", "jax64")),
    "from_log_density": (("from_log_density",), ("numpy", "jax64")),
    "from_pymc": (("from_pymc",), ("numpy",)),
}
KINDS = ("numpy", "list", "jax32", "jax64")
BOTH = ("float64", "float32")
NEIGHBOURS = ("NUTS", "SVI", "jitted function", "PyMC", "blackjax", "float32 fit", "float64 fit", "Stan fit")
NEEDS = {"PyMC": "pymc", "from_pymc": "pymc", "blackjax": "blackjax", "Stan fit": "httpstan"}
SETTINGS = (
    "jax_enable_x64",
    "numpyro.enable_x64",
    "two devices",
    "JAX_PLATFORMS",
    "jax_debug_nans",
    "jax_transfer_guard",
)


def exact():
    """Return mean and standard deviation of the posterior, and the log evidence, with the data of the program."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=20)
    y = 0.5 * x + rng.normal(size=20)
    variance = 1 / (1 + x @ x)
    evidence = scipy.stats.multivariate_normal(np.zeros(20), np.eye(20) + np.outer(x, x)).logpdf(y)
    return variance * (x @ y), np.sqrt(variance), evidence


def run(neighbour, order, fronts, kinds, precisions=BOTH, setting="none"):
    """Return what the program prints: one dictionary for every front end and kind of data."""
    for name in (neighbour, *fronts):
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            pytest.skip(f"{NEEDS[name]} is not installed")
    if neighbour == "Stan fit" and not os.environ.get("CXX") and not any(map(shutil.which, COMPILERS)):
        pytest.skip("there is no C++ compiler")
    spec = {"neighbour": neighbour, "order": order, "fronts": fronts, "kinds": kinds, "precisions": precisions}
    done = subprocess.run(
        [sys.executable, PROGRAM, json.dumps(spec | {"setting": setting})],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | ({"JAX_PLATFORMS": "cpu"} if setting == "JAX_PLATFORMS" else {}),
    )
    assert done.returncode == 0, done.stderr
    cells = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(cells) == len(fronts) * len(kinds)
    return cells


def check(cells):
    mean, sd, log_evidence = exact()
    for cell in cells:
        where = f"{cell['front']}, {cell['kind']}"
        for fit in cell["fits"]:
            # 40,000 draws: five standard errors, which all cells share since their draws have the same noise.
            assert fit["mean"] == pytest.approx(mean, abs=5 * sd / 200), where
            assert fit["sd"] == pytest.approx(sd, abs=5 * sd / 283), where
            # The flow contains the posterior, so that the importance weights are constant up to rounding.
            assert fit["log_evidence"] == pytest.approx(log_evidence, abs=1e-5), where
            assert fit["precision"] == fit["asked"], where
        (first, _), (again, usual), (last, compiled) = cell["runs"]
        assert first == again == last, where
        assert compiled <= usual, f"{where}: compiled anew after the fits"
        if first is not None:
            # 300 correlated draws or 500 steps; five standard errors of 100 independent draws.
            assert first[0] == pytest.approx(mean, abs=5 * sd / 10), where
            assert first[1] == pytest.approx(sd, abs=5 * sd / 14), where


@pytest.mark.parametrize(
    ("neighbour", "order", "fronts", "kinds"),
    [
        ("NUTS", "before", ("NumPyro arguments",), ("numpy",)),
        ("float64 fit", "before", ("NumPyro closure",), ("jax64",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_neighbour(neighbour, order, fronts, kinds):
    check(run(neighbour, order, fronts, kinds))


def test_settings_of_the_user():
    for setting in ("jax_transfer_guard", "jax_debug_nans"):
        check(run("jitted function", "before", ("NumPyro closure",), ("numpy",), setting=setting))


@pytest.mark.slow
@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("front", ["NumPyro", *OTHERS])
def test_order_does_not_matter(neighbour, front):
    """Every neighbour before and after every front end; and its results do not depend on when it runs."""
    fronts, kinds = OTHERS.get(front, (NUMPYRO, KINDS))
    before = run(neighbour, "before", fronts, kinds)
    # The first and the last kind are those in double precision.
    ends = kinds[:: max(1, len(kinds) - 1)]
    after = run(neighbour, "after", fronts, ends, precisions=BOTH[::-1])
    check(before)
    check(after)
    results = [[cell["runs"][0][0] for cell in cells if cell["kind"] in ends] for cells in (before, after)]
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("neighbour", ["nothing", *NEIGHBOURS])
def test_settings_do_not_matter(neighbour, setting):
    check(run(neighbour, "before", (*NUMPYRO, "from_log_density"), ("numpy",), setting=setting))


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_do_not_matter_to_other_models(setting):
    check(run("jitted function", "after", ("from_pymc", "bf.Model arguments"), ("numpy",), setting=setting))


@pytest.mark.slow
@pytest.mark.parametrize("front", ["NumPyro", *OTHERS])
@pytest.mark.parametrize("precision", BOTH)
def test_nothing_beside_a_fit(front, precision):
    fronts, kinds = OTHERS.get(front, (NUMPYRO, KINDS))
    check(run("nothing", "before", fronts, kinds, precisions=(precision,)))
