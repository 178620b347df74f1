"""The training loop: chunks of steps, one look from the host after each, and when to stop."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from bernflow.diagnostics.importance import ess_fraction, psis
from bernflow.diagnostics.verdict import judge
from bernflow.fit.chunk import CHUNK, Trace, Trainee, key_shape, num_stacked, run_chunk
from bernflow.flows.base import AbstractDistribution, AbstractFlow
from bernflow.keys import grid, nth
from bernflow.posterior import sampling
from bernflow.target import Target

WARM_UP = 50
# Cosine cycles, each longer than the last: a posterior that is met early stops early, the others go on.
CYCLES = (1000, 2000, 4000, 8000)
# Fresh draws behind each decision to go on or to stop, and behind the figures of the verdict.
NUM_EVALUATION_DRAWS = 4000
NUM_DIAGNOSTIC_DRAWS = 20_000
# Below this many nats from the posterior, more steps change nothing that a user could see.
CLOSE_ENOUGH = 5e-4
# ... provided that the tails are met: clearly so before any covering, usably after it.
UNCOVERED_KHAT, COVERED_KHAT = 0.3, 0.7
# Above this k-hat of few draws, as many as for the verdict decide whether the posterior would be called good.
DOUBTFUL_KHAT = 0.4
# So near that no tail can matter.
NEGLIGIBLE = 1e-5
# Within this many nats half the variance of the log weights estimates the distance.
NEAR = 0.1
# A cycle is the last if it gains less than this, or less than twice its Monte Carlo error, and if it leaves more
# than this share of the distance.
WORTHWHILE_GAIN = 5e-4
WORTHWHILE_SHARE = 0.8
# Deviations of single log weights count up to this many nats: a few tail draws must not decide.
MAX_DEVIATION = 1.0
# A draw outside of the support counts like one of this log weight: fewer of them are better.
OUTSIDE = -1e6
MAX_LOG_WEIGHT = 1e100
# From this share of effective draws on, importance weights can lead the fit into the tails.
COVERING_ESS = 0.3


class Trained(NamedTuple):
    """What training came to: the flows, the number of steps taken, and whether an interruption ended it."""

    trainee: Trainee
    steps: int
    interrupted: bool = False


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
        cover: after the first cycle, minimise the forward KL where the weights allow it.
    """

    optimizer: optax.GradientTransformation
    learning_rate: float | None
    constant_rate: bool
    num_particles: int
    use_score: bool
    cover: bool = True

    def rates(self, num: int) -> Float[np.ndarray, " num"]:
        """Return the learning rates of one cycle: linear warm-up, then a cosine down to zero."""
        if self.learning_rate is None:
            return np.ones(num)
        if self.constant_rate:
            return np.full(num, self.learning_rate)
        step = np.arange(num)
        warm_up = np.minimum(1.0, (step + 1) / min(WARM_UP, num))
        return self.learning_rate * warm_up * 0.5 * (1.0 + np.cos(np.pi * step / num))


# Hears of every finished chunk: steps done, steps planned so far, and what the chunk saw. A KeyboardInterrupt from it
# ends the training.
Report = Callable[[int, int, Trace], None]


@eqx.filter_jit
def pick(flows: AbstractFlow, index: Int[Array, ""]) -> AbstractFlow:
    """Return one of the stacked flows."""
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, flows)


def evaluate(flows: AbstractFlow, target: Target, key: Key[Array, ""], num: int) -> Float[np.ndarray, "r s"]:
    """Return the log weights of `num` draws of every restart, all made from the same noise.

    It goes through the functions that later serve the posterior, so that nothing is compiled for this alone.
    """
    return np.stack([log_weights_of(pick(flows, jnp.asarray(i)), target, key, num) for i in range(num_stacked(flows))])


def log_weights_of(
    distribution: AbstractDistribution, target: Target, key: Key[Array, ""], num: int
) -> Float[np.ndarray, " s"]:
    """Return the log weights of fresh draws."""
    return weigh(distribution, target, key, num)[1]


def weigh(
    distribution: AbstractDistribution, target: Target, key: Key[Array, ""], num: int
) -> tuple[Float[np.ndarray, "s p"], Float[np.ndarray, " s"]]:
    """Return fresh draws and their log weights."""
    x, log_q = sampling.sample(distribution, key, num)
    return x, sampling.log_density(target.layout, target.model, x) - log_q


def train(
    trainee: Trainee,
    target: Target,
    key: Key[Array, ""],
    method: Method,
    steps: int | None,
    report: Report,
    place: Place | None = None,
    keep: Callable[[Place], None] = lambda place: None,
) -> Trained:
    """Train for the given number of steps, or until nothing is gained any more.

    The first cycle minimises the reverse KL; as soon as the weights of a restart are even enough it goes on with the
    forward KL, which carries the fit into the tails. An interruption keeps the best flows so far; before the first
    chunk is done there are none, and it is raised on.

    Args:
        trainee: the flows at the start.
        target: what they are fitted to.
        key: a random key.
        method: how to train.
        steps: number of steps, or None.
        report: hears of every finished chunk.
        place: where an earlier call stood, to go on from there.
        keep: hears, after `report`, where the training stands. A KeyboardInterrupt from it ends the training.
    """
    num_restarts = trainee.num_skipped.shape[0]
    cycles = CYCLES if steps is None else _divide(steps, method)
    evaluation_key = nth(key, 2**31 - 1)
    if place is None:
        place = Place(0, 0, 0, trainee, trainee, None)
        if steps is None:
            # The start is kept where training does not improve on it; a Gaussian posterior is met by it exactly.
            seen = _evaluate_finite(trainee, target, evaluation_key)
            # All of them: the parts of a mixture come from restarts that are not the best.
            arrived = all(_arrived(row, UNCOVERED_KHAT) for row in seen)
            if arrived and _is_good(trainee, seen, target, evaluation_key):
                report(0, 0, _seen_at_start(seen, method.num_particles))
                return Trained(trainee, 0)
            place = place._replace(weights=seen)
    done, after, trainee, weights = place.done, place.after, place.kept, place.weights
    try:
        for cycle, length in enumerate(cycles[place.cycle :], place.cycle):
            chunks = _chunks(method.rates(length))
            before = place.chunk if cycle == place.cycle else 0
            stays_reverse = cycle == 0 or not method.cover
            powers = np.zeros(num_restarts) if stays_reverse or weights is None else _powers(weights)
            planned = done + sum(map(len, chunks[before:])) if steps is None else steps
            after = after if before else trainee
            for number, chunk in enumerate(chunks[before:], before + 1):
                after, trace = run_chunk(
                    after,
                    target,
                    grid(nth(key, done), key_shape(after.flow, num_restarts, CHUNK, method.num_particles)),
                    jnp.asarray(np.pad(chunk, (0, CHUNK - len(chunk)))),
                    jnp.asarray(powers),
                    optimizer=method.optimizer,
                    num_particles=method.num_particles,
                    use_score=method.use_score,
                )
                done += len(chunk)
                report(done, planned, Trace(*(np.asarray(leaf)[:, : len(chunk)] for leaf in trace)))
                keep(Place(cycle, number, done, after, trainee, weights))
            if steps is not None and done == steps and weights is None:
                return Trained(after, done)
            log_weights = _evaluate_finite(after, target, evaluation_key)
            step = _compare(weights, log_weights)
            if step.better or weights is None:
                trainee, weights = after, log_weights
            # One cycle of covering is due unless the tails are met already.
            khat_allowed = UNCOVERED_KHAT if length == cycles[0] else COVERED_KHAT
            if steps is None and (
                (not step.worthwhile and length != cycles[0])
                or (_arrived(_best(weights), khat_allowed) and _is_good(trainee, weights, target, evaluation_key))
            ):
                break
    except KeyboardInterrupt:
        if done == 0:
            raise
        # In the middle of a cycle the rates are high: what the last one ended with may be the better.
        if weights is None or _compare(weights, _evaluate_finite(after, target, evaluation_key)).better:
            trainee = after
        return Trained(trainee, done, interrupted=True)
    return Trained(trainee, done)


def _evaluate_finite(trainee: Trainee, target: Target, key: Key[Array, ""]) -> Float[np.ndarray, "r s"]:
    log_weights = evaluate(trainee.flow, target, key, NUM_EVALUATION_DRAWS)
    # In double precision and within a range whose squares can be summed, also where single precision ends.
    known = np.nan_to_num(log_weights.astype(np.float64), nan=OUTSIDE, neginf=OUTSIDE, posinf=OUTSIDE)
    return np.clip(known, -MAX_LOG_WEIGHT, MAX_LOG_WEIGHT)


def _seen_at_start(weights: Float[np.ndarray, "r s"], num_particles: int) -> Trace:
    """Return the record of a start that needs no training, as if its many draws were one step's few."""
    share = num_particles / weights.shape[1]
    return Trace(np.mean(weights, 1, keepdims=True), share * np.var(weights, 1, keepdims=True))


def _divide(steps: int, method: Method) -> tuple[int, ...]:
    """Split a given number of steps into a bulk and a covering cycle, where the flow can be trained to cover."""
    if not (method.use_score and method.cover) or steps < 2 * CHUNK:
        return (steps,)
    return (steps - steps // 2, steps // 2)


def _chunks(rates: Float[np.ndarray, " num"]) -> list[np.ndarray]:
    return [rates[start : start + CHUNK] for start in range(0, len(rates), CHUNK)]


def _powers(weights: Float[np.ndarray, "r s"]) -> Float[np.ndarray, " r"]:
    """Choose the divergence of the next cycle for every restart."""
    return np.array([float(ess_fraction(row) > COVERING_ESS) for row in weights])


def _best_index(weights: Float[np.ndarray, "r s"]) -> int:
    """Return the restart with the highest ELBO."""
    return int(np.argmax(np.mean(weights, 1)))


def _best(weights: Float[np.ndarray, "r s"]) -> Float[np.ndarray, " s"]:
    """Return the log weights of the restart with the highest ELBO."""
    return weights[_best_index(weights)]


class Comparison(NamedTuple):
    """How a cycle changed the best restart.

    Attributes:
        better: keep the new flows.
        worthwhile: another cycle may gain something.
    """

    better: bool
    worthwhile: bool


def _compare(before: Float[np.ndarray, "r s"] | None, after: Float[np.ndarray, "r s"]) -> Comparison:
    """Compare log weights before and after a cycle; both were made from the same noise.

    Far from the posterior the ELBO decides. Near it the spread of the log weights does: it is the same quantity with a
    far smaller Monte Carlo error.
    """
    if before is None:
        return Comparison(better=True, worthwhile=True)
    distance, old_distance = _distance(_best(after)), _distance(_best(before))
    difference = _best(after) - _best(before)
    gain, error = np.mean(difference), np.std(difference) / np.sqrt(difference.size)
    better = distance < old_distance if old_distance < NEAR else gain > 0.0
    significant = gain > max(WORTHWHILE_GAIN, 2.0 * error) or distance < WORTHWHILE_SHARE * old_distance
    return Comparison(bool(better), bool(significant))


def _arrived(weights: Float[np.ndarray, " s"], khat_allowed: float) -> bool:
    """Tell whether q is so near to the posterior that more steps change nothing visible."""
    distance = _distance(weights)
    return distance < NEGLIGIBLE or (distance < CLOSE_ENOUGH and psis(weights)[1] < khat_allowed)


def _is_good(trainee: Trainee, weights: Float[np.ndarray, "r s"], target: Target, key: Key[Array, ""]) -> bool:
    """Tell whether the best restart would be called good, looking closer only where that is in doubt."""
    if psis(_best(weights))[1] < DOUBTFUL_KHAT:
        return True
    best = pick(trainee.flow, jnp.asarray(_best_index(weights)))
    return judge(log_weights_of(best, target, key, NUM_DIAGNOSTIC_DRAWS)).verdict == "good"


def _distance(weights: Float[np.ndarray, " s"]) -> float:
    """Estimate KL(q || posterior) near the posterior: half the variance of the log weights, of tail draws clipped."""
    deviation = np.clip(weights - np.median(weights), -MAX_DEVIATION, MAX_DEVIATION)
    return 0.5 * float(np.mean(deviation**2))
