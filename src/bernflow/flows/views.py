"""Views of the globals: coordinates in which a model is a product of simple functions of the globals.

A scale on the half line is exp(g), so its powers are exponentials of g. On another support, such as sigma = 100 / (1 +
exp(-g)), the powers of sigma are exponentials of log sigma, which is a view of g. Because flows do not depend on
models, a view is stored as a kind, the globals that it takes, and two numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from bernflow.errors import FileFormatError

# Bound on the globals, so that their exponentials do not overflow: 0 * inf would make a gradient NaN.
MAX_VALUE = 80.0


@dataclass(frozen=True)
class View:
    """A function of one or several globals.

    Attributes:
        kind: a key of `KINDS`.
        members: the indices of its globals.
        low: lower bound, if the kind has one; for parts of a simplex, the number of its unconstrained values.
        high: upper bound, if the kind has one.

    Example:
        >>> log_scale = View("log-interval", (1,), 0.0, 100.0)
        >>> round(float(np.exp(log_scale(np.array([7.0, 0.0]), np))), 6)
        50.0
    """

    kind: str
    members: tuple[int, ...]
    low: float = 0.0
    high: float = 0.0

    def __call__(self, g: Any, xp: Any = jnp) -> Any:
        """Evaluate the view at globals (..., c); `xp` is the module of their arrays, `jax.numpy` or `numpy`."""
        own = g[..., np.array(self.members)]
        return KINDS[self.kind](xp, own if self.kind in LINEAR else xp.clip(own, -MAX_VALUE, MAX_VALUE), self)

    def to_json(self) -> list[Any]:
        """Describe the view by JSON values."""
        return [self.kind, list(self.members), self.low, self.high]


def plain_views(num: int) -> tuple[View, ...]:
    """Return one identity view per global."""
    return tuple(View("identity", (i,)) for i in range(num))


def views_from_json(values: Mapping[str, Any], num: int) -> tuple[View, ...]:
    """Read the views of `num` globals from a file; files without views have identity views."""
    if "views" not in values:
        return plain_views(num)
    views = tuple(View(str(k), tuple(map(int, own)), float(low), float(high)) for k, own, low, high in values["views"])
    if not all(view.kind in KINDS and view.members and set(view.members) <= set(range(num)) for view in views):
        raise FileFormatError(f"The file describes views of {num} globals that this version does not know: {views}.")
    return views


def evaluate(views: Sequence[View], g: Any, xp: Any = jnp) -> Any:
    """Evaluate views at globals (..., c); the last axis of the result has one entry for each."""
    if all(view.kind == "identity" for view in views):
        return g[..., np.array([view.members[0] for view in views])]
    return xp.stack([view(g, xp) for view in views], -1)


def _log_sum(xp: Any, values: Any) -> Any:
    largest = xp.max(values, -1)
    return largest + xp.log(xp.sum(xp.exp(values - largest[..., None]), -1))


def _log_softplus(xp: Any, g: Any, view: View) -> Any:
    # Far below zero softplus(g) is exp(g), and its logarithm g keeps its precision.
    return xp.where(g[..., 0] < -30.0, g[..., 0], xp.log(xp.logaddexp(0.0, xp.maximum(g[..., 0], -30.0))))


def _log_interval(xp: Any, g: Any, view: View) -> Any:
    """Return log(low + (high - low) / (1 + exp(-g)))."""
    above = np.log(view.high) - xp.logaddexp(0.0, -g[..., 0])
    return above if view.low <= 0.0 else xp.logaddexp(above, np.log(view.low) - xp.logaddexp(0.0, g[..., 0]))


def _log_of_simplex(xp: Any, g: Any, view: View, is_last: bool) -> Any:
    """Return the log of a component of a simplex by stick breaking, or of the remaining stick (the last component)."""
    moved = g - np.log(view.low - np.arange(g.shape[-1]))
    left = moved if is_last else moved[..., :-1]
    rest = -xp.sum(xp.logaddexp(0.0, left), -1)
    return rest if is_last else rest - xp.logaddexp(0.0, -moved[..., -1])


# Kinds that cannot overflow.
LINEAR = ("identity", "half")
KINDS: dict[str, Callable[[Any, Any, View], Any]] = {
    "identity": lambda xp, g, view: g[..., 0],
    # For a value on an interval, tanh(g / 2) is linear in the value.
    "half": lambda xp, g, view: 0.5 * g[..., 0],
    "log-above": lambda xp, g, view: xp.logaddexp(np.log(view.low), g[..., 0]),
    "log-interval": _log_interval,
    "log-softplus": _log_softplus,
    "ordered": lambda xp, g, view: g[..., 0] + xp.sum(xp.exp(g[..., 1:]), -1),
    "log-sum": lambda xp, g, view: _log_sum(xp, g),
    "log-simplex": lambda xp, g, view: _log_of_simplex(xp, g, view, is_last=False),
    "log-simplex-last": lambda xp, g, view: _log_of_simplex(xp, g, view, is_last=True),
}
