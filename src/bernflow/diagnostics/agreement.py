"""How well draws agree with reference draws: means and standard deviations within their Monte Carlo errors.

A column agrees where both hold, with sd that of the reference and tolerance in units of it:

    |mean - reference mean| <= num_errors * sqrt(se^2 + se_reference^2) + tolerance * sd,
    |sd - reference sd|     <= num_errors * sqrt(se^2 + se_reference^2) + tolerance * sd.

With four errors and normal estimates, one of 16,000 correct figures is refused. The standard errors of chains come from
their effective sample size, those of independent draws from their number.
Draws whose standard errors exceed `MAX_ERROR` sd agree with nothing: chains that have not met would agree with all.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from arviz_stats.base import array_stats

from bernflow.errors import ArgumentError

NUM_ERRORS = 4.0
MAX_ERROR = 0.1


@dataclasses.dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of one column with their Monte Carlo standard errors."""

    mean: float
    mean_se: float
    sd: float
    sd_se: float


@dataclasses.dataclass(frozen=True)
class Difference:
    """One column against the reference, in units of the reference's standard deviation.

    Attributes:
        name: the column.
        mean_error: (mean - reference mean) / sd.
        mean_se: combined standard error of that.
        sd_error: (sd - reference sd) / sd.
        sd_se: combined standard error of that.
        agrees: whether both are within the allowance, and known well enough to tell.
    """

    name: str
    mean_error: float
    mean_se: float
    sd_error: float
    sd_se: float
    agrees: bool


@dataclasses.dataclass(frozen=True)
class Agreement:
    """All columns of a posterior against the reference.

    Attributes:
        columns: one difference per column.
        num_errors: number of combined standard errors allowed.
        tolerance: what is allowed on top, in units of the reference's standard deviation.
    """

    columns: tuple[Difference, ...]
    num_errors: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether every column agrees."""
        return all(c.agrees for c in self.columns)

    def within(self, mean: float, sd: float) -> bool:
        """Whether all errors are within the Monte Carlo error plus `mean` and `sd`, in units of the reference's sd.

        Unlike `agrees`, a column that is known too badly to tell counts as within.
        """
        return all(
            abs(c.mean_error) <= self.num_errors * c.mean_se + mean
            and abs(c.sd_error) <= self.num_errors * c.sd_se + sd
            for c in self.columns
        )

    @property
    def worst_mean(self) -> Difference:
        """The column whose mean is farthest off."""
        return max(self.columns, key=lambda c: _size(c.mean_error))

    @property
    def worst_sd(self) -> Difference:
        """The column whose standard deviation is farthest off."""
        return max(self.columns, key=lambda c: _size(c.sd_error))

    def __str__(self) -> str:
        mean, sd = self.worst_mean, self.worst_sd
        failing = [c.name for c in self.columns if not c.agrees]
        return (
            f"{'agrees' if self.agrees else 'disagrees in ' + ', '.join(failing)}: worst mean {mean.name} off by "
            f"{mean.mean_error:+.4f} sd (se {mean.mean_se:.4f}), worst sd {sd.name} off by {sd.sd_error:+.4f} "
            f"(se {sd.sd_se:.4f}); allowed {self.num_errors:g} se + {self.tolerance:g}"
        )


def compare(
    draws: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    tolerance: float = 0.0,
    num_errors: float = NUM_ERRORS,
    num_effective: float | None = None,
    reference_num_effective: float | None = None,
) -> Agreement:
    """Compare draws with reference draws, column by column.

    Args:
        draws: one array per column: (num,) independent draws, or (chains, draws) of a Markov chain.
        reference: likewise; its columns are the ones compared.
        tolerance: allowance on top of the Monte Carlo error, in units of the reference's standard deviation.
        num_errors: number of combined standard errors allowed.
        num_effective: number of independent draws that `draws` are worth, where they repeat each other.
        reference_num_effective: likewise for the reference.
    """
    missing = sorted(set(reference) - set(draws))
    if missing:
        raise ArgumentError(
            f"The draws lack the columns {', '.join(missing)} of the reference; got {', '.join(draws)}."
        )
    moments_of = [
        (name, moments(draws[name], num_effective), moments(values, reference_num_effective))
        for name, values in reference.items()
    ]
    return Agreement(tuple(_compare(*both, tolerance, num_errors) for both in moments_of), num_errors, tolerance)


def moments(values: np.ndarray, num_effective: float | None = None) -> Moments:
    """Estimate mean and standard deviation with their errors; (num,) independent draws or (chains, draws)."""
    values = np.asarray(values, np.float64)
    if values.ndim not in (1, 2) or values.size < 100:
        raise ArgumentError(
            f"A column of draws has shape {values.shape}: expected (num,) independent draws or (chains, draws), at "
            "least 100 in all."
        )
    if not np.isfinite(values).all():
        return Moments(*[float("nan")] * 4)
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    # The delta method: the error of the variance is that of a mean of squares. Chains of NUTS have many more effective
    # draws for a mean than for squares, so that each needs its own count.
    squares = (values - mean) ** 2
    sd_se = _mean_error(squares, num_effective) / (2 * sd) if sd > 0 else 0.0
    return Moments(mean, _mean_error(values, num_effective), sd, sd_se)


def _mean_error(values: np.ndarray, num: float | None) -> float:
    """Return the standard error of a mean of independent draws (num,) or chains (chains, draws)."""
    return float(np.std(values) / np.sqrt(effective_number(values) if num is None else num))


def effective_number(values: np.ndarray) -> float:
    """Return the number of independent draws (num,), or the effective one of chains (chains, draws) for their mean."""
    return float(values.size if values.ndim == 1 else array_stats.ess(values, method="mean"))


def _compare(name: str, ours: Moments, theirs: Moments, tolerance: float, num_errors: float) -> Difference:
    scale = theirs.sd
    mean_error, sd_error = (ours.mean - theirs.mean) / scale, (ours.sd - theirs.sd) / scale
    mean_se = float(np.hypot(ours.mean_se, theirs.mean_se)) / scale
    sd_se = float(np.hypot(ours.sd_se, theirs.sd_se)) / scale
    agrees = (
        abs(mean_error) <= num_errors * mean_se + tolerance
        and abs(sd_error) <= num_errors * sd_se + tolerance
        and max(mean_se, sd_se) <= MAX_ERROR
    )
    return Difference(name, mean_error, mean_se, sd_error, sd_se, bool(agrees))


def _size(error: float) -> float:
    return float("inf") if np.isnan(error) else abs(error)
