"""Mean, standard deviation and quantiles of draws: the figures of every table."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

# A correlation matrix from a float32 Cholesky factor has a diagonal of 1 within rounding.
ROUNDING = 1e-6


def is_constant(values: Float[np.ndarray, " num"]) -> bool:
    """Tell whether all draws are equal, or equal to 1 within rounding, as on the diagonal of a correlation matrix.

    Example:
        >>> is_constant(np.array([1.0, 1.0 - 1e-7])), is_constant(np.array([2e5, 2e5 + 0.1]))
        (True, False)
    """
    return bool(np.all(values == values[0]) or np.all(np.abs(values - 1.0) <= ROUNDING))


def summarize(values: Float[np.ndarray, " num"], quantiles: Sequence[float]) -> tuple[float, ...]:
    """Return mean, sd and the given quantiles, in double precision; the sd of one draw is not a number.

    Example:
        >>> summarize(np.arange(5.0), (0.5,))
        (2.0, 1.5811388300841898, 2.0)
    """
    values = np.asarray(values, np.float64)
    if len(values) > 1 and is_constant(values):
        values = np.full_like(values, 1.0 if abs(values[0] - 1.0) <= ROUNDING else values[0])
    with np.errstate(all="ignore"):  # draws that are not finite have no such figures, which the figures say themselves
        sd = values.std(ddof=1) if len(values) > 1 else np.nan
        return (float(values.mean()), float(sd), *map(float, np.quantile(values, quantiles)))


def errors(values: Float[np.ndarray, " num"], num_effective: float | None = None) -> tuple[float, float]:
    """Return the Monte Carlo standard errors of mean and sd, from the second and fourth moment of the draws.

    Args:
        values: the draws.
        num_effective: number of independent draws that they are worth; None: all of them.

    Example:
        >>> tuple(round(error, 4) for error in errors(np.random.default_rng(0).normal(size=10_000)))
        (0.01, 0.007)
    """
    values = np.asarray(values, np.float64)
    num = len(values) if num_effective is None else num_effective
    with np.errstate(all="ignore"):
        center = values - values.mean()
        variance, fourth = np.mean(center**2), np.mean(center**4)
        sd_error = np.sqrt(max(fourth - variance**2, 0.0) / num) / (2.0 * np.sqrt(variance))
        return float(np.sqrt(variance / num)), float(sd_error if variance > 0.0 else 0.0)
