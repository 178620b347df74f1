"""Whether locals on intervals are closer to a Gaussian on the interval than on the scale of logits."""

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from bernflow.background import Effort, background_jit
from bernflow.fit.conditionals import conditional_moments, gradients
from bernflow.fit.marginal import GlobalGaussian
from bernflow.fit.views import on_intervals
from bernflow.flows.bounded import from_logit, mask_of, to_logit
from bernflow.flows.structure import Structure
from bernflow.target import Target

# Random directions along which third derivatives are averaged.
NUM_DIRECTIONS = 8


class IntervalTarget(Target):
    """A target in other coordinates of some parameters: those of `flows/bounded.py`."""

    other: Target
    bounded: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, target: Target, bounded: tuple[int, ...]):
        self.layout, self.model = target.layout, target.model
        self.other, self.bounded = target, bounded

    def log_density_of_sites(self, pieces: list[Array]) -> Float[Array, ""]:
        """Evaluate the log density of these coordinates, split by site."""
        x, log_slope = to_logit(self.layout.join(pieces), mask_of(self.bounded, self.dim))
        return self.other.log_density(x) + log_slope


def locals_on_intervals(target: Target, structure: Structure) -> tuple[int, ...]:
    """Return the dimensions of the locals that lie on intervals."""
    found = on_intervals(target.layout)
    found[list(structure.leaders)] = False
    return tuple(int(i) for i in np.flatnonzero(found))


def choose_coordinates(
    target: Target, structure: Structure, gaussian: GlobalGaussian, bounded: tuple[int, ...]
) -> tuple[Target, GlobalGaussian]:
    """Return the target in the coordinates in which locals are closer to a Gaussian, given the mean of the globals.

    They are compared by the third derivatives along the locals, in units of their standard deviations.
    """
    other = IntervalTarget(target, bounded)
    x = np.asarray(_from_logit(gaussian.x, bounded))
    at = conditional_moments(other, structure, x[None])
    moved = GlobalGaussian(gaussian.loc, gaussian.tril, at.x[0], at.locals)
    if _asymmetry(other, structure, moved) < _asymmetry(target, structure, gaussian):
        return other, moved
    return target, gaussian


@background_jit(Effort.LEAST)
def _from_logit(x: Float[Array, " p"], bounded: tuple[int, ...]) -> Float[Array, " p"]:
    return from_logit(x, mask_of(bounded, len(x)))[0]


def _asymmetry(target: Target, structure: Structure, at: GlobalGaussian) -> float:
    """Average the squares of third derivatives along locals; infinite where they are not finite."""
    local = structure.order[structure.num_leaders :]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (NUM_DIRECTIONS, *structure.members.shape))
    moved = np.zeros((NUM_DIRECTIONS, structure.dim))
    moved[:, local] = structure.flat(at.locals.color(signs * structure.is_member))
    _, gradient = gradients(target, np.concatenate([at.x + moved, at.x - moved, at.x[None]]))
    third = gradient[:NUM_DIRECTIONS] + gradient[NUM_DIRECTIONS:-1] - 2.0 * gradient[-1]
    third = structure.by_block(third[:, local])
    size = float(np.sum(third * at.locals.solve(third[..., None])[..., 0]))
    return size if np.isfinite(size) else np.inf
