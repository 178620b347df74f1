"""Densities of single components: kernel estimates that respect bounds, on ranges at whose ends they are near zero."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from matplotlib.axes import Axes
from scipy.ndimage import gaussian_filter

from bernflow.diagnostics.summaries import is_constant
from bernflow.plots.style import FIT, REFERENCE, hide_density_axis

# The window of an estimate: these quantiles, with a margin as a fraction of their distance. Single extreme draws of a
# heavy tail do not widen it.
WINDOW, MARGIN = (0.0025, 0.9975), 0.2
# The axis shows at least this central range, and more where the density exceeds a fraction of its peak.
CENTRAL, NEAR_ZERO = (0.01, 0.99), 0.005
# The draws end at a bound if the lowest or highest END of them are as dense as this fraction of the peak.
END, CUT = 0.005, 0.12
# Supports that are recognized, because no draw is outside of them.
NATURAL_BOUNDS = (0.0, 1.0)
# Bins of the window. They are narrow, since an adaptive kernel is narrow at a peak.
BINS = 1024
# The kernel is wider by this factor than the rule says, which is for a kernel of one width, and wider by up to
# LARGEST where the density is low, so that tails are smooth.
WIDER, SMALLEST, LARGEST, NUM_WIDTHS = 1.4, 0.8, 12.0, 9
# Kernels for integers blur the gaps between them.
LEAST_FOR_INTEGERS = 0.8


class Curve(NamedTuple):
    """A density on a grid.

    Attributes:
        grid: increasing places.
        density: the density there.
        low: lower end of the range to show.
        high: upper end of the range to show.
    """

    grid: np.ndarray
    density: np.ndarray
    low: float
    high: float

    def on(self, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the part of the curve on a range; it is closed at a bound and continued by zero beyond its ends."""
        inside = (self.grid >= low) & (self.grid <= high)
        grid, density = self.grid[inside], self.density[inside]
        if not len(grid):
            return np.array([low, high]), np.zeros(2)
        top = self.density.max()
        for end, place, at in ((0, low, 0), (1, high, -1)):
            is_end = grid[at] == self.grid[at]
            if is_end and density[at] > NEAR_ZERO * top:
                # A vertical line at the bound.
                grid, density = np.insert(grid, end * len(grid), grid[at]), np.insert(density, end * len(grid), 0.0)
            if is_end and place != grid[at]:
                grid, density = np.insert(grid, end * len(grid), place), np.insert(density, end * len(grid), 0.0)
        return grid, density


def estimate_density(values: np.ndarray) -> Curve:
    """Estimate a density by a kernel, reflected at the bounds of the draws.

    The curve integrates to the fraction of the draws in its window, which is close to 1.
    """
    values = np.asarray(values, np.float64)
    if is_constant(values):
        return _spike(float(np.median(values)))
    bounds = find_bounds(values)
    low, high = np.quantile(values, WINDOW)
    margin = MARGIN * (high - low)
    low, high = max(low - margin, bounds[0]), min(high + margin, bounds[1])
    inside = values[(values >= low) & (values <= high)]
    if len(np.unique(inside)) < 2:
        return _spike(float(np.median(values)))
    counts, edges = np.histogram(inside, bins=BINS, range=(low, high))
    size = edges[1] - edges[0]
    density = smooth(counts.astype(np.float64), [bandwidth(inside) / size]) / (len(values) * size)
    # The estimate is at the centers of bins, which end half a bin before a bound.
    grid = np.concatenate([[low], (edges[1:] + edges[:-1]) / 2, [high]])
    density = np.pad(density, 1, mode="edge")
    return framed(grid, density, np.quantile(values, CENTRAL))


def framed(grid: np.ndarray, density: np.ndarray, central: Any) -> Curve:
    """Return a curve whose range covers a central interval and everything that is visibly above zero."""
    visible = np.flatnonzero(density > NEAR_ZERO * density.max())
    first, last = max(visible[0] - 1, 0), min(visible[-1] + 1, len(grid) - 1)
    low, high = min(grid[first], central[0]), max(grid[last], central[1])
    return Curve(grid, density, float(max(low, grid[0])), float(min(high, grid[-1])))


def find_bounds(values: np.ndarray) -> tuple[float, float]:
    """Return the bounds of the support as far as the draws show them; infinite where they show none.

    A bound at 0 or 1 is where no draw is beyond it, which changes nothing if there is no mass near it. Other bounds
    are where the draws end abruptly.
    """
    least, greatest = float(values.min()), float(values.max())
    lower = max((b for b in NATURAL_BOUNDS if b <= least), default=-math.inf)
    upper = min((b for b in NATURAL_BOUNDS if b >= greatest), default=math.inf)
    first, low, median, high, last = np.quantile(values, (END, 0.25, 0.5, 0.75, 1.0 - END))
    if not low < high:
        return lower, upper
    # The density of the denser half of the middle stands for the peak.
    peak = 0.25 / max(min(median - low, high - median), 1e-3 * (high - low))
    # Not where the draws end just beside a natural bound.
    near = first - lower < 2.0 * (first - least), upper - last < 2.0 * (greatest - last)
    if not near[0] and CUT * peak * (first - least) < END:
        lower = least
    if not near[1] and CUT * peak * (greatest - last) < END:
        upper = greatest
    return lower, upper


def draw_curve(axes: Axes, curve: Curve, reference: Curve | None = None, dashes: Any = (0, (4, 2))) -> float:
    """Draw a density, and that of a reference as a dashed line, on one range; return the largest value."""
    curves = [curve] if reference is None else [curve, reference]
    low, high = min(c.low for c in curves), max(c.high for c in curves)
    grid, density = curve.on(low, high)
    axes.fill_between(grid, density, color=FIT, alpha=0.16, linewidth=0)
    axes.plot(grid, density, color=FIT, linewidth=1.6, label="bernflow")
    top = density.max()
    if reference is not None:
        grid, density = reference.on(low, high)
        axes.plot(grid, density, color=REFERENCE, linewidth=1.2, linestyle=dashes, label="reference")
        top = max(top, density.max())
    hide_density_axis(axes)
    return float(top)


def _spike(at: float) -> Curve:
    """Return a spike of arbitrary width for draws that are all equal."""
    width = 1e-3 * max(abs(at), 1.0)
    return Curve(np.array([at - width, at, at + width]), np.array([0.0, 1.0, 0.0]), at - width, at + width)


def smooth(counts: np.ndarray, widths: Sequence[float]) -> np.ndarray:
    """Smooth a histogram of any dimension by Gaussian kernels that are wider where the density is low (Abramson).

    The histogram is reflected at its edges.

    Args:
        counts: the number of draws in every bin.
        widths: standard deviation of the kernel along every axis, in bins.
    """
    pilot = gaussian_filter(counts, widths, mode="reflect")
    filled = counts > 0
    level = np.exp(np.average(np.log(np.maximum(pilot[filled], 1e-300)), weights=counts[filled]))
    factor = np.clip(np.sqrt(level / np.maximum(pilot, 1e-300)), SMALLEST, LARGEST)
    steps = np.geomspace(SMALLEST, LARGEST, NUM_WIDTHS)
    # Every bin is shared by the two widths beside its own.
    place = np.log(factor / SMALLEST) / np.log(steps[1] / steps[0])
    shares = (np.clip(1.0 - np.abs(place - i), 0.0, 1.0) for i in range(NUM_WIDTHS))
    parts = (
        gaussian_filter(counts * share, [step * width for width in widths], mode="reflect")
        for step, share in zip(steps, shares, strict=True)
    )
    return sum(parts, np.zeros_like(pilot))


def bandwidth(values: np.ndarray) -> float:
    """Return the width of a kernel, by the narrower of two rules.

    The improved Sheather-Jones rule resolves narrow modes that are far apart, which others oversmooth. Repeated draws,
    as by resampling, count once: they would look like modes.
    """
    if np.array_equal(values, np.round(values)):
        return max(LEAST_FOR_INTEGERS, float(array_stats.kde(values, bw="silverman")[2]))
    values = np.unique(values)
    return WIDER * min(float(array_stats.kde(values, bw=rule)[2]) for rule in ("isj", "silverman"))
