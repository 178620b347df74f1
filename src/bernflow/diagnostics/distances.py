"""Distances between two samples, for comparing a fit with a trusted reference."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bernflow.errors import ArgumentError


def sliced_wasserstein(a: ArrayLike, b: ArrayLike, num_projections: int = 200, seed: int = 0) -> float:
    """Estimate the sliced Wasserstein-2 distance between two samples.

    The mean over random directions u of the squared one-dimensional distance between u.a and u.b, then its
    square root. The one-dimensional distance integrates the squared difference of the quantile functions.

    Args:
        a: one sample, (num, p).
        b: another, (num', p); num' may differ.
        num_projections: number of random directions.
        seed: seed of the directions.
    """
    a, b = _pair(a, b)
    if num_projections < 1:
        raise ArgumentError(f"num_projections={num_projections}: expected at least 1.")
    directions = np.random.default_rng(seed).normal(size=(a.shape[1], num_projections))
    directions /= np.linalg.norm(directions, axis=0)
    levels = (np.arange(max(len(a), len(b))) + 0.5) / max(len(a), len(b))
    total = 0.0
    # One direction at a time: a (num, num_projections) matrix would not fit for long samples.
    for u in directions.T:
        total += np.mean((_quantiles(a @ u, levels) - _quantiles(b @ u, levels)) ** 2)
    return float(np.sqrt(total / num_projections))


def standardized_errors(draws: ArrayLike, reference: ArrayLike) -> dict[str, Float[np.ndarray, " p"]]:
    """Compare the mean and the sd of every dimension with those of a reference sample.

    Args:
        draws: the sample to judge, (num, p).
        reference: draws that are trusted, (num', p).

    Returns:
        `mean` and `sd`: the difference to the reference in units of the reference's sd, (p,) each.
    """
    draws, reference = _pair(draws, reference)
    scale = reference.std(axis=0, ddof=1)
    if not np.all(scale > 0):
        bad = np.flatnonzero(~(scale > 0)).tolist()
        raise ArgumentError(f"reference is constant in dimensions {bad}: expected a positive sd in each of them.")
    return {
        "mean": (draws.mean(axis=0) - reference.mean(axis=0)) / scale,
        "sd": draws.std(axis=0, ddof=1) / scale - 1.0,
    }


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ArgumentError(
            f"The samples have shapes {a.shape} and {b.shape}: expected (num, p) and (num', p) with the same p and at "
            "least two draws each."
        )
    return a, b


def _quantiles(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    values = np.sort(values)
    if len(values) == len(levels):
        return values
    return np.interp(levels, (np.arange(len(values)) + 0.5) / len(values), values)
