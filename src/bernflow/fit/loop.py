"""The training loop: chunks of steps, one look from the host after each, and when to stop."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import optax
from jaxtyping import Array, Float, Key

from bernflow.diagnostics.importance import ess_fraction
from bernflow.fit.chunk import CHUNK, Trace, Trainee, effort_for, take_steps
from bernflow.fit.deadline import Deadline, OutOfTimeError, Pace
from bernflow.fit.evaluation import evaluate_finite, num_diagnostic_draws, num_evaluation_draws
from bernflow.fit.settings import FULL_RATE_DIM
from bernflow.fit.stopping import (
    COVERED_KHAT,
    UNCOVERED_KHAT,
    asks_for_good,
    best_of,
    compare,
    distance,
    has_arrived,
    is_close,
    is_confirmed,
    is_out_of_reach,
    is_within,
    look_closer,
)
from bernflow.flows.factors import is_dense
from bernflow.flows.mixture import Mixture
from bernflow.keys import nth
from bernflow.target import Target

WARM_UP = 50


class Cycle(NamedTuple):
    """Some steps under one cosine, from a share of the learning rate down to zero.

    Attributes:
        length: number of steps.
        share: of the learning rate.
        bold: near the posterior, take the whole rate.
    """

    length: int
    share: float = 1.0
    bold: bool = False


# Training may end after each of them, so that one in vain costs at most half of the steps before it. After the first,
# rates are low enough for nearly every cycle to improve on what the last has left; bold ones gain more, or nothing.
CYCLES = (
    Cycle(1000),
    Cycle(500, 0.5),
    Cycle(500, 0.5),
    Cycle(1000, 0.5, bold=True),
    Cycle(1000, 0.25),
    Cycle(2000, 0.5, bold=True),
    Cycle(2000, 0.25),
    Cycle(4000, 0.5, bold=True),
    Cycle(4000, 0.25),
    Cycle(8000, 0.5, bold=True),
    Cycle(8000, 0.25),
)
# Nats from the posterior within which path gradients have so little noise that a cycle may be bold. Where the flow
# cannot come near, as with a horseshoe, bold cycles would be in vain.
NEAR = 0.05
# In many dimensions, and of several flows at once, steps take longer: there are fewer.
NUM_CYCLES_LARGE = 9
# Above the number of dimensions whose factors are matrices, steps take a tenth of a second and more.
NUM_CYCLES_WIDE = 4
# Of a mixture every step needs inverses; near modes and along ridges few steps are enough.
NUM_CYCLES_MIXTURE = 4
# Where there is more to gain, only a cycle of such a length that was in vain is the last one. To a tolerance it is one
# of the second length, and any where the tolerance is out of reach.
LONG_CYCLE, LONG_CYCLE_TO_TOLERANCE = 2000, 500
# What is trained on was trained before: the first cycle tells whether there is anything left to gain.
LONG_CYCLE_IN_REFINING = 1000
# To a tolerance: looked at often, because it may be met early.
SHORT_CYCLES = tuple(map(Cycle, (250, 250, 500, 1000, 2000, 4000, 8000)))
# From this share of effective draws on, importance weights can lead the fit into the tails.
COVERING_ESS = 0.3


class Trained(NamedTuple):
    """What training has come to after a cycle, or at an interruption.

    Attributes:
        trainee: the best flows so far.
        steps: number of steps taken.
        interrupted: whether an interruption ended it.
        out_of_time: whether the time limit ended it.
        is_over: whether a training that ends by itself ends here.
        is_within: whether it ends because the tolerance is met, as far as the draws of an evaluation can tell, or
            because nothing was gained: only if more draws call it good.
        nats: estimate of the KL divergence from the posterior, where the flows were looked at.
    """

    trainee: Trainee
    steps: int
    interrupted: bool = False
    is_over: bool = False
    is_within: bool = False
    out_of_time: bool = False
    nats: float | None = None


class Place(NamedTuple):
    """Where a training stands after a chunk: all that it needs to go on from there.

    Attributes:
        cycle: number of cycles that are over.
        chunk: number of chunks of the present cycle that are done.
        done: number of steps taken.
        after: the flows as they are.
        kept: the flows that the present cycle began with: the best so far.
        weights: log weights of those, or None in the first cycle.
    """

    cycle: int
    chunk: int
    done: int
    after: Trainee
    kept: Trainee
    weights: Float[np.ndarray, "r s"] | None


class Method(NamedTuple):
    """How to train.

    Attributes:
        optimizer: turns gradients into updates; the learning rate multiplies them.
        learning_rate: peak of the schedule, or None where the optimiser has its own.
        constant_rate: no warm-up and no decay (the paper's recipe).
        num_particles: draws per step.
        use_score: train by path gradients, which need the score of the flow.
        cover: after the first cycle, minimise the forward KL where q has too little, if the weights allow it.
        tolerance: distance from the posterior, in nats, at which to stop; None: where nothing is gained any more.
        piece: number of steps per call of compiled code under a time limit.
        long_cycle: without a tolerance, training ends after a cycle of so many steps that gained nothing.
    """

    optimizer: optax.GradientTransformation
    learning_rate: float | None
    constant_rate: bool
    num_particles: int
    use_score: bool
    cover: bool = True
    tolerance: float | None = None
    piece: int | None = None
    long_cycle: int = LONG_CYCLE

    def rates(self, num: int, share: float = 1.0) -> Float[np.ndarray, " num"]:
        """Return the learning rates of one cycle: linear warm-up to a share of the rate, then a cosine down to zero."""
        if self.learning_rate is None:
            return np.ones(num)
        if self.constant_rate:
            return np.full(num, self.learning_rate)
        step = np.arange(num)
        warm_up = np.minimum(1.0, (step + 1) / min(WARM_UP, num))
        return share * self.learning_rate * warm_up * 0.5 * (1.0 + np.cos(np.pi * step / num))


# Hears of every finished chunk: steps done, steps planned so far, and what the chunk saw. A KeyboardInterrupt from it
# ends the training.
Report = Callable[[int, int, Trace], None]


def train(
    trainee: Trainee,
    target: Target,
    key: Key[Array, ""],
    method: Method,
    steps: int | None,
    report: Report,
    place: Place | None = None,
    keep: Callable[[Place], None] = lambda place: None,
    goal: float | None = None,
    accept: Callable[[Trainee], bool] = lambda trainee: True,
    pace: Pace | None = None,
    see: Callable[[float], None] = lambda nats: None,
) -> Trained:
    """Train for the given number of steps, or until nothing is gained any more.

    Args:
        trainee: the flows at the start.
        target: what they are fitted to.
        key: a random key.
        method: how to train.
        steps: number of steps, or None.
        report: hears of every finished chunk.
        place: where an earlier call stood, to go on from there.
        keep: hears, after `report`, where the training stands. A KeyboardInterrupt from it ends the training.
        goal: distance from the posterior, in nats, that the first cycle must reach for a second to follow.
        accept: judges flows that meet the tolerance by more draws; training goes on unless it returns True.
        pace: ends the training before the time limit.
        see: hears of estimates of the KL divergence from the posterior.
    """
    cycles = choose_cycles(trainee, target, method) if steps is None else _divide(steps, method)
    for trained in go_through(cycles, trainee, target, key, method, steps, report, place, keep, goal, pace):
        if trained.nats is not None:
            see(trained.nats)
        if trained.is_over and (not trained.is_within or accept(trained.trainee)):
            break
    return trained


def go_through(
    cycles: tuple[Cycle, ...],
    trainee: Trainee,
    target: Target,
    key: Key[Array, ""],
    method: Method,
    steps: int | None = None,
    report: Report = lambda done, planned, trace: None,
    place: Place | None = None,
    keep: Callable[[Place], None] = lambda place: None,
    goal: float | None = None,
    pace: Pace | None = None,
) -> Iterator[Trained]:
    """Go through cycles of training and yield what each has come to, and first of all the start.

    The first cycle minimises the reverse KL; as soon as the weights of a restart are even enough it goes on with the
    forward KL where q has too little, which carries the fit into the tails. An interruption keeps the best flows so
    far; before the first chunk is done there are none, and it is raised on. So does the end of the time; before the
    first step the start is the best. The arguments are those of `train`; of a
    given number of steps only what they come to in the end is looked at.
    """
    num_restarts = trainee.num_skipped.shape[0]
    pace = pace or Pace(Deadline.start())
    evaluation_key = nth(key, 2**31 - 1)
    # A mixture's noise is that of its parts, each alone.
    widened = method.num_particles if method.use_score and not isinstance(trainee.flow, Mixture) else None
    must_be_good = asks_for_good(method.tolerance, target.dim)
    effort, num_draws = effort_for(method.tolerance), num_evaluation_draws(target.model, method.tolerance, target.dim)

    num_closer = num_diagnostic_draws(target.model, method.tolerance, target.dim)

    def evaluated(trainee: Trainee) -> Float[np.ndarray, "r s"]:
        with pace.evaluating(num_restarts * num_draws):
            return evaluate_finite(trainee, target, evaluation_key, num_draws)

    def is_met(
        trainee: Trainee, weights: Float[np.ndarray, "r s"], rows: Float[np.ndarray, "n s"], khat_allowed: float
    ) -> bool:
        """Tell whether the restarts whose log weights are `rows`, of all of them, are near enough."""
        if method.tolerance is not None:
            return all(is_within(row, method.tolerance, target.dim) for row in rows)
        near = all(has_arrived(row, khat_allowed) for row in rows) and pace.may_draw(2 * num_closer)
        return near and is_confirmed(trainee, weights, target, evaluation_key, widened)

    if place is None:
        place = Place(0, 0, 0, trainee, trainee, None)
        if steps is None:
            # The start is kept where training does not improve on it; a Gaussian posterior is met by it exactly.
            seen = evaluated(trainee)
            # All of them: the parts of a mixture may come from restarts that are not the best.
            met = is_met(trainee, seen, seen, UNCOVERED_KHAT)
            if met:
                report(0, 0, _seen_at_start(seen, method.num_particles))
            yield Trained(trainee, 0, is_over=met, is_within=met and must_be_good, nats=distance(best_of(seen)))
            place = place._replace(weights=seen)
    done, after, trainee, weights = place.done, place.after, place.kept, place.weights
    try:
        for cycle, (length, share, bold) in enumerate(cycles[place.cycle :], place.cycle):
            bold = bold and method.use_score and weights is not None and distance(best_of(weights)) < NEAR
            chunks = _chunks(method.rates(length, 1.0 if bold else share))
            before = place.chunk if cycle == place.cycle else 0
            stays_reverse = cycle == 0 or not method.cover
            powers = np.zeros(num_restarts) if stays_reverse or weights is None else _powers(weights)
            planned = done + sum(map(len, chunks[before:])) if steps is None else steps
            after = after if before else trainee
            for number, chunk in enumerate(chunks[before:], before + 1):
                after, trace = take_steps(
                    after,
                    target,
                    nth(key, done),
                    np.pad(chunk, (0, CHUNK - len(chunk))),
                    powers,
                    optimizer=method.optimizer,
                    num_particles=method.num_particles,
                    use_score=method.use_score,
                    effort=effort,
                    piece=method.piece,
                    pace=pace,
                )
                taken = min(len(chunk), trace.elbo.shape[1])
                done += taken
                if taken:
                    report(done, planned, Trace(*(leaf[:, :taken] for leaf in trace)))
                if taken < len(chunk):
                    raise OutOfTimeError
                keep(Place(cycle, number, done, after, trainee, weights))
            if steps is not None and done == steps and weights is None:
                trainee = after
                continue
            log_weights = evaluated(after)
            step, judged = compare(weights, log_weights, method.tolerance), log_weights
            out_of_reach = method.tolerance is not None and is_out_of_reach(best_of(log_weights), method.tolerance)
            may_end = length >= (0 if method.tolerance is None or out_of_reach else LONG_CYCLE_TO_TOLERANCE)
            may_be_last = steps is None and may_end and not step.worthwhile
            # Far from the tolerance the draws of the evaluation tell enough.
            if weights is not None and may_be_last and not out_of_reach and pace.may_draw(2 * num_closer):
                old = look_closer(trainee, weights, target, evaluation_key, method.tolerance)
                new = look_closer(after, log_weights, target, evaluation_key, method.tolerance)
                step = compare(old, new, method.tolerance)
                judged = new if step.better else old
            if step.better or weights is None:
                trainee, weights = after, log_weights
            if steps is not None:
                continue
            # One cycle of covering is due unless the tails are met already.
            khat_allowed = UNCOVERED_KHAT if cycle == 0 else COVERED_KHAT
            # After a bold cycle in vain the next one, at a low rate, may still gain.
            is_long = (length >= method.long_cycle and not bold) or method.tolerance is not None
            in_vain = may_end and not step.worthwhile and (is_close(best_of(judged)) or is_long)
            if goal is not None and cycle == 0 and distance(best_of(weights)) > goal:
                in_vain = True
            met = in_vain or is_met(trainee, weights, best_of(judged)[None], khat_allowed)
            # What a cycle did not improve is over if it is good, even where the tolerance is out of reach.
            settled = must_be_good and cycle > 0 and not step.worthwhile
            over, asks = met or settled, must_be_good and not in_vain
            nats = distance(best_of(weights))
            yield Trained(trainee, done, is_over=over, is_within=over and asks, nats=nats)
    except (KeyboardInterrupt, OutOfTimeError) as reason:
        out_of_time = isinstance(reason, OutOfTimeError)
        if done == 0:
            if not out_of_time:
                raise
            seen = evaluated(trainee) if weights is None else weights
            report(0, 0, _seen_at_start(seen, method.num_particles))
        # In the middle of a cycle the rates are high: what the last one ended with may be the better.
        elif weights is None or (after is not trainee and compare(weights, evaluated(after)).better):
            trainee = after
        yield Trained(trainee, done, interrupted=not out_of_time, is_over=True, out_of_time=out_of_time)
        return
    if steps is not None:
        yield Trained(trainee, done)


def _seen_at_start(weights: Float[np.ndarray, "r s"], num_particles: int) -> Trace:
    """Return the record of a start that needs no training, as if its many draws were one step's few."""
    share = num_particles / weights.shape[1]
    return Trace(np.mean(weights, 1, keepdims=True), share * np.var(weights, 1, keepdims=True))


def _divide(steps: int, method: Method) -> tuple[Cycle, ...]:
    """Split a given number of steps into a bulk and a covering cycle, where the flow can be trained to cover."""
    if not (method.use_score and method.cover) or steps < 2 * CHUNK:
        return (Cycle(steps),)
    return (Cycle(steps - steps // 2), Cycle(steps // 2))


def choose_cycles(trainee: Trainee, target: Target, method: Method) -> tuple[Cycle, ...]:
    """Choose the cycles of a training that ends by itself."""
    if method.tolerance is not None:
        return SHORT_CYCLES
    if isinstance(trainee.flow, Mixture):
        return CYCLES[:NUM_CYCLES_MIXTURE]
    if not is_dense(target.dim):
        return CYCLES[:NUM_CYCLES_WIDE]
    return CYCLES[:NUM_CYCLES_LARGE] if len(trainee.num_skipped) > 1 or target.dim > FULL_RATE_DIM else CYCLES


def _chunks(rates: Float[np.ndarray, " num"]) -> list[np.ndarray]:
    return [rates[start : start + CHUNK] for start in range(0, len(rates), CHUNK)]


def _powers(weights: Float[np.ndarray, "r s"]) -> Float[np.ndarray, " r"]:
    """Choose the divergence of the next cycle for every restart."""
    return np.array([float(ess_fraction(row) > COVERING_ESS) for row in weights])
