"""Points to test a density, chosen like Stan's initial values."""

import numpy as np
from jaxtyping import Float

RADIUS = 2.0
NUM_HALVINGS = 4
# The same number as in Stan.
NUM_TRIES = 100


def shrinking_points(rng: np.random.Generator, dim: int, num: int = NUM_TRIES) -> Float[np.ndarray, "num p"]:
    """Return points that are uniform on (-2, 2), then on ranges of decreasing width, and the origin last.

    Densities that overflow far from zero, such as those of differential equations, are often finite near it.

    Example:
        >>> points = shrinking_points(np.random.default_rng(0), 3)
        >>> points.shape, bool(np.abs(points[80:]).max() < 0.125)
        ((100, 3), True)
    """
    radius = RADIUS * 0.5 ** (np.arange(num) * (NUM_HALVINGS + 1) // num)
    points = radius[:, None] * rng.uniform(-1.0, 1.0, (num, dim))
    points[-1] = 0.0
    return points
