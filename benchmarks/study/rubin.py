"""Rubin's rules: one estimate and one interval from several repetitions, each with its own error."""

from typing import NamedTuple

import numpy as np
from scipy.stats import t


class Pooled(NamedTuple):
    """A pooled estimate with the ends of its interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        if not np.isfinite(self.estimate):
            return "∞"
        return f"{self.estimate:.2f} ({self.low:.2f}, {self.high:.2f})"


def pool(estimates: np.ndarray, variances: np.ndarray, level: float = 0.9) -> Pooled:
    """Pool repetitions: total variance = mean variance within + (1 + 1/m) variance between.

    Args:
        estimates: one estimate per repetition, (m,).
        variances: its own variance, (m,).
        level: coverage of the interval.

    Example:
        >>> pooled = pool(np.array([0.4, 0.6]), np.array([0.01, 0.01]))
        >>> round(pooled.estimate, 2)
        0.5
    """
    estimates, variances = np.asarray(estimates, np.float64), np.asarray(variances, np.float64)
    num = estimates.size
    center = float(np.mean(estimates))
    if not np.all(np.isfinite(estimates)):
        return Pooled(float("inf"), float("nan"), float("nan"))
    within = float(np.mean(variances))
    between = float(np.var(estimates, ddof=1)) * (1.0 + 1.0 / num) if num > 1 else 0.0
    if not np.isfinite(within):
        within = 0.0  # where no bootstrap could be had the spread of the repetitions has to do
    total = within + between
    freedom = (num - 1) * (1.0 + within / between) ** 2 if between > 0.0 else np.inf
    half = float(t.ppf(0.5 + level / 2.0, freedom)) * np.sqrt(total)
    return Pooled(center, center - half, center + half)
