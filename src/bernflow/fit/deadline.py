"""A time limit: how much of it is left, and whether the next piece of work still fits."""

import dataclasses
import math
import numbers
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bernflow.errors import ArgumentError

# Steps per call of compiled code where there is a time limit: the clock is looked at after each.
PIECE = 25
# Share of the limit that is kept for what follows the draws of the verdict: other modes, properness.
MARGIN = 0.05
# The draws of the verdict get at most this share; with less time they are fewer, but no fewer than these.
VERDICT_SHARE, MIN_DRAWS = 0.15, 1000
# Share of the limit that must be left for another stage of a fit.
STAGE_SHARE = 1 / 3
# Draws of a verdict under a time limit where it is not known how long they take.
FEW_DRAWS = 4000


class OutOfTimeError(Exception):
    """Ends a training whose next steps would not fit in the time limit."""


@dataclasses.dataclass(frozen=True)
class Deadline:
    """When a fit began, and how long it may take.

    Attributes:
        limit: seconds from the beginning; None means no limit.
        clock: returns the time in seconds.
        began: what the clock showed at the beginning.

    Example:
        >>> deadline = Deadline.start(60)
        >>> deadline.left() <= 60
        True
    """

    limit: float | None
    clock: Callable[[], float]
    began: float

    @classmethod
    def start(cls, limit: Any = None, clock: Callable[[], float] = time.perf_counter) -> "Deadline":
        """Begin now; refuse what is not a time limit."""
        if limit is None:
            return cls(None, clock, clock())
        if isinstance(limit, bool) or not isinstance(limit, numbers.Real) or not 0.0 < float(limit) < math.inf:
            raise ArgumentError(
                f"time_limit={limit!r}: expected a positive number of seconds such as 60, or None for no limit."
            )
        return cls(float(limit), clock, clock())

    def elapsed(self) -> float:
        """Return the seconds since the beginning."""
        return self.clock() - self.began

    def left(self) -> float:
        """Return the seconds that are left; infinite without a limit."""
        return math.inf if self.limit is None else self.limit - self.elapsed()

    def has_left(self, share: float) -> bool:
        """Tell whether at least this share of the limit is left."""
        return self.limit is None or self.left() >= share * self.limit

    def allows_stage(self, seconds: float) -> bool:
        """Tell whether so many seconds, and a good share of the limit, are left for another stage of the fit."""
        return self.has_left(STAGE_SHARE) and self.left() >= seconds

    def part(self, share: float) -> "Deadline":
        """Return the deadline of the first stage of a fit, which may take this share of the time."""
        return self if self.limit is None else dataclasses.replace(self, limit=share * self.limit)

    def describe(self, out_of_time: bool) -> dict[str, Any]:
        """Return what is recorded of it, JSON-able."""
        return {"time_limit": self.limit, "out_of_time": out_of_time, "wall_seconds": self.elapsed()}


class Pace:
    """How long steps and draws take, and what still fits in the time limit.

    Args:
        deadline: when the fit must be over.
    """

    def __init__(self, deadline: Deadline):
        self.deadline = deadline
        self._seconds_per_piece = 0.0
        self._seconds_per_draw: float | None = None
        self._evaluation = 0
        self._first_piece_done: float | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is a time limit."""
        return self.deadline.limit is not None

    @property
    def has_stepped(self) -> bool:
        """Whether a call of the compiled steps was measured."""
        return self._first_piece_done is not None

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Measure how long one call of the compiled steps takes."""
        began = self.deadline.clock()
        yield
        now = self.deadline.clock()
        if self._first_piece_done is None:
            self._first_piece_done = now  # it may have been compiled first
        else:
            self._seconds_per_piece = now - began

    @contextmanager
    def evaluating(self, num_draws: int) -> Iterator[None]:
        """Measure how long an evaluation of so many draws takes."""
        began = self.deadline.clock()
        yield
        self._seconds_per_draw = (self.deadline.clock() - began) / num_draws
        self._evaluation = num_draws

    def left_for_steps(self) -> float:
        """Return the seconds until the training must end for the verdict to be in time."""
        limit = self.deadline.limit
        if limit is None:
            return math.inf
        verdict = VERDICT_SHARE * limit
        if self._seconds_per_draw is None:
            return self.deadline.left() - MARGIN * limit - verdict
        one_more = min(self._seconds_per_draw * self._evaluation, verdict)  # of the flows as they are then
        verdict = min(self._seconds_per_draw * 5 * FEW_DRAWS, verdict)
        return self.deadline.left() - MARGIN * limit - one_more - verdict

    def may_step(self) -> bool:
        """Tell whether one more call of the compiled steps fits."""
        return self.left_for_steps() > self._seconds_per_piece

    def may_draw(self, num: int) -> bool:
        """Tell whether so many draws fit before the verdict."""
        return self.left_for_steps() > (self._seconds_per_draw or 0.0) * num

    def num_draws(self, most: int) -> int:
        """Return how many draws the verdict may rest on: as many as the time allows, and no fewer than 1,000."""
        limit = self.deadline.limit
        if limit is None:
            return most
        if self._seconds_per_draw is None:
            return min(most, FEW_DRAWS)
        affordable = max(0.0, self.deadline.left() - MARGIN * limit) / max(self._seconds_per_draw, 1e-9)
        return min(most, max(MIN_DRAWS, int(min(affordable, most))))

    def progress(self) -> float:
        """Return the share of the time for steps that is over since the first call ended; 0 without a limit."""
        if not self.is_limited or self._first_piece_done is None:
            return 0.0
        since = self.deadline.clock() - self._first_piece_done
        return min(1.0, since / max(since + self.left_for_steps(), 1e-9))
