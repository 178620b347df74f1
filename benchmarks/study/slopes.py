"""The slope of a log-log curve until it meets its noise floor."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# A point counts to the slope while it lies at least this many times above the lowest: below, noise decides.
ABOVE_FLOOR = 3.0


class Slope(NamedTuple):
    """log y = intercept + slope log x, fitted between `first` and `last`."""

    slope: float
    intercept: float
    first: float
    last: float


def fit_slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Fit a straight line to log y over log x by least squares, from the first point to the noise floor.

    Example:
        >>> round(fit_slope([1, 10, 100, 1000], [1.0, 0.1, 0.01, 0.01]).slope, 2)
        -1.0
    """
    floor = max(min(y), 1e-12)
    # The first point on the floor ends the line and belongs to it.
    num = next((i + 1 for i, value in enumerate(y) if value <= ABOVE_FLOOR * floor), len(y))
    num = max(num, 2)
    slope, intercept = np.polyfit(np.log(x[:num]), np.log(np.maximum(y[:num], floor)), 1)
    return Slope(float(slope), float(intercept), float(x[0]), float(x[num - 1]))
