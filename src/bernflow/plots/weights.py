"""The tail of the importance weights, and the Pareto fit whose shape is k-hat."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike

from bernflow.diagnostics.findings import USABLE_KHAT
from bernflow.diagnostics.importance import CONSTANT_SPREAD, MIN_DRAWS, check_log_weights, psis, tail_size
from bernflow.errors import ArgumentError
from bernflow.plots.backends import stay_static
from bernflow.plots.style import ACCENT, FIT, MUTED, HouseFigure, house_style, verdict_title
from bernflow.posterior import Posterior

# Points of the curve left of the tail, and the quantile at which it begins.
BODY_VIEW, NUM_BODY = 0.01, 200


def plot_weights(
    posterior_or_log_weights: Posterior | ArrayLike, num: int = 20_000, key: Any = 1, show_khat: bool = True
) -> Figure:
    """Plot the survival function of the importance weights, with the Pareto fit to their tail whose shape is k-hat.

    To the right of the threshold every draw is a point. A Pareto tail of shape k has slope -1 / k in these axes; the
    dotted line has the slope of k = 0.7, above which weights are unreliable: a steeper tail is good.

    Args:
        posterior_or_log_weights: a posterior with its model, or log weights log p - log q of draws of q, (num,).
        num: number of draws of a posterior.
        key: integer seed or `jax.random.key` of the draws of a posterior.
        show_khat: write the k-hat of given weights into the legend. For a posterior the heading has the k-hat of its
            diagnostics, which other draws would not reproduce exactly.

    Returns:
        The figure.

    Example:
        >>> from bernflow.plots import plot_weights
        >>> plot_weights(post).savefig("weights.png")
    """
    stay_static("plot_weights")
    heading = None
    if isinstance(posterior_or_log_weights, Posterior):
        found = posterior_or_log_weights.log_weights(num, key)
        # Treated as weight zero, as in the diagnostics.
        raw = np.where(np.isnan(found) | (found == np.inf), -np.inf, found)
        heading = verdict_title(posterior_or_log_weights.diagnostics)
    else:
        raw = check_log_weights(posterior_or_log_weights)
    if np.sum(raw > -np.inf) < MIN_DRAWS:
        raise ArgumentError(
            f"plot_weights: {np.sum(raw > -np.inf)} of {raw.size} draws have a positive weight: expected at least "
            f"{MIN_DRAWS}."
        )
    with house_style():
        figure = HouseFigure(figsize=(6.4, 3.6), layout="constrained")
        _draw(figure.subplots(), raw, heading is None and show_khat)
        if heading:
            figure.set_heading(*heading)
    return figure


def _draw(axes: Axes, raw: Float[np.ndarray, " s"], shows_khat: bool) -> None:
    smoothed, khat = psis(raw)
    top = raw.max()
    mean = top + np.log(np.mean(np.exp(raw - top)))
    order = np.argsort(raw)
    x = raw[order] - mean
    survival = (raw.size - np.arange(raw.size) - 0.5) / raw.size
    positive = int(np.sum(raw > -np.inf))
    size = tail_size(positive)
    start = raw.size - size
    body = np.unique(np.linspace(raw.size - positive + BODY_VIEW * positive, start, NUM_BODY).astype(int))
    axes.plot(x[body], survival[body], color=MUTED, linewidth=1.6, label="draws below the tail")
    style: dict[str, Any] = {"color": FIT, "markersize": 2.6, "markeredgewidth": 0}
    axes.plot(x[start:], survival[start:], "o", label=f"{size} draws in the tail", **style)
    left, right = float(x[body[0]]), float(x[-1])
    threshold = float(x[start - 1])
    fit = _fitted(smoothed[order], raw[order], x, start, khat)
    if fit is not None:
        # Smoothed weights are truncated at the largest raw one; the fit itself is not.
        shown = int(np.searchsorted(fit, x[-1] - CONSTANT_SPREAD))
        axes.plot(
            fit[:shown],
            survival[start:][:shown],
            color=ACCENT,
            linewidth=1.6,
            label="Pareto fit" + (f", k-hat {khat:.2f}" if shows_khat else ""),
        )
    if right - left < CONSTANT_SPREAD:
        left, right = left - 1e-3, right + 1e-3
        axes.set_title("The weights are constant to rounding.", color=MUTED)
    margin = 0.04 * (right - left)
    guide = np.array([threshold, right + margin])
    axes.plot(
        guide,
        size / raw.size * np.exp(-(guide - threshold) / USABLE_KHAT),
        color=MUTED,
        linewidth=1.1,
        linestyle=":",
        label=f"slope at the limit, k-hat {USABLE_KHAT:g}",
    )
    axes.axvline(threshold, color="#9A9A9A", linewidth=0.8)
    axes.set_xlim(left - margin, right + margin)
    axes.set_yscale("log")
    axes.set_ylim(0.35 / raw.size, 1.6)
    # Percentages without math text.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("log weight, relative to the mean weight (nats)")
    axes.set_ylabel("draws with a larger weight")
    axes.legend(loc="upper right", fontsize=8.5)


def _fitted(
    smoothed: Float[np.ndarray, " s"], raw: Float[np.ndarray, " s"], x: Float[np.ndarray, " s"], start: int, khat: float
) -> Float[np.ndarray, " tail"] | None:
    """Return the quantiles of the fitted tail on the scale of x; None if there is no fit."""
    if not np.isfinite(khat) or khat == 0.0:
        return None
    # The draw below the tail is not smoothed, so it determines the shift by normalization.
    shift = raw[start - 1] - smoothed[start - 1]
    fit = np.sort(smoothed[start:] + shift) - (raw[start - 1] - x[start - 1])
    if np.array_equal(np.sort(smoothed[start:] + shift), raw[start:]):
        # Tails that span hundreds of nats are not smoothed; k-hat is then Hill's estimator of a Pareto tail.
        probability = (np.arange(len(fit)) + 0.5) / len(fit)
        fit = x[start - 1] - khat * np.log1p(-probability)
    return fit
