"""PyMC's transforms: from the support of a variable to R^k."""

from typing import Any

import numpy as np


def unconstraining(rv: Any, transform: Any) -> Any:
    """Return a transform of a variable to all of R^k, or None where its values are there already.

    PyMC's own, with two exceptions. A variable whose default transform the user turned off gets it back. An angle is
    mapped from (-pi, pi): PyMC lets it run around the circle, where a density on R repeats itself without end.
    """
    from pymc.distributions.transforms import Interval, _default_transform
    from pymc.logprob.transforms import CircularTransform

    if transform is None:
        transform = _default_transform(rv.owner.op, rv)
    return Interval(-np.pi, np.pi) if isinstance(transform, CircularTransform) else transform


def is_half_line(rv: Any, transform: Any) -> bool:
    """Tell whether a transform maps from half lines that begin at a lower bound."""
    from pymc.distributions.transforms import LogExpM1
    from pymc.logprob.transforms import IntervalTransform, LogTransform

    if isinstance(transform, IntervalTransform):
        lower, upper = transform.args_fn(*rv.owner.inputs)
        return lower is not None and upper is None
    return isinstance(transform, LogTransform | LogExpM1)
