"""Numbers that tell two posteriors apart: moments, marginal distances, joint distance, predictive accuracy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from bernflow.compare.entries import Component, Entry, matrix
from bernflow.diagnostics import agreement
from bernflow.diagnostics.agreement import Agreement
from bernflow.diagnostics.distances import sliced_wasserstein
from bernflow.posterior import loo

if TYPE_CHECKING:
    import pandas as pd

# Two samples of n and m draws of one distribution are farther apart once in 10,000 times.
KS_LIMIT = 2.23


class Marginal(NamedTuple):
    """How far the marginal distributions of one component are apart.

    Attributes:
        ks: Kolmogorov-Smirnov distance, the largest difference of the distribution functions.
        ks_limit: what it exceeds once in 10,000 times for draws of one distribution.
        wasserstein: Wasserstein-1 distance in units of the reference's standard deviation.
    """

    ks: float
    ks_limit: float
    wasserstein: float


class Joint(NamedTuple):
    """Sliced Wasserstein-2 distance between half samples, in units of the reference's sd, and what chance makes of it.

    Attributes:
        distance: between halves of the two samples.
        floor: between the two halves of the same sample, for both samples: what equal distributions would show.
    """

    distance: float
    floor: float


def differences(entry: Entry, reference: Entry, components: Sequence[Component], tolerance: float) -> Agreement:
    """Compare means and standard deviations within their Monte Carlo errors."""
    ours, theirs = ({c.label: e.column(c) for c in components} for e in (entry, reference))
    with np.errstate(invalid="ignore", divide="ignore"):
        return agreement.compare(ours, theirs, tolerance)


def marginals(entry: Entry, reference: Entry, components: Sequence[Component]) -> list[Marginal]:
    """Measure the distance of every component."""
    found = []
    for component in components:
        ours, theirs = entry.column(component), reference.column(component)
        sd = theirs.std()
        num = [agreement.effective_number(values) for values in (ours, theirs)]
        limit = KS_LIMIT * np.sqrt(1 / num[0] + 1 / num[1])
        distance = stats.ks_2samp(ours.ravel(), theirs.ravel(), method="asymp").statistic
        moved = stats.wasserstein_distance(ours.ravel(), theirs.ravel()) / sd if sd > 0 else np.nan
        found.append(Marginal(float(distance), float(limit), float(moved)))
    return found


def joint(entry: Entry, reference: Entry, components: Sequence[Component], seed: int) -> Joint:
    """Measure the distance of the joint distributions, and its floor.

    The distance is that of halves, like the floor: a distance of n draws is larger than one of 2 n by chance alone. The
    floor is the root mean square over both samples, which is right also where their numbers of draws differ.
    """
    ours, theirs = matrix(entry, components), matrix(reference, components)
    scale = theirs.reshape(-1, len(components)).std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    a, b = ([half / scale for half in _halves(values)] for values in (ours, theirs))
    between = [sliced_wasserstein(x, y, seed=seed) for x, y in zip(a, b, strict=True)]
    within = [sliced_wasserstein(first, second, seed=seed) for first, second in (a, b)]
    return Joint(float(np.mean(between)), float(np.sqrt(np.mean(np.square(within)))))


def leave_one_out(entries: Sequence[Entry]) -> "tuple[dict[str, Any], pd.DataFrame | None]":
    """Estimate the expected log predictive density of new data (PSIS-LOO) where the log likelihood is known.

    Returns:
        One `ELPDData` of ArviZ per entry, and ArviZ's table that ranks them; None where fewer than two can be ranked.
    """
    trees = {entry.name: (entry.tree(), entry.independent) for entry in entries if entry.tree is not None}
    found = {
        name: loo.leave_one_out(tree, independent=independent)
        for name, (tree, independent) in trees.items()
        if "log_likelihood" in tree.children and len(tree["log_likelihood"].data_vars) == 1
    }
    # Predictions of other data cannot be ranked.
    if len({elpd.n_data_points for elpd in found.values()}) > 1:
        return found, None
    return found, loo.rank(found)


def _halves(values: Float[np.ndarray, "chains num d"]) -> list[Float[np.ndarray, "half d"]]:
    """Split draws into halves that know nothing of each other: by chains, or else at the middle of the one."""
    chains, num, dim = values.shape
    if chains > 1:
        return [values[: chains // 2].reshape(-1, dim), values[chains // 2 :].reshape(-1, dim)]
    return [values[0, : num // 2], values[0, num // 2 :]]
