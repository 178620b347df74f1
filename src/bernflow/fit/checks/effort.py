"""How hard a verdict looks for mass that a fit misses: `checks="default"` or `"thorough"`."""

import dataclasses
import math
from typing import Any

from bernflow.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Checks:
    """The effort of a search elsewhere.

    Attributes:
        name: what `fit` takes.
        times: so many times as many heated draws and Newton paths as by default.
        runs: tempered runs from different proposals.
        moves: so many times as many Metropolis moves of their particles as by default.
        max_dim: tempered runs are made up to so many dimensions.
        max_work: and up to so much work, counted as in `fit.work`.
    """

    name: str
    times: int
    runs: int
    moves: int
    max_dim: int
    max_work: float

    @property
    def thorough(self) -> bool:
        """Whether everything is looked at that can be, whatever it costs."""
        return self.times > 1


# By default a tempered run takes at most half a second or so, where a fit takes some.
CHECKS = {
    "default": Checks("default", times=1, runs=1, moves=1, max_dim=20, max_work=4e8),
    "thorough": Checks("thorough", times=5, runs=2, moves=5, max_dim=100, max_work=math.inf),
}


def resolve_checks(checks: Any) -> Checks:
    """Return the effort of a name; refuse what is none.

    Example:
        >>> resolve_checks("thorough").thorough
        True
    """
    if not isinstance(checks, str) or checks not in CHECKS:
        raise ArgumentError(f"checks={checks!r} is unknown: expected one of {', '.join(map(repr, CHECKS))}.")
    return CHECKS[checks]
