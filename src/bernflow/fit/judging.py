"""Fresh draws of trained flows, and what they tell."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.diagnostics.findings import Diagnostics
from bernflow.diagnostics.verdict import judge_weights, with_search
from bernflow.fit import modes
from bernflow.fit.deadline import Pace
from bernflow.fit.evaluation import evaluate, num_diagnostic_draws, pick, weigh
from bernflow.fit.settings import Settings
from bernflow.fit.train.state import TrainState, num_stacked
from bernflow.flows.base import AbstractDistribution
from bernflow.flows.mixture import Mixture
from bernflow.keys import nth
from bernflow.placement import fetched
from bernflow.target import Target

DIAGNOSTIC_PRECISION = "float64"
# A single unlucky draw makes a k-hat high. Where the weights are this even and the verdict is not good, so many times
# as many fresh draws decide: a tail that is wrong shows more clearly among them.
EVEN_ESS, CLOSER = 0.995, 4


class Look(NamedTuple):
    """What is handed out of trained flows, with fresh draws of it.

    Attributes:
        trainee: the trained flows.
        best: index of the best restart.
        distribution: the best flow, or a mixture.
        missing: share of the mass that it misses as far as the other restarts tell, or None.
        draws: fresh draws; in very many dimensions, only the first.
        log_weights: their log weights; in very many dimensions, those of more draws.
        alone: the verdict by the weights alone.
    """

    trainee: TrainState
    best: int
    distribution: AbstractDistribution
    missing: float | None
    draws: Float[np.ndarray, "s p"]
    log_weights: Float[np.ndarray, " s"]
    alone: Diagnostics

    @property
    def num_skipped(self) -> int:
        """Number of training steps of the best restart that were not finite."""
        return int(np.asarray(self.trainee.num_skipped)[self.best])

    def judge(self) -> Diagnostics:
        """Return the verdict by the weights and what other restarts have found."""
        return with_search(self.alone, self.missing, None)


def look(
    trainee: TrainState,
    target: Target,
    settings: Settings,
    choice_key: Key[Array, ""],
    judge_key: Key[Array, ""],
    pace: Pace,
) -> Look:
    """Choose what to hand out of trained flows and draw from it, in double precision.

    To a tolerance, few draws are enough for a fit that they call good; there are fewer where the time is short, and
    more where only the tail of even weights speaks against the fit.
    """
    flows = cast(fetched(trainee.flow), DIAGNOSTIC_PRECISION)
    best, distribution, missing = choose(flows, target, choice_key, settings)
    distribution = fetched(distribution)
    nums = {num_diagnostic_draws(target.model, tolerance, target.dim) for tolerance in (settings.tolerance, None)}
    for num in sorted({pace.num_draws(num) for num in nums}):
        drawn = draw_and_judge(distribution, target, judge_key, num, int(np.asarray(trainee.num_skipped)[best]))
        seen = Look(trainee, best, distribution, missing, *drawn)
        if seen.judge().verdict == "good":
            break
    return _look_closer(seen, target, nth(judge_key, 1), pace)


def _look_closer(seen: Look, target: Target, key: Key[Array, ""], pace: Pace) -> Look:
    """Return a look with more draws where the weights are even and only their tail speaks against a fit."""
    diagnostics, num = seen.judge(), CLOSER * len(seen.log_weights)
    is_doubtful = diagnostics.verdict != "good" and diagnostics.ess_fraction >= EVEN_ESS
    if not is_doubtful or len(seen.draws) < len(seen.log_weights) or pace.num_draws(num) < num:
        return seen
    drawn = draw_and_judge(seen.distribution, target, key, num, seen.num_skipped)
    return Look(seen.trainee, seen.best, seen.distribution, seen.missing, *drawn)


def draw_and_judge(
    distribution: AbstractDistribution, target: Target, key: Key[Array, ""], num: int, num_skipped: int = 0
) -> tuple[Float[np.ndarray, "s p"], Float[np.ndarray, " s"], Diagnostics]:
    """Return fresh draws, their log weights, and the verdict by these alone."""
    draws, log_weights = weigh(distribution, target, key, num)
    # In very many dimensions not all draws are kept.
    kept = draws if len(draws) == len(log_weights) else None
    return draws, log_weights, judge_weights(log_weights, kept, num_skipped)


def choose(
    flows: AbstractDistribution, target: Target, key: Key[Array, ""], settings: Settings
) -> tuple[int, AbstractDistribution, float | None]:
    """Return the best restart's index, what to hand out, and the mass that it misses as far as the others tell."""
    num = num_stacked(flows)
    if num == 1:
        only = pick(flows, 0)
        # Weights in training are not normalised.
        return 0, Mixture(only.components, only.log_weights) if isinstance(only, Mixture) else only, None
    elbos = np.mean(evaluate(flows, target, key, modes.NUM_DRAWS), axis=1)
    best = int(np.nanargmax(np.where(np.isfinite(elbos), elbos, -np.inf)))
    densities = modes.cross_densities(flows, target, key)  # type: ignore[arg-type]
    if (settings.components or 1) > 1:
        parts = modes.choose_parts(densities, settings.components or 1, settings.part_gain)
        chosen = jax.tree.map(lambda leaf: leaf[np.array(parts)] if eqx.is_array(leaf) else leaf, flows)
        # Fresh draws, more of them where there were many flows: the choice is made, the weights are not.
        densities = modes.cross_densities(chosen, target, nth(key, 1))
        return best, modes.merge([pick(flows, i) for i in parts], densities), None
    return best, pick(flows, best), modes.missing_mass(densities, best)


def cast(flows: Any, precision: str) -> Any:
    """Return flows in another precision."""
    return jax.tree.map(lambda leaf: leaf.astype(precision) if eqx.is_inexact_array(leaf) else leaf, flows)
