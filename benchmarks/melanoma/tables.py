"""The small tables of the melanoma experiment, shipped with the package: the data of M2 and the paper's results.

Example:
    >>> train, test = load_m2()
    >>> len(train.age), len(test.age), int(train.target.sum())
    (21200, 6626, 377)
"""

import functools
import io
from importlib import resources
from typing import NamedTuple

import numpy as np


class Ages(NamedTuple):
    """Age of the patient, standardized within its part of the data, and outcome (1: melanoma), one row per image."""

    age: np.ndarray
    target: np.ndarray


class PaperDraws(NamedTuple):
    """The paper's NUTS draws of M2: logit P(melanoma) = beta0 + beta * age.

    Attributes:
        beta: slope, every tenth of 20,000 draws.
        beta0: intercept, likewise.
        mean: means of slope and intercept over all draws.
        sd: their standard deviations over all draws.
    """

    beta: np.ndarray
    beta0: np.ndarray
    mean: np.ndarray
    sd: np.ndarray


class Density(NamedTuple):
    """A density on a grid."""

    x: np.ndarray
    density: np.ndarray


@functools.cache
def load_m2() -> tuple[Ages, Ages]:
    """Return the training data (21,200 rows) and the test data (6,626 rows) of M2, in the paper's order."""
    stored = _read("melanoma_m2")
    train, test = (Ages(stored[f"{part}_age"], stored[f"{part}_target"]) for part in ("train", "test"))
    return train, test


@functools.cache
def load_m2_draws() -> PaperDraws:
    """Return the paper's NUTS draws of M2."""
    stored = _read("melanoma_reference")
    return PaperDraws(*(stored[name] for name in PaperDraws._fields))


@functools.cache
def load_m3_density() -> Density:
    """Return the paper's density of the slope of age in M3."""
    stored = _read("melanoma_reference")
    return Density(stored["slope"], stored["density"])


def _read(name: str) -> dict[str, np.ndarray]:
    file = resources.files("benchmarks") / "data" / f"{name}.npz"
    with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files if key != "source"}
    for key, array in arrays.items():
        if array.dtype == np.float32:
            array = arrays[key] = array.astype(np.float64)
        # Loaders are cached, so a caller that wrote into the array would change it for everybody.
        array.setflags(write=False)
    return arrays
