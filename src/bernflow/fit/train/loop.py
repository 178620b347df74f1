"""The training loop: cycles of chunks of steps, a look from the host after each chunk, and the stopping rule.

A training is a generator. It yields the chunks of steps that it needs and is sent what they came to, so that one
training takes its steps alone (`run_alone`), and many on data of the same shape take theirs together (`run_together`).
"""

import dataclasses
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.diagnostics.importance import ess_fraction
from bernflow.fit.deadline import OutOfTimeError, Pace
from bernflow.fit.train.divergence import best_of, change, distance
from bernflow.fit.train.objective import Feed
from bernflow.fit.train.recipe import Cycle, Recipe
from bernflow.fit.train.state import Trace, TrainState
from bernflow.fit.train.steps import Chunk, take_steps
from bernflow.fit.train.stopping import Ending, Fit, StoppingRule
from bernflow.keys import nth

# Nats from the posterior within which path gradients have so little noise that a cycle may be bold. Where the flow
# cannot come near, as with a horseshoe, bold cycles would be in vain.
NEAR = 0.05
# From this share of effective draws on, importance weights can lead the fit into the tails.
COVERING_ESS = 0.3

Result = TypeVar("Result")
# Yields chunks, is sent what their steps came to, returns a result.
Steps = Generator[Chunk, tuple[TrainState, Trace], Result]


class Trained(NamedTuple):
    """What a training came to.

    Attributes:
        state: the best flows.
        steps: number of steps taken.
        interrupted: whether an interruption ended it.
        out_of_time: whether the time limit ended it.
    """

    state: TrainState
    steps: int
    interrupted: bool = False
    out_of_time: bool = False


class LoopState(NamedTuple):
    """Where a training stands after a chunk: all that it needs to resume from there.

    Attributes:
        cycle: number of cycles that are over.
        step: number of steps of the present cycle that are done.
        done: number of steps taken in all.
        current: the flows as they are.
        kept: the flows that the present cycle began with: the best so far.
        weights: log weights of those, or None in the first cycle of a given number of steps.
    """

    cycle: int
    step: int
    done: int
    current: TrainState
    kept: TrainState
    weights: Float[np.ndarray, "r s"] | None

    @classmethod
    def at_start(cls, begun: TrainState) -> "LoopState":
        """Return the state before the first step."""
        return cls(0, 0, 0, begun, begun, None)


# Hears of every finished chunk: steps done, steps planned so far, and what the chunk saw. A KeyboardInterrupt from it
# ends the training.
Report = Callable[[int, int, Trace], None]


@dataclasses.dataclass
class Watch:
    """Who follows a training.

    Attributes:
        report: hears of every finished chunk.
        keep: hears, after `report`, where the training stands; returns True to end it here. A KeyboardInterrupt from
            it interrupts the training.
        accept: judges flows that are near enough by more draws; training goes on unless it returns True.
        see: hears of estimates of the KL divergence from the posterior.
        ends: given where the training stands after a cycle and whether it is over, returns whether it ends.
    """

    report: Report = lambda done, planned, trace: None
    keep: Callable[[LoopState], bool | None] = lambda at: None
    accept: Callable[[TrainState], bool] = lambda state: True
    see: Callable[[float], None] = lambda nats: None
    ends: Callable[[LoopState, bool], bool] = lambda at, is_over: is_over


@dataclasses.dataclass
class Loop:
    """One training.

    The first cycle minimizes the reverse KL; as soon as the weights of a restart are even enough it goes on with the
    forward KL where q has too little, which carries the fit into the tails.

    Attributes:
        feed: what is trained.
        key: a random key.
        recipe: how to train.
        pace: ends the training before the time limit.
        watch: who follows it.
        rule: when to end; None where flows are not weighed before the end, as on batches for a number of steps.
    """

    feed: Feed
    key: Key[Array, ""]
    recipe: Recipe
    pace: Pace
    watch: Watch
    rule: StoppingRule | None = None
    at: LoopState = dataclasses.field(init=False)

    def run(self, begun: TrainState, resumed: LoopState | None = None) -> Steps[Trained]:
        """Train to the end; an interruption and the time limit keep the best flows so far.

        Before the first chunk is done an interruption is raised on; at the time limit the start is the best then.
        """
        self.at = resumed or LoopState.at_start(begun)
        if resumed is None and self.recipe.steps is None and self._ends_at_start():
            return Trained(begun, 0)
        cycles = self.recipe.cycles(begun.flow, len(begun.num_skipped))
        try:
            for number in range(self.at.cycle, len(cycles)):
                cycle = cycles[number]._replace(bold=cycles[number].bold and self._may_be_bold())
                ends = yield from self._go_through(number, cycle)
                if ends or self._ends_after(number, cycle):
                    break
        except (KeyboardInterrupt, OutOfTimeError) as reason:
            out_of_time = isinstance(reason, OutOfTimeError)
            if not out_of_time and self.at.done == 0:
                raise
            return Trained(self._best(), self.at.done, interrupted=not out_of_time, out_of_time=out_of_time)
        return Trained(self.at.kept, self.at.done)

    def _ends_at_start(self) -> bool:
        """Weigh the start, which is kept where training does not improve on it; a Gaussian posterior is met by it."""
        assert self.rule is not None
        weights = self.rule.draws.few(self.at.kept)
        self.at = self.at._replace(weights=weights)
        ending = self.rule.at_start(Fit(self.at.kept, weights))
        if ending is not Ending.NOT_YET:
            self._report_start(weights)
        return self._is_over(ending)

    def _go_through(self, number: int, cycle: Cycle) -> Steps[bool]:
        """Take the steps of one cycle; return whether a watcher has ended the training."""
        recipe, at = self.recipe, self.at
        rates = recipe.rates(cycle.length, 1.0 if cycle.bold else cycle.share)
        weights_rates = recipe.weights_rates(cycle.length)
        lengths, width = recipe.chunk_lengths(cycle.length)
        lengths = _remaining(lengths, at.step)
        powers = self._powers(number)
        planned = at.done + sum(lengths) if recipe.steps is None else recipe.steps
        for (objective, batch), length in zip(self.feed.chunks(lengths, at.done, width), lengths, strict=True):
            first = at.step
            if recipe.follows_clock:
                first = min(max(first, int(self.pace.progress() * cycle.length)), cycle.length - length)
            now, beside = (
                None if each is None else np.pad(each[first : first + length], (0, width - length))
                for each in (rates, weights_rates)
            )
            assert now is not None
            key = nth(self.key, at.done)
            state, trace = yield Chunk(
                at.current, objective, key, now, powers, recipe, self.pace, batch, weights_rates=beside
            )
            taken = min(length, trace.elbo.shape[1])
            self.at = at = at._replace(step=at.step + taken, done=at.done + taken, current=state)
            if taken:
                self.watch.report(at.done, planned, Trace(*(leaf[:, :taken] for leaf in trace)))
            if taken < length:
                raise OutOfTimeError
            if self.watch.keep(at):
                self.at = at._replace(kept=at.current)
                return True
        return False

    def _may_be_bold(self) -> bool:
        """Tell whether the flows are so near that gradients have little noise."""
        weights = self.at.weights
        return self.recipe.config.use_score and weights is not None and distance(best_of(weights)) < NEAR

    def _powers(self, number: int) -> Float[np.ndarray, " r"]:
        """Choose the divergence of a cycle for every restart."""
        if number == 0 or not self.recipe.cover or self.at.weights is None:
            return np.zeros(len(self.at.current.num_skipped))
        return np.array([float(ess_fraction(row) > COVERING_ESS) for row in self.at.weights])

    def _ends_after(self, number: int, cycle: Cycle) -> bool:
        """Keep the better of the flows before and after a cycle; return whether training ends."""
        at, ending = self.at, Ending.NOT_YET
        is_better, weights = True, at.weights
        if at.weights is not None or at.done != self.recipe.steps:
            assert self.rule is not None
            after = Fit(at.current, self.rule.draws.few(at.current))
            kept = None if at.weights is None else Fit(at.kept, at.weights)
            if self.recipe.steps is None:
                is_better, ending = self.rule.after_cycle(number, cycle, kept, after)
            elif kept is not None:
                is_better = change(kept.weights, after.weights).is_better
            weights = after.weights if is_better or kept is None else kept.weights
        best = at.current if is_better or at.weights is None else at.kept
        self.at = LoopState(number + 1, 0, at.done, best, best, weights)
        return self._is_over(ending) if self.recipe.steps is None else False

    def _is_over(self, ending: Ending) -> bool:
        """Tell whether training ends, by a look at more draws where they must call the fit good."""
        at = self.at
        assert at.weights is not None
        self.watch.see(distance(best_of(at.weights)))
        is_over = ending is Ending.NOW or (ending is Ending.IF_GOOD and self.watch.accept(at.kept))
        return self.watch.ends(at, is_over)

    def _best(self) -> TrainState:
        """Return the best flows in the middle of a cycle, where rates are high: the last one may have ended better."""
        at = self.at
        if at.done == 0:
            if self.rule is not None:
                self._report_start(self.rule.draws.few(at.kept) if at.weights is None else at.weights)
            return at.kept
        if at.weights is None:
            return at.current
        assert self.rule is not None
        moved = at.current is not at.kept
        return at.current if moved and change(at.weights, self.rule.draws.few(at.current)).is_better else at.kept

    def _report_start(self, weights: Float[np.ndarray, "r s"]) -> None:
        """Report a start that needs no training, as if its many draws were one step's few."""
        share = self.recipe.num_particles / weights.shape[1]
        mean, variance = np.mean(weights, 1, keepdims=True), share * np.var(weights, 1, keepdims=True)
        self.watch.report(0, 0, Trace(mean, variance))


def _remaining(lengths: list[int], done: int) -> list[int]:
    """Return the chunks after so many steps; the same chunks see the same noise as without an interruption."""
    while lengths and done > 0:
        done -= lengths[0]
        lengths = lengths[1:] if done >= 0 else [-done, *lengths[1:]]
    return lengths


def run_alone(steps: Steps[Result]) -> Result:
    """Take the steps that a training, or a whole fit, asks for."""
    try:
        chunk = next(steps)
        while True:
            try:
                taken: Any = take_steps(chunk)
            except BaseException as error:
                chunk = steps.throw(error)
            else:
                chunk = steps.send(taken)
    except StopIteration as end:
        return end.value
