"""Parameters whose tails a fit does not cover, identified by the largest importance weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.findings import USABLE_ESS, USABLE_KHAT, Diagnostics
from bernflow.posterior import Posterior
from bernflow.posterior.drawing import draw
from bernflow.posterior.tables import Axes, components

# The number of largest weights is that of the tail for k-hat: this factor times the square root of the sample size.
TAIL_ROOTS = 3.0
# A component is reported if more than MIN_FRACTION of the largest weights lie outside these quantiles of the draws.
CENTRAL = (0.025, 0.975)
MIN_FRACTION = 0.2
MAX_NAMED = 5
MAX_COMPONENTS = 2000


def find_tails(
    posterior: Posterior, log_weights: Float[np.ndarray, " s"], num: int, key: Any
) -> tuple[tuple[str, float], ...]:
    """Return components with the largest weights in their tails, and the fraction of these weights, largest first.

    Args:
        posterior: the fit.
        log_weights: log weights of `draws(num, key, weighted=False)`.
        num: number of draws.
        key: key of the draws.
    """
    size = sum(int(np.prod(site.shape)) for site in posterior.layout.sites)
    if covers_tails(posterior.diagnostics) or size > MAX_COMPONENTS:
        return ()
    theta = draw(posterior, num, key, weighted=False, deterministic=False).theta
    return tails_of_draws(posterior.diagnostics, theta, posterior.axes, log_weights)


def tails_of_draws(
    diagnostics: Diagnostics, draws: Mapping[str, np.ndarray], axes: Axes, log_weights: Float[np.ndarray, " s"]
) -> tuple[tuple[str, float], ...]:
    """Apply `find_tails` to draws that were not resampled and their log weights."""
    size = sum(int(np.prod(value.shape[1:])) for value in draws.values())
    if covers_tails(diagnostics) or size > MAX_COMPONENTS or not np.isfinite(log_weights).any():
        return ()
    return worst_tails(*components(draws, axes), log_weights)


def covers_tails(diagnostics: Diagnostics) -> bool:
    """Tell whether the tails are correct, possibly after weighting."""
    d = diagnostics
    return d.verdict == "good" or (d.khat <= USABLE_KHAT and d.ess_fraction >= USABLE_ESS)


def worst_tails(
    labels: list[str], values: Float[np.ndarray, "d s"], log_weights: Float[np.ndarray, " s"]
) -> tuple[tuple[str, float], ...]:
    """Rank components by the fraction of the largest weights outside their central 95 %.

    Example:
        >>> values = np.random.default_rng(0).normal(size=(2, 4000))
        >>> [label for label, _ in worst_tails(["a", "b"], values, values[0] ** 2)]
        ['a']
    """
    largest = np.argsort(log_weights)[-int(TAIL_ROOTS * np.sqrt(len(log_weights))) :]
    weights = np.exp(log_weights[largest] - log_weights[largest].max())
    low, high = np.quantile(values, CENTRAL, axis=1)
    outside = (values[:, largest] < low[:, None]) | (values[:, largest] > high[:, None])
    fractions = outside @ weights / weights.sum()
    order = [int(i) for i in np.argsort(-fractions)[:MAX_NAMED] if fractions[i] >= MIN_FRACTION]
    return tuple((labels[i], float(fractions[i])) for i in order)
