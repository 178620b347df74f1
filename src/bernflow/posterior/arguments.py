"""Checks of arguments."""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from bernflow.errors import ArgumentError
from bernflow.target import AbstractLayout


def check_count(value: Any, name: str = "num") -> int:
    """Check that a number of draws or the like is a positive integer, and return it."""
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ArgumentError(f"{name}={value!r}: expected a positive integer.")
    return count


def check_theta(layout: AbstractLayout, theta: Mapping[str, Any], dtype: str) -> tuple[dict[str, np.ndarray], bool]:
    """Return one batch of points per site, and whether a single point was given."""
    values: dict[str, np.ndarray] = {}
    counts: dict[str, int | None] = {}
    for site in layout.sites:
        if site.name not in theta:
            raise ArgumentError(f"theta lacks {site.name!r}: expected all of {', '.join(layout.names)}.")
        value = np.asarray(theta[site.name], dtype=dtype)
        if value.shape == site.shape:
            counts[site.name], value = None, value[None]
        elif value.ndim and value.shape[1:] == site.shape:
            counts[site.name] = len(value)
        else:
            raise ArgumentError(
                f"theta[{site.name!r}] has shape {value.shape}: expected {site.shape} for one point or "
                f"(num, *{site.shape}) for several."
            )
        values[site.name] = value
    if len(set(counts.values())) > 1:
        given = ", ".join(f"{name}: {'one point' if n is None else n}" for name, n in counts.items())
        raise ArgumentError(f"theta has different numbers of points ({given}): expected the same for every name.")
    if 0 in counts.values():
        raise ArgumentError("theta has no points: expected at least one.")
    return values, None in counts.values()
