"""How to train: what a step depends on, the cycles of a training, and their learning rates."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import optax
from jaxtyping import Float

from bernflow.background import Effort
from bernflow.fit.settings import FULL_RATE_DIM, Settings
from bernflow.flows.base import AbstractDistribution
from bernflow.flows.factors import is_dense
from bernflow.flows.mixture import Mixture

# Steps between two looks from the host.
CHUNK = 250
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
# In many dimensions, and of several flows at once, steps take longer: there are fewer.
NUM_CYCLES_LARGE = 9
# Above the number of dimensions whose factors are matrices, steps take a tenth of a second and more.
NUM_CYCLES_WIDE = 4
# Of a mixture every step needs inverses; near modes and along ridges few steps are enough.
NUM_CYCLES_MIXTURE = 4
# To a tolerance: looked at often, because it may be met early.
SHORT_CYCLES = tuple(map(Cycle, (250, 250, 500, 1000, 2000, 4000, 8000)))


class StepConfig(NamedTuple):
    """What compiled steps depend on beside shapes.

    Attributes:
        optimizer: turns gradients in the flow into updates; the learning rate multiplies them.
        use_score: train by path gradients, which need the score of the flow.
        weights_optimizer: the same for the weights of a network; None without one.
    """

    optimizer: optax.GradientTransformation
    use_score: bool
    weights_optimizer: optax.GradientTransformation | None = None


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        config: what a step depends on.
        learning_rate: peak of the schedule, or None where the optimizer has its own.
        num_particles: draws per step.
        weights_rate: the same for the weights of a network; None without one.
        constant_rate: no warm-up and no decay (the paper's recipe).
        cover: after the first cycle, minimize the forward KL where q has too little, if the weights allow it.
        widened: noise that visits every tail, see `stratified_noise`.
        steps: number of steps; None: end by the stopping rule.
        tolerance: distance from the posterior, in nats, at which to stop; None: where the ELBO stops improving.
        piece: most steps per call of compiled code; None: as many as fit in memory.
        chunk: steps between two looks from the host.
        epoch: number of steps after which somebody looks, so that chunks end there; None: nobody does.
        follows_clock: under a time limit the rate decays with the time.
    """

    config: StepConfig
    learning_rate: float | None
    num_particles: int
    weights_rate: float | None = None
    constant_rate: bool = False
    cover: bool = True
    widened: bool = False
    steps: int | None = None
    tolerance: float | None = None
    piece: int | None = None
    chunk: int = CHUNK
    epoch: int | None = None
    follows_clock: bool = False

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer of the flow."""
        return self.config.optimizer

    @property
    def effort(self) -> Effort:
        """How hard to compile: the few hundred steps to a tolerance take less time than compiling."""
        return Effort.FULL if self.tolerance is None else Effort.LIGHT

    def rates(self, num: int, share: float = 1.0) -> Float[np.ndarray, " num"]:
        """Return the learning rates of one cycle, from a share of the peak."""
        return np.ones(num) if self.learning_rate is None else share * self.learning_rate * self._schedule(num)

    def weights_rates(self, num: int) -> Float[np.ndarray, " num"] | None:
        """Return the learning rates of the weights of a network."""
        return None if self.weights_rate is None else self.weights_rate * self._schedule(num)

    def _schedule(self, num: int) -> Float[np.ndarray, " num"]:
        """Return a linear warm-up to one, then a cosine down to zero."""
        if self.constant_rate:
            return np.ones(num)
        step = np.arange(num)
        return np.minimum(1.0, (step + 1) / min(WARM_UP, num)) * 0.5 * (1.0 + np.cos(np.pi * step / num))

    def cycles(self, flows: AbstractDistribution, num_flows: int) -> tuple[Cycle, ...]:
        """Choose the cycles of a training."""
        if self.steps is not None:
            # A given number of steps is a cycle for the bulk and one that covers, where the flow can be trained to.
            covers = self.config.use_score and self.cover and self.steps >= 2 * CHUNK
            second = self.steps // 2
            return (Cycle(self.steps - second), Cycle(second)) if covers else (Cycle(self.steps),)
        if self.tolerance is not None:
            return SHORT_CYCLES
        if isinstance(flows, Mixture):
            return CYCLES[:NUM_CYCLES_MIXTURE]
        if not is_dense(flows.dim):
            return CYCLES[:NUM_CYCLES_WIDE]
        return CYCLES[:NUM_CYCLES_LARGE] if num_flows > 1 or flows.dim > FULL_RATE_DIM else CYCLES

    def chunk_lengths(self, length: int) -> tuple[list[int], int]:
        """Cut a cycle into chunks; return their lengths, and the one that all are filled up to.

        Where somebody looks after every epoch, chunks end with the epochs and are of nearly equal length.
        """
        if self.epoch is None and self.chunk == CHUNK:
            return [min(CHUNK, length - start) for start in range(0, length, CHUNK)], CHUNK
        lengths = []
        for start in range(0, length, self.epoch or length):
            num = min(self.epoch or length, length - start)
            parts = math.ceil(num / self.chunk)
            lengths += [num // parts + (i < num % parts) for i in range(parts)]
        return lengths, max(lengths, default=0)


def recipe_for(settings: Settings, flows: AbstractDistribution) -> Recipe:
    """Return how flows are trained on all rows."""
    use_score = settings.trains_by_score(flows)
    return Recipe(
        config=StepConfig(settings.optimizer, use_score),
        learning_rate=settings.rate_in(flows.dim),
        num_particles=settings.num_particles,
        constant_rate=settings.family.paper_recipe,
        cover=settings.family.cover,
        widened=use_score,
        steps=settings.steps,
        tolerance=settings.tolerance,
        piece=settings.piece,
    )
