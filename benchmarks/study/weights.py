"""What the log weights of a fit say of its KL; apart from all that fits, which no figure of other libraries needs."""

import numpy as np


def largest_share(log_weights: np.ndarray) -> float:
    """Return the share of one draw in the spread of all log weights, which is that in a KL of a heavy-tailed fit.

    A KL that rests on a single draw in thousands says little about the next thousands.

    Example:
        >>> round(largest_share(np.array([0.0, -0.1, 0.1, -9.8])), 2)
        0.97
    """
    away = np.abs(log_weights - np.median(log_weights))
    return float(np.max(away) / np.sum(away)) if np.all(np.isfinite(away)) and np.any(away) else float("nan")
