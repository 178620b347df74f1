"""Where heated draws go: sets of coordinates whose noise is far out, and the density of all sets together."""

import math

import numpy as np
from jaxtyping import Bool, Float

from bernflow.flows.base import LOG_2PI
from bernflow.target import AbstractLayout

# Heated coordinates are so many times as far out as usual, between the first two for most of the draws, between the
# last two for a share of them.
LEAST_HEAT, USUAL_HEAT, MOST_HEAT = 1.0, 100.0, 1e4
SHARE_FAR = 0.2
# Share of the draws whose coordinates are all heated; single coordinates, and random sets of them, that are heated.
SHARE_ALL = 0.4
MAX_SINGLE, NUM_RANDOM = 32, 8
# With fewer draws each of a set of coordinates is not worth looking at.
MIN_DRAWS_OF_SET = 16


def sets(
    layout: AbstractLayout, num: int, random: np.random.Generator
) -> tuple[Bool[np.ndarray, "g p"], Float[np.ndarray, " g"]]:
    """Return the sets of coordinates that are heated together, and their shares of the draws."""
    dim = layout.dim
    masks = [np.ones(dim, bool)]
    begun = 0
    for i in layout.order:
        if 1 < layout.sizes[i] < dim:
            masks.append((np.arange(dim) >= begun) & (np.arange(dim) < begun + layout.sizes[i]))
        begun += layout.sizes[i]
    if dim > 1:
        singles = random.permutation(dim)[:MAX_SINGLE]
        masks += [np.arange(dim) == j for j in singles]
    if dim > 2:
        masks += [random.permutation(dim) < size for size in random.integers(2, dim, NUM_RANDOM)]
    most = max(1, int(num * (1.0 - SHARE_ALL)) // MIN_DRAWS_OF_SET)
    chosen = np.array(masks[: 1 + most])
    others = len(chosen) - 1
    return chosen, np.append(SHARE_ALL, np.full(others, (1.0 - SHARE_ALL) / others)) if others else np.ones(1)


def spread(
    u: Float[np.ndarray, "s p"],
    masks: Bool[np.ndarray, "g p"],
    shares: Float[np.ndarray, " g"],
    random: np.random.Generator,
) -> tuple[Float[np.ndarray, "s p"], Float[np.ndarray, " s"]]:
    """Move the coordinates of one set of every draw out; return the noise, and how far out."""
    num = len(u)
    order = (np.arange(num) + 0.5) / num
    chosen = masks[np.searchsorted(np.cumsum(shares)[:-1], order)]
    # Of each set the distances are spread evenly: those of the golden ratio are so for any part of a sequence.
    even = (random.random() + np.arange(num) * 0.5 * (math.sqrt(5.0) - 1.0)) % 1.0
    near, far = even / (1.0 - SHARE_FAR), (even - 1.0 + SHARE_FAR) / SHARE_FAR
    heat = np.where(
        near < 1.0, LEAST_HEAT * (USUAL_HEAT / LEAST_HEAT) ** near, USUAL_HEAT * (MOST_HEAT / USUAL_HEAT) ** far
    )
    size = np.sum(chosen, 1)
    length = np.linalg.norm(np.where(chosen, u, 0.0), axis=1)
    return np.where(chosen, u * (heat * np.sqrt(size) / length)[:, None], u), heat


def log_density(
    u: Float[np.ndarray, "s p"], masks: Bool[np.ndarray, "g p"], shares: Float[np.ndarray, " g"]
) -> Float[np.ndarray, " s"]:
    """Evaluate the log density of heated noise, all sets together."""
    squares = u**2 @ masks.T.astype(float)
    size = np.sum(masks, 1)
    resting = -0.5 * (np.sum(u**2, 1)[:, None] - squares + LOG_2PI * (u.shape[1] - size))
    log_area = math.log(2.0) + 0.5 * size * math.log(math.pi) - np.array([math.lgamma(0.5 * k) for k in size])
    heat = np.sqrt(squares / size)
    inside = (heat > LEAST_HEAT * (1.0 - 1e-9)) & (heat < MOST_HEAT * (1.0 + 1e-9))
    near, far = (1.0 - SHARE_FAR) / math.log(USUAL_HEAT / LEAST_HEAT), SHARE_FAR / math.log(MOST_HEAT / USUAL_HEAT)
    radial = -0.5 * size * np.log(squares) - log_area + np.log(np.where(heat < USUAL_HEAT, near, far))
    return np.logaddexp.reduce(np.where(inside, np.log(shares) + resting + radial, -np.inf), axis=1)
