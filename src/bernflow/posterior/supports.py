"""Conversion of supports to JSON and back, without executing code."""

from typing import Any

import numpy as np
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from bernflow.errors import ArgumentError, FileFormatError

# Constraints without parameters, by their names in numpyro.distributions.constraints.
PLAIN_CONSTRAINTS = (
    "circular",
    "corr_cholesky",
    "corr_matrix",
    "l1_ball",
    "lower_cholesky",
    "nonnegative",
    "ordered_vector",
    "positive",
    "positive_definite",
    "positive_ordered_vector",
    "positive_semidefinite",
    "real",
    "real_matrix",
    "real_vector",
    "scaled_unit_lower_cholesky",
    "simplex",
    "softplus_lower_cholesky",
    "softplus_positive",
    "unit_interval",
)
# The largest number of axes of a NumPy array.
MAX_AXES = 64
# Constraints with bounds, and the names of the bounds.
BOUNDED = {
    "greater_than": ("lower_bound",),
    "greater_than_eq": ("lower_bound",),
    "less_than": ("upper_bound",),
    "less_than_eq": ("upper_bound",),
    "interval": ("lower_bound", "upper_bound"),
    "open_interval": ("lower_bound", "upper_bound"),
}


def support_to_json(support: Constraint | None) -> dict[str, Any] | None:
    """Convert a support to JSON; None (it depends on other parameters) remains None.

    Example:
        >>> support_to_json(constraints.interval(0.0, 2.0))
        {'kind': 'interval', 'lower_bound': 0.0, 'upper_bound': 2.0}
    """
    if support is None:
        return None
    # Compare exact types: softplus_positive is a subclass of greater_than with another transform.
    for kind in PLAIN_CONSTRAINTS:
        if type(support) is type(getattr(constraints, kind)):
            return {"kind": kind}
    for kind, bounds in BOUNDED.items():
        if type(support) is getattr(constraints, kind):
            return {"kind": kind} | {name: np.asarray(getattr(support, name)).tolist() for name in bounds}
    if type(support) is constraints.independent:
        base = support_to_json(support.base_constraint)
        return {"kind": "independent", "base": base, "num_dims": support.reinterpreted_batch_ndims}
    if type(support) is constraints.zero_sum:
        return {"kind": "zero_sum", "event_dim": support.event_dim}
    raise ArgumentError(
        f"The support {support} cannot be saved: expected one of {', '.join(PLAIN_CONSTRAINTS)}, {', '.join(BOUNDED)}, "
        "independent or zero_sum."
    )


def support_from_json(spec: dict[str, Any] | None) -> Constraint | None:
    """Rebuild a support from its description."""
    if spec is None:
        return None
    kind = spec["kind"]
    if kind in PLAIN_CONSTRAINTS:
        return getattr(constraints, kind)
    if kind in BOUNDED:
        return getattr(constraints, kind)(*_bounds(spec, BOUNDED[kind]))
    if kind == "independent":
        return constraints.independent(support_from_json(spec["base"]), _count(spec, "num_dims"))
    if kind == "zero_sum":
        return constraints.zero_sum(_count(spec, "event_dim"))
    raise FileFormatError(
        f"The file names a support {kind!r} that this bernflow does not know: install a newer bernflow to read it."
    )


def _bounds(spec: dict[str, Any], names: tuple[str, ...]) -> list[float | np.ndarray]:
    """Return finite bounds of a nonempty set."""
    bounds = [_bound(spec[name]) for name in names]
    is_finite = all(np.isfinite(bound).all() for bound in bounds)
    if not is_finite or (len(bounds) == 2 and not np.all(bounds[0] < bounds[1])):
        raise FileFormatError(f"The support {spec} is empty, or its bounds are not finite.")
    return bounds


def _count(spec: dict[str, Any], name: str) -> int:
    if not 0 <= int(spec[name]) <= MAX_AXES:
        raise FileFormatError(f"The support {spec} has {name}={spec[name]}: expected a number of axes.")
    return int(spec[name])


def _bound(value: float | list) -> float | np.ndarray:
    return np.asarray(value, dtype=np.float64) if isinstance(value, list) else float(value)
