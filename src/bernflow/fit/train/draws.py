"""Fresh draws of flows in training, behind every decision to go on or to stop."""

import dataclasses

import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.fit.deadline import Pace
from bernflow.fit.evaluation import (
    evaluate_finite,
    finite,
    log_weights_of,
    num_diagnostic_draws,
    num_evaluation_draws,
    pick,
    weigh_widened,
)
from bernflow.fit.train.divergence import best_index, unlimited_distance
from bernflow.fit.train.recipe import Recipe
from bernflow.fit.train.state import TrainState, num_stacked
from bernflow.flows.mixture import Mixture
from bernflow.target import Target


@dataclasses.dataclass(frozen=True)
class Draws:
    """Weighs flows by fresh draws, always from the same noise.

    Attributes:
        target: the posterior.
        key: of the noise.
        recipe: how the flows are trained.
        pace: measures how long draws take.
    """

    target: Target
    key: Key[Array, ""]
    recipe: Recipe
    pace: Pace

    def few(self, state: TrainState) -> Float[np.ndarray, "r s"]:
        """Return log weights of every restart."""
        num = num_evaluation_draws(self.target.model, self.recipe.tolerance, self.target.dim)
        with self.pace.evaluating(num_stacked(state.flow) * num):
            return evaluate_finite(state, self.target, self.key, num)

    def many(
        self, state: TrainState, weights: Float[np.ndarray, "r s"], tolerance: float | None
    ) -> Float[np.ndarray, "1 n"]:
        """Return log weights of as many draws as for the verdict, of the best restart alone."""
        num = num_diagnostic_draws(self.target.model, tolerance, self.target.dim)
        best = pick(state.flow, best_index(weights))
        return finite(log_weights_of(best, self.target, self.key, num))[None]

    def may_be_many(self) -> bool:
        """Tell whether the time allows `many` of two fits."""
        num = num_diagnostic_draws(self.target.model, self.recipe.tolerance, self.target.dim)
        return self.pace.may_draw(2 * num)

    def distance_in_tails(self, state: TrainState, weights: Float[np.ndarray, "r s"], num: int) -> float:
        """Return the divergence of the best restart by draws that visit the tails; 0 where training made no such."""
        # A mixture's noise is that of its parts, each alone.
        if not self.recipe.config.use_score or isinstance(state.flow, Mixture):
            return 0.0
        best, particles = best_index(weights), self.recipe.num_particles
        widened, log_shares = weigh_widened(state, best, self.target, self.key, num, particles)
        return unlimited_distance(finite(widened), log_shares)
