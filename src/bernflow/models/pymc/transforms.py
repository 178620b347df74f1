"""PyMC's transforms from the support of a variable to R^k."""

from typing import Any

import numpy as np


def unconstraining(rv: Any, transform: Any) -> Any:
    """Return a transform of a variable to R^k, or None if its support is R^k.

    The transforms are PyMC's with two exceptions: a default transform that the user disabled is restored, and an angle
    is mapped from (-pi, pi), because under PyMC's circular transform the density on R is periodic and improper.
    """
    from pymc.distributions.transforms import Interval, _default_transform
    from pymc.logprob.transforms import CircularTransform

    if transform is None:
        transform = _default_transform(rv.owner.op, rv)
    return Interval(-np.pi, np.pi) if isinstance(transform, CircularTransform) else transform


def is_half_line(rv: Any, transform: Any) -> bool:
    """Tell whether a transform maps from a half line with a lower bound."""
    from pymc.distributions.transforms import LogExpM1
    from pymc.logprob.transforms import IntervalTransform, LogTransform

    if isinstance(transform, IntervalTransform):
        lower, upper = transform.args_fn(*rv.owner.inputs)
        return lower is not None and upper is None
    return isinstance(transform, LogTransform | LogExpM1)
