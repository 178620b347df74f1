"""Which tails of a posterior fall like a power, seen where no draw of a fit will ever be.

Training learns the weight of a tail from the draws in it. Those are few, and where they lie a power hardly differs from
what the polynomial can do: the power that it finds is a third of the true one. Far along the axes of a start the
density itself tells: a power of the radius falls by the same factor from every radius to its tenfold.
"""

import numpy as np
from jaxtyping import Float

from bernflow.fit.start import Gaussian
from bernflow.posterior import sampling
from bernflow.target import Target

# In units of the start. Axes whose density has fallen below any power between the near radii are not followed to the
# far ones, where densities such as the solution of a differential equation may take for ever.
NEAR = np.array([12.0, 36.0])
FAR = np.array([1e3, 1e4, 1e5])
# Above so many degrees of freedom a tail passes for one that is no power.
MAX_DEGREES = 20.0
# A density x^-1 has no mass that is finite.
MIN_DEGREES = 0.05
# Exponents at different radii differ by less than this fraction, or it is no power.
SAME = 0.02
# Numbers of the points that are looked at together.
MAX_NUMBERS = 2_000_000


@np.errstate(all="ignore")  # far away everything overflows
def find_powers(target: Target, starts: Gaussian) -> Float[np.ndarray, "r p 2"]:
    """Return 1 / (degrees of freedom) of both tails of every dimension of every start; 0 where the tail is no power.

    These are tails of the density given all other dimensions, not of the marginal, which may be heavier.
    """
    num, dim = np.shape(starts.loc)
    powers = np.zeros((num, dim, 2))
    sides = np.stack(np.meshgrid(np.arange(num), np.arange(dim), np.arange(2), indexing="ij"), -1).reshape(-1, 3)
    steepest = (1.0 + MAX_DEGREES) * (1.0 + SAME)
    for part in np.array_split(sides, -(-sides.size * dim // MAX_NUMBERS)):
        followed = part[_exponents(target, starts, part, NEAR)[:, 0] < steepest]
        if not len(followed):
            continue
        first, second = _exponents(target, starts, followed, FAR).T
        degrees = second - 1.0
        # Written so that what is not a number is no power.
        found = (np.abs(first - second) < SAME * second) & (degrees > MIN_DEGREES) & (degrees < MAX_DEGREES)
        powers[tuple(followed[found].T)] = 1.0 / degrees[found]
    return powers


def _exponents(
    target: Target, starts: Gaussian, sides: np.ndarray, radii: Float[np.ndarray, " k"]
) -> Float[np.ndarray, "n k-1"]:
    """Return s where the density falls like radius^-s from each radius to the next, on sides (start, axis, 0 or 1)."""
    start, axis, side = sides.T
    direction = np.asarray(starts.factor)[start, :, axis] * np.where(side == 0, -1.0, 1.0)[:, None]
    x = np.asarray(starts.loc)[start][:, None] + radii[:, None] * direction[:, None]
    log_p = sampling.log_density(target.layout, target.model, x.reshape(-1, x.shape[-1])).reshape(len(sides), -1)
    return -np.diff(log_p, axis=1) / np.diff(np.log(radii))
