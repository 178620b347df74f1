"""The data of the paper's experiments, shipped with the package.

Every loader returns NumPy arrays in double precision; JAX converts them to the precision in force where they
are used. Small data sets are JSON files that say where they come from. The diamonds are posteriordb's design
matrix (5,000 rows, 25 columns with the leading ones), compressed.

Example:
    >>> from benchmarks.data import load_eight_schools
    >>> y, sigma = load_eight_schools()
    >>> y.shape
    (8,)
"""

import functools
import io
import json
from importlib import resources

import numpy as np

FloatArray = np.ndarray


@functools.cache
def load_bernoulli() -> FloatArray:
    """Return the two observations, both 1."""
    return _frozen(_read_json("bernoulli")["y"])


@functools.cache
def load_cauchy() -> tuple[FloatArray, float]:
    """Return the six observations and the known scale."""
    data = _read_json("cauchy")
    return _frozen(data["y"]), float(data["scale"])


@functools.cache
def load_toy_regression() -> tuple[FloatArray, FloatArray]:
    """Return predictors (6, 2), strongly correlated, and outcomes (6,)."""
    data = _read_json("toy_regression")
    return _frozen(data["x"]), _frozen(data["y"])


@functools.cache
def load_eight_schools() -> tuple[FloatArray, FloatArray]:
    """Return the estimated effects and their standard errors, (8,) each."""
    data = _read_json("eight_schools")
    return _frozen(data["y"]), _frozen(data["sigma"])


@functools.cache
def load_nn_regression() -> tuple[FloatArray, FloatArray, float]:
    """Return nine inputs, nine outcomes and the known noise scale."""
    data = _read_json("nn_regression")
    return _frozen(data["x"]), _frozen(data["y"]), float(data["sigma"])


@functools.cache
def load_diamonds() -> tuple[FloatArray, FloatArray]:
    """Return the centered predictors (5000, 24) and the outcomes (5000,).

    The published Stan program (made by brms) centers every column but the leading ones before it uses them.
    The intercept of the model is therefore the expected outcome of an average diamond.
    """
    file = resources.files("benchmarks") / "data" / "diamonds.npz"
    with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as stored:
        x, y = stored["x"][:, 1:], stored["y"]
    return _frozen(x - x.mean(axis=0)), _frozen(y)


@functools.cache
def load_diamonds_reference() -> dict[str, FloatArray]:
    """Return every fifth of posteriordb's 10,000 reference draws: b (2000, 24), Intercept and sigma (2000,)."""
    file = resources.files("benchmarks") / "data" / "diamonds_reference.npz"
    with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as stored:
        return {name: _frozen(stored[name]) for name in stored.files}


@functools.cache
def load_paper_cauchy_kl() -> dict[str, dict[int, FloatArray]]:
    """Return the paper's own KL of the Cauchy ablation: by transformation (f1, f2, f3) and order, 20 seeds each."""
    data = _read_json("paper_cauchy_kl")
    return {f: {int(order): _frozen(kl) for order, kl in data[f].items()} for f in ("f1", "f2", "f3")}


@functools.cache
def load_paper_nn_quantiles() -> dict[str, FloatArray]:
    """Return the paper's own predictive quantiles of the small network by MCMC: x, mean, q05, q50, q95."""
    data = _read_json("paper_nn_quantiles")
    return {name: _frozen(data[name]) for name in ("x", "mean", "q05", "q50", "q95")}


def _read_json(name: str) -> dict:
    file = resources.files("benchmarks") / "data" / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def _frozen(values: object) -> FloatArray:
    # Loaders are cached, so a caller that wrote into the array would change it for everybody.
    array = np.asarray(values, dtype=np.float64).copy()
    array.setflags(write=False)
    return array
