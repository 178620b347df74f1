"""Measures of the difference of two posteriors: moments, marginal and joint distances, predictive accuracy."""

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

# Quantile of the two-sample Kolmogorov-Smirnov statistic for a false-alarm rate of one in 10,000.
KS_LIMIT = 2.23


class Marginal(NamedTuple):
    """Distances between the marginal distributions of one component.

    Attributes:
        ks: Kolmogorov-Smirnov distance, the largest difference of the distribution functions.
        ks_limit: the limit that it exceeds with probability 1/10,000 for draws of the same distribution.
        wasserstein: Wasserstein-1 distance in units of the reference's standard deviation.
    """

    ks: float
    ks_limit: float
    wasserstein: float


class Joint(NamedTuple):
    """Sliced Wasserstein-2 distance between half samples, in units of the reference's sd, and its noise floor.

    Attributes:
        distance: distance between halves of the two samples.
        floor: distance between the two halves of the same sample, as expected for equal distributions.
    """

    distance: float
    floor: float


def differences(entry: Entry, reference: Entry, components: Sequence[Component], max_shift: float) -> Agreement:
    """Compare means and standard deviations within their Monte Carlo errors."""
    ours, theirs = ({c.label: e.column(c) for c in components} for e in (entry, reference))
    with np.errstate(invalid="ignore", divide="ignore"):
        return agreement.compare(
            ours,
            theirs,
            max_shift,
            num_effective=entry.num_effective,
            reference_num_effective=reference.num_effective,
        )


def marginals(entry: Entry, reference: Entry, components: Sequence[Component]) -> list[Marginal]:
    """Measure the marginal distances of every component."""
    found = []
    for component in components:
        ours, theirs = entry.column(component), reference.column(component)
        sd = theirs.std()
        num = [
            of.num_effective or agreement.effective_number(values)
            for of, values in ((entry, ours), (reference, theirs))
        ]
        limit = KS_LIMIT * np.sqrt(1 / num[0] + 1 / num[1])
        distance = stats.ks_2samp(ours.ravel(), theirs.ravel(), method="asymp").statistic
        moved = stats.wasserstein_distance(ours.ravel(), theirs.ravel()) / sd if sd > 0 else np.nan
        found.append(Marginal(float(distance), float(limit), float(moved)))
    return found


def joint(entry: Entry, reference: Entry, components: Sequence[Component], seed: int) -> Joint:
    """Measure the distance of the joint distributions, and its noise floor.

    Both use half samples, because the distance depends on the number of draws. The floor is the root mean square over
    both samples, which is also correct if their numbers of draws differ.
    """
    ours, theirs = matrix(entry, components), matrix(reference, components)
    scale = theirs.reshape(-1, len(components)).std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    a, b = ([half / scale for half in _halves(values)] for values in (ours, theirs))
    between = [sliced_wasserstein(x, y, seed=seed) for x, y in zip(a, b, strict=True)]
    within = [sliced_wasserstein(first, second, seed=seed) for first, second in (a, b)]
    return Joint(float(np.mean(between)), float(np.sqrt(np.mean(np.square(within)))))


def leave_one_out(entries: Sequence[Entry]) -> "tuple[dict[str, Any], pd.DataFrame | None]":
    """Estimate the expected log predictive density of new data (PSIS-LOO) of entries with a log likelihood.

    Returns:
        One `ELPDData` of ArviZ per entry, and ArviZ's ranking, or None if fewer than two can be ranked.
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
    """Split draws into independent halves: by chains, or at the middle of a single chain."""
    chains, num, dim = values.shape
    if chains > 1:
        return [values[: chains // 2].reshape(-1, dim), values[chains // 2 :].reshape(-1, dim)]
    return [values[0, : num // 2], values[0, num // 2 :]]
