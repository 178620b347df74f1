"""When training ends: one rule, for every training that ends by itself.

After the start and after every cycle of steps, fresh draws say how far the flows are from the posterior. Training ends

* when they are near enough: below 0.8 of the tolerance or, without one, where nobody could see a difference;
* when a cycle gained nothing, and a longer one is not likely to;
* when the first cycle missed a goal that only a training which pays off would reach.

Where the tolerance asks for a good fit, many more draws must call it good before training ends (`Ending.IF_GOOD`).
"""

import enum
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.importance import log_evidence, psis
from bernflow.diagnostics.verdict import judge
from bernflow.fit.settings import default_tolerance
from bernflow.fit.train.divergence import Change, best_of, change, distance
from bernflow.fit.train.draws import Draws
from bernflow.fit.train.recipe import Cycle
from bernflow.fit.train.state import TrainState

# A distance estimated from few draws must be below this share of a tolerance: rare draws, which it does not see, add
# to it.
SAFETY = 0.8
# Log weights this far below the log evidence count as no farther.
MAX_LACK = 10.0
# A fit that is farther from the posterior than so many default tolerances is seldom good: who allows more does not ask
# for that.
MAX_GOOD = 2.0
# A fit that is farther away than so many tolerances, and comes no nearer, will not meet it.
OUT_OF_REACH = 2.0
# Without a tolerance: below this many nats from the posterior, more steps change nothing that a user could see ...
CLOSE_ENOUGH = 5e-4
# ... provided that the tails are met: clearly so before any covering, usably after it.
UNCOVERED_KHAT, COVERED_KHAT = 0.3, 0.7
# So near that no tail can matter.
NEGLIGIBLE = 1e-5
# What is hard to see in any plot: so near, any cycle that gained nothing is the last one.
MIN_GAIN = 2e-3
# Where there is more to gain, only a cycle of such a length that was in vain is the last one. To a tolerance it is one
# of the second length, and any where the tolerance is out of reach.
LONG_CYCLE, LONG_CYCLE_TO_TOLERANCE = 2000, 500
# What is trained on was trained before: the first cycle tells whether there is anything left to gain.
LONG_CYCLE_IN_REFINING = 1000
# A cycle was worthwhile if it gained more nats than this, and than this share of the distance.
WORTHWHILE_GAIN, WORTHWHILE_SHARE = 2e-4, 0.05
# To a tolerance: than such a share of the tolerance, and, because the next cycle takes as many steps as all before it,
# a larger share of the distance.
WORTHWHILE_SHARE_OF_TOLERANCE, WORTHWHILE_SHARE_TO_TOLERANCE = 0.1, 0.25


class Ending(enum.Enum):
    """Whether a training ends here."""

    NOT_YET = "go on"
    IF_GOOD = "end if more draws call the fit good"
    NOW = "end"


class Fit(NamedTuple):
    """Flows in training, and log weights of their draws."""

    state: TrainState
    weights: Float[np.ndarray, "r s"]


class Decision(NamedTuple):
    """What follows from a cycle: whether its flows are kept, and whether training ends."""

    is_better: bool
    ending: Ending


class StoppingRule(NamedTuple):
    """The rule.

    Attributes:
        draws: make the log weights.
        goal: distance from the posterior, in nats, that the first cycle must reach for a second to follow.
        long_cycle: without a tolerance, training ends after a cycle of so many steps that gained nothing.
    """

    draws: Draws
    goal: float | None = None
    long_cycle: int = LONG_CYCLE

    def at_start(self, start: Fit) -> Ending:
        """Decide before the first step; all restarts must be near, because each may be a part of a mixture."""
        if not self.is_near_enough(start, start.weights, UNCOVERED_KHAT):
            return Ending.NOT_YET
        return Ending.IF_GOOD if self.asks_for_good else Ending.NOW

    def after_cycle(self, number: int, cycle: Cycle, kept: Fit | None, after: Fit) -> Decision:
        """Decide after a cycle of training.

        Args:
            number: of the cycle; the first is 0.
            cycle: its length and rate.
            kept: the flows that it began with; None where they were not weighed.
            after: the flows that it ended with.
        """
        tolerance, judged = self.draws.recipe.tolerance, after.weights
        better, worthwhile = (True, True) if kept is None else self.compared(change(kept.weights, judged))
        out_of_reach = tolerance is not None and self.is_out_of_reach(best_of(judged))
        is_due = tolerance is None or out_of_reach or cycle.length >= LONG_CYCLE_TO_TOLERANCE

        # Before a cycle is said to be in vain, more draws compare. Far from the tolerance few tell enough.
        if kept is not None and is_due and not worthwhile and not out_of_reach and self.draws.may_be_many():
            old, new = (self.draws.many(*fit, tolerance) for fit in (kept, after))
            better, worthwhile = self.compared(change(old, new))
            judged = new if better else old
        best = after if better or kept is None else kept

        # 1. Nothing gained: to a tolerance that is the end. Else a bold or short cycle may have failed alone.
        long = tolerance is not None or (cycle.length >= self.long_cycle and not cycle.bold)
        if is_due and not worthwhile and (long or _only_little_is_left(best_of(judged))):
            return Decision(better, Ending.NOW)
        # 2. The goal is missed.
        if self.goal is not None and number == 0 and distance(best_of(best.weights)) > self.goal:
            return Decision(better, Ending.NOW)
        # 3. Near enough; one cycle of covering is due unless the tails are met already.
        near = self.is_near_enough(best, best_of(judged)[None], COVERED_KHAT if number else UNCOVERED_KHAT)
        # 4. What a cycle did not improve is over if it is good.
        settled = self.asks_for_good and number > 0 and not worthwhile
        if near or settled:
            return Decision(better, Ending.IF_GOOD if self.asks_for_good else Ending.NOW)
        return Decision(better, Ending.NOT_YET)

    def is_near_enough(self, fit: Fit, rows: Float[np.ndarray, "n s"], khat_allowed: float) -> bool:
        """Tell whether all restarts with these log weights are as near to the posterior as they must be."""
        tolerance = self.draws.recipe.tolerance
        if tolerance is not None:
            return all(self.is_within(row) for row in rows)
        if not all(_is_invisible(row, khat_allowed) for row in rows) or not self.draws.may_be_many():
            return False
        # What is left in the neck of a funnel shows in few draws only, and most of it in those that count up to a
        # limit: as many draws as for the verdict must agree, and those that visit the tails, without a limit.
        closer = self.draws.many(*fit, None)[0]
        if distance(closer) > CLOSE_ENOUGH or judge(closer).verdict != "good":
            return False
        return self.draws.distance_in_tails(*fit, closer.size) < CLOSE_ENOUGH

    def is_within(self, weights: Float[np.ndarray, " s"]) -> bool:
        """Tell whether q is within the tolerance, as far as these draws show it."""
        # A few draws where there is hardly any density add a lot, and change nothing that anyone sees.
        evidence = log_evidence(weights)[0]
        weights = np.maximum(weights, evidence - MAX_LACK)
        # Two estimates: the first does not see tails that were cut off, the second is noisy.
        missing = evidence - np.mean(weights)
        if max(distance(weights), missing) >= SAFETY * self.draws.recipe.tolerance:  # type: ignore[operator]
            return False
        # Where "good" is asked for, more draws than these decide on the tails.
        return self.asks_for_good or psis(weights)[1] < COVERED_KHAT

    def is_out_of_reach(self, weights: Float[np.ndarray, " s"]) -> bool:
        """Tell whether a fit that gains nothing more is usable, though clearly farther away than the tolerance."""
        far = distance(weights) > OUT_OF_REACH * self.draws.recipe.tolerance  # type: ignore[operator]
        return far and judge(weights).verdict != "poor"

    @property
    def asks_for_good(self) -> bool:
        """Whether a fit to this tolerance has to be good."""
        tolerance = self.draws.recipe.tolerance
        return tolerance is not None and tolerance <= MAX_GOOD * default_tolerance(self.draws.target.dim)

    def compared(self, changed: Change) -> tuple[bool, bool]:
        """Tell whether a cycle made the fit better, and whether another one may."""
        tolerance = self.draws.recipe.tolerance
        visible = max(WORTHWHILE_GAIN, WORTHWHILE_SHARE_OF_TOLERANCE * (tolerance or 0.0))
        share = changed.before * (WORTHWHILE_SHARE if tolerance is None else WORTHWHILE_SHARE_TO_TOLERANCE)
        nearer = max(visible, share)
        worthwhile = changed.exceeds(visible if tolerance is None else nearer, nearer)
        return changed.is_better, changed.is_better and worthwhile


def _is_invisible(weights: Float[np.ndarray, " s"], khat_allowed: float) -> bool:
    """Tell whether q is so near to the posterior that more steps change nothing visible."""
    nats = distance(weights)
    return nats < NEGLIGIBLE or (nats < CLOSE_ENOUGH and psis(weights)[1] < khat_allowed)


def _only_little_is_left(weights: Float[np.ndarray, " s"]) -> bool:
    """Tell whether only a little can be gained, with tails that importance weights can correct."""
    return distance(weights) < MIN_GAIN and psis(weights)[1] < COVERED_KHAT
