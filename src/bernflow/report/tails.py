"""Which parameters have tails that a fit does not cover: those in whose tails its largest weights lie."""

from typing import Any

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.verdict import USABLE_ESS, USABLE_KHAT
from bernflow.posterior import Posterior
from bernflow.posterior.drawing import draw
from bernflow.posterior.tables import components

# The largest weights are as many as the tail that k-hat is estimated from: three square roots of all.
TAIL_ROOTS = 3.0
# Of the draws of the fit so many lie outside of these quantiles; twice that share of the weights is a finding.
CENTRAL = (0.025, 0.975)
MIN_SHARE = 0.2
MAX_NAMED = 5
MAX_COMPONENTS = 2000


def find_tails(
    posterior: Posterior, log_weights: Float[np.ndarray, " s"], num: int, key: Any
) -> tuple[tuple[str, float], ...]:
    """Return the components in whose tails the largest weights lie, with the share of these weights, the most first.

    Args:
        posterior: the fit.
        log_weights: its log weights, those of `draws(num, key, weighted=False)`.
        num: how many.
        key: their key.
    """
    d = posterior.diagnostics
    is_covered = d.verdict == "good" or (d.khat <= USABLE_KHAT and d.ess_fraction >= USABLE_ESS)
    size = sum(int(np.prod(site.shape)) for site in posterior.layout.sites)
    if is_covered or size > MAX_COMPONENTS or not np.isfinite(log_weights).any():
        return ()
    theta = draw(posterior, num, key, weighted=False, deterministic=False).theta
    labels, values = components(theta, posterior.axes)
    return worst_tails(labels, values, log_weights)


def worst_tails(
    labels: list[str], values: Float[np.ndarray, "d s"], log_weights: Float[np.ndarray, " s"]
) -> tuple[tuple[str, float], ...]:
    """Rank components by the share of the largest weights that lies outside of their central 95 %.

    Example:
        >>> values = np.random.default_rng(0).normal(size=(2, 4000))
        >>> [label for label, _ in worst_tails(["a", "b"], values, values[0] ** 2)]
        ['a']
    """
    largest = np.argsort(log_weights)[-int(TAIL_ROOTS * np.sqrt(len(log_weights))) :]
    weights = np.exp(log_weights[largest] - log_weights[largest].max())
    low, high = np.quantile(values, CENTRAL, axis=1)
    outside = (values[:, largest] < low[:, None]) | (values[:, largest] > high[:, None])
    shares = outside @ weights / weights.sum()
    order = [int(i) for i in np.argsort(-shares)[:MAX_NAMED] if shares[i] >= MIN_SHARE]
    return tuple((labels[i], float(shares[i])) for i in order)
