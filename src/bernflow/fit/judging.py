"""Fresh draws of trained flows, and what they tell."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.diagnostics.elsewhere import Elsewhere
from bernflow.diagnostics.verdict import Diagnostics, judge
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
        log_weights: their log weights.
    """

    trainee: TrainState
    best: int
    distribution: AbstractDistribution
    missing: float | None
    draws: Float[np.ndarray, "s p"]
    log_weights: Float[np.ndarray, " s"]

    @property
    def num_skipped(self) -> int:
        """Number of training steps of the best restart that were not finite."""
        return int(np.asarray(self.trainee.num_skipped)[self.best])

    def judge(self, missing_mass: float | None = None, elsewhere: Elsewhere | None = None) -> Diagnostics:
        """Return the verdict, given what other restarts and a search elsewhere have found."""
        parts = self.distribution.components if isinstance(self.distribution, Mixture) else (self.distribution,)
        return judge(
            self.log_weights,
            # In very many dimensions not all draws are kept.
            draws=self.draws if len(self.draws) == len(self.log_weights) else None,
            missing_mass=missing_mass,
            elsewhere=elsewhere,
            num_parts=len(parts),
            num_failed_steps=self.num_skipped,
        )


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
        seen = Look(trainee, best, distribution, missing, *weigh(distribution, target, judge_key, num))
        if seen.judge(missing).verdict == "good":
            break
    return _look_closer(seen, target, nth(judge_key, 1), pace)


def _look_closer(seen: Look, target: Target, key: Key[Array, ""], pace: Pace) -> Look:
    """Return a look with more draws where the weights are even and only their tail speaks against a fit."""
    diagnostics = seen.judge(seen.missing)
    num = CLOSER * len(seen.log_weights)
    is_doubtful = diagnostics.verdict != "good" and diagnostics.ess_fraction >= EVEN_ESS
    if not is_doubtful or len(seen.draws) < len(seen.log_weights) or pace.num_draws(num) < num:
        return seen
    draws, log_weights = weigh(seen.distribution, target, key, num)
    return seen._replace(draws=draws, log_weights=log_weights)


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
