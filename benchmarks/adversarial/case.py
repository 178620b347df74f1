"""One posterior with its exact means and standard deviations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

# An error of a mean in standard deviations, and a relative one of a standard deviation, that make a fit wrong.
MEAN_LIMIT, SD_LIMIT = 0.1, 0.1
# Errors count beyond so many Monte Carlo standard errors of the draws.
NUM_SE = 3.0


class Moments(NamedTuple):
    """Exact means and standard deviations of the values of a site, flat."""

    mean: Float[np.ndarray, " n"]
    sd: Float[np.ndarray, " n"]


@dataclass(frozen=True)
class Case:
    """One posterior.

    Attributes:
        name: unique.
        family: what cases of one kind have in common.
        build: returns the model and its arguments.
        truth: exact moments by site, of its log where the name begins with "log "; None where the posterior is not
            proper.
        num_keys: fits by default, each with a key of its own; 1 in families of many cases.
    """

    name: str
    family: str
    build: Callable[[], tuple[Any, tuple[Any, ...]]]
    truth: dict[str, Moments] | None
    num_keys: int = 3

    @property
    def is_proper(self) -> bool:
        """Whether there is a posterior."""
        return self.truth is not None


class Errors(NamedTuple):
    """Largest errors over all parameters, less what may be Monte Carlo error."""

    mean: float
    sd: float

    @property
    def wrong(self) -> bool:
        """Whether a mean or a standard deviation is off."""
        return not (self.mean <= MEAN_LIMIT and self.sd <= SD_LIMIT)


def errors_of(draws: dict[str, Any], truth: dict[str, Moments]) -> Errors:
    """Compare draws with the truth."""
    worst_mean, worst_sd = 0.0, 0.0
    for name, exact in truth.items():
        site = name.removeprefix("log ")
        values = np.asarray(draws[site], np.float64)
        values = values.reshape(len(values), -1)
        values = np.log(values) if name != site else values
        mean, sd, num = np.mean(values, 0), np.std(values, 0), len(values)
        mean_error = np.abs(mean - exact.mean) / exact.sd
        mean_se = sd / exact.sd / np.sqrt(num)
        # Of a standard deviation, by the fourth moment of the draws.
        scaled = (values - mean) / np.maximum(sd, np.finfo(float).tiny)
        sd_se = np.sqrt(np.maximum(np.mean(scaled**4, 0) - 1.0, 0.0) / (4 * num)) * sd / exact.sd
        sd_error = np.abs(sd / exact.sd - 1.0)
        worst_mean = max(worst_mean, float(np.max(mean_error - NUM_SE * mean_se)))
        worst_sd = max(worst_sd, float(np.max(sd_error - NUM_SE * sd_se)))
    return Errors(worst_mean, worst_sd)
