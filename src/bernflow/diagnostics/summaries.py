"""Mean, standard deviation and quantiles of draws: the figures of every table."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def summarize(values: Float[np.ndarray, " num"], quantiles: Sequence[float]) -> tuple[float, ...]:
    """Return mean, sd and the given quantiles, in double precision; the sd of one draw is not a number.

    Example:
        >>> summarize(np.arange(5.0), (0.5,))
        (2.0, 1.5811388300841898, 2.0)
    """
    values = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):  # draws that are not finite have no such figures, which the figures say themselves
        sd = values.std(ddof=1) if len(values) > 1 else np.nan
        return (float(values.mean()), float(sd), *map(float, np.quantile(values, quantiles)))
