"""Highest-density regions of pairs of components, and tests whether one component is a function of another."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from bernflow.plots.densities import bandwidth, find_bounds, smooth

# Probabilities of the highest-density regions.
REGIONS = (0.9, 0.5)
# Draws beyond these quantiles of either component are outside of the mesh.
INSIDE = (0.002, 0.998)
NUM_BINS, MARGIN = 220, 0.12
# A product kernel is too wide for a ridge narrower than this correlation implies: it is then rotated.
MAX_CORRELATION = 1.0 - 1e-10
# Bins of a bandwidth; a narrower kernel would not be resolved.
LEAST_BINS = 1.5
# Above this rank coefficient one component is a function of the other.
FUNCTION = 0.99
# Number of draws that are tested.
NUM_TESTED = 4000


class HasDraws(Protocol):
    """A component with its draws."""

    @property
    def values(self) -> np.ndarray:
        """Its draws, (num,)."""


Varying = TypeVar("Varying", bound=HasDraws)


class Region(NamedTuple):
    """A bivariate density on a mesh, and the increasing levels of its highest-density regions."""

    x: np.ndarray
    y: np.ndarray
    density: np.ndarray
    levels: np.ndarray


def highest_density(x: np.ndarray, y: np.ndarray) -> Region | None:
    """Estimate a bivariate density and the levels of its highest-density regions.

    A histogram is smoothed by adaptive kernels, in coordinates in which the draws are uncorrelated, so that a narrow
    ridge stays narrow. Draws are mirrored at the bounds of their support, so that contours reach the bounds.

    Returns:
        The region, or None if the draws lie on a line.
    """
    points = np.stack([x, y])
    low, high = np.quantile(points, INSIDE, axis=1)
    inside = np.all((points >= low[:, None]) & (points <= high[:, None]), axis=0)
    scale = points[:, inside].std(axis=1) if inside.any() else np.zeros(2)
    if not np.all(scale > 0):
        return None
    correlation = np.corrcoef(points[:, inside])
    if abs(correlation[0, 1]) > MAX_CORRELATION:
        return None
    middle = points[:, inside].mean(axis=1)
    factor = scale[:, None] * np.linalg.cholesky(correlation)
    u = np.linalg.solve(factor, points - middle[:, None])
    edges = [_edges(values[inside]) for values in u]
    bounds = [find_bounds(values) for values in points]
    mirrored = np.linalg.solve(factor, _mirrored(points, bounds) - middle[:, None])
    counts, *_ = np.histogram2d(mirrored[0], mirrored[1], bins=(edges[0], edges[1]))
    widths = [_width(values[inside], e) for values, e in zip(u, edges, strict=True)]
    density = smooth(counts, widths)
    centers = [(e[1:] + e[:-1]) / 2 for e in edges]
    mesh = np.tensordot(factor, np.meshgrid(*centers, indexing="ij"), axes=1) + middle[:, None, None]
    possible = np.ones(density.shape, bool)
    for values, (lower, upper) in zip(mesh, bounds, strict=True):
        possible &= (values >= lower) & (values <= upper)
    ordered = np.sort(density[possible])[::-1]
    # Draws beyond the mesh count as mass outside the regions.
    mass = np.cumsum(ordered) / len(x)
    levels = [ordered[min(int(np.searchsorted(mass, region)), len(mass) - 1)] for region in REGIONS]
    return Region(mesh[0], mesh[1], density, np.array(levels)) if 0 < levels[0] < levels[1] else None


def independent(panels: Sequence[Varying], limit: int) -> list[Varying]:
    """Return the first components that are not functions of one that was chosen before them, at most `limit`."""
    chosen: list[Varying] = []
    for panel in panels:
        if len(chosen) == limit:
            break
        if not any(is_function(panel.values, other.values) for other in chosen):
            chosen.append(panel)
    return chosen


def is_function(x: np.ndarray, y: np.ndarray) -> bool:
    """Tell whether one of two components is a function of the other, by Chatterjee's rank coefficient.

    Example:
        >>> x, e = np.random.default_rng(0).normal(size=(2, 1000))
        >>> is_function(x, 1 - x**2), is_function(x, x + 0.3 * e)
        (True, False)
    """
    step = max(1, len(x) // NUM_TESTED)
    ranks = [np.argsort(np.argsort(values[::step])) for values in (x, y)]
    return max(_chatterjee(*ranks), _chatterjee(*ranks[::-1])) > FUNCTION


def _chatterjee(x: np.ndarray, y: np.ndarray) -> float:
    """Return the coefficient of ranks, which is near 1 if y is a function of x and near 0 if they are independent."""
    changes = np.abs(np.diff(y[np.argsort(x)]))
    return 1.0 - 3.0 * float(changes.sum()) / (len(x) ** 2 - 1)


def _edges(values: np.ndarray) -> np.ndarray:
    low, high = values.min(), values.max()
    margin = MARGIN * (high - low)
    return np.linspace(low - margin, high + margin, NUM_BINS + 1)


def _width(values: np.ndarray, edges: np.ndarray) -> float:
    """Return the width of a kernel in bins: the rule for one dimension, with the rate of two."""
    return max(bandwidth(values) * len(values) ** (1 / 5 - 1 / 6) / (edges[1] - edges[0]), LEAST_BINS)


def _mirrored(points: np.ndarray, bounds: list[tuple[float, float]]) -> np.ndarray:
    """Return the points and their mirror images at the bounds of both components."""
    for axis, ends in enumerate(bounds):
        images = [points]
        for bound in ends:
            if np.isfinite(bound):
                image = points.copy()
                image[axis] = 2.0 * bound - image[axis]
                images.append(image)
        points = np.concatenate(images, axis=1)
    return points
