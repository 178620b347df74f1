"""The tail of the importance weights, which decides how far a fit can be trusted."""

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

# Points of the curve left of the tail; what lies left of the first one is not shown.
BODY_VIEW, NUM_BODY = 0.01, 200


def plot_weights(posterior_or_log_weights: Posterior | ArrayLike, num: int = 20_000, key: Any = 1) -> Figure:
    """Plot how often the importance weights exceed a value, with the Pareto fit to their tail whose shape is k-hat.

    Right of the threshold every draw is a point. In these axes a Pareto tail of shape k falls with slope -1 / k; the
    dotted line has the slope of k = 0.7, above which weights cannot be relied upon: a tail steeper than it is good.

    Args:
        posterior_or_log_weights: a posterior with its model, or log weights log p - log q of draws of q, (num,).
        num: number of draws of a posterior.
        key: integer seed or `jax.random.key` of the draws of a posterior.

    Example:
        >>> from bernflow.plots import plot_weights
        >>> plot_weights(post).savefig("weights.png")
    """
    stay_static("plot_weights")
    heading = None
    if isinstance(posterior_or_log_weights, Posterior):
        found = posterior_or_log_weights.log_weights(num, key)
        # Judged as weight zero, here as there.
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
        _draw(figure.subplots(), raw)
        if heading:
            figure.suptitle(heading[0], x=0.01, ha="left", color=heading[1], fontweight="bold", fontsize=11)
    return figure


def _draw(axes: Axes, raw: Float[np.ndarray, " s"]) -> None:
    smoothed, khat = psis(raw)
    top = raw.max()
    mean = top + np.log(np.mean(np.exp(raw - top)))
    order = np.argsort(raw)
    x = raw[order] - mean
    share = (raw.size - np.arange(raw.size) - 0.5) / raw.size
    positive = int(np.sum(raw > -np.inf))
    size = tail_size(positive)
    start = raw.size - size
    body = np.unique(np.linspace(raw.size - positive + BODY_VIEW * positive, start, NUM_BODY).astype(int))
    axes.plot(x[body], share[body], color=MUTED, linewidth=1.6, label="draws below the tail")
    axes.plot(x[start:], share[start:], "o", color=FIT, markersize=2.6, markeredgewidth=0, label=f"{size} in the tail")
    left, right = float(x[body[0]]), float(x[-1])
    threshold = float(x[start - 1])
    fit = _fitted(smoothed[order], raw[order], x, start, khat)
    if fit is not None:
        # Smoothed weights end at the largest raw one; the fit itself goes on.
        shown = int(np.searchsorted(fit, x[-1] - CONSTANT_SPREAD)) + 1
        axes.plot(
            fit[:shown],
            share[start:][:shown],
            color=ACCENT,
            linewidth=1.6,
            label=f"Pareto fit to these draws, k-hat {khat:.2f}",
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
        label=f"slope of k-hat {USABLE_KHAT:g}",
    )
    axes.axvline(threshold, color="#9A9A9A", linewidth=0.8)
    axes.set_xlim(left - margin, right + margin)
    axes.set_yscale("log")
    axes.set_ylim(0.35 / raw.size, 1.6)
    # Percentages need no mathematical type, and read well.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("log weight, relative to the mean weight (nats)")
    axes.set_ylabel("draws with a larger weight")
    axes.legend(loc="upper right", fontsize=8.5)


def _fitted(
    smoothed: Float[np.ndarray, " s"], raw: Float[np.ndarray, " s"], x: Float[np.ndarray, " s"], start: int, khat: float
) -> Float[np.ndarray, " tail"] | None:
    """Return the quantiles of the fitted tail on the scale of x; None where nothing could be fitted."""
    if not np.isfinite(khat) or khat == 0.0:
        return None
    # The draw below the tail is not smoothed: it tells by how much normalization has shifted the rest.
    shift = raw[start - 1] - smoothed[start - 1]
    fit = np.sort(smoothed[start:] + shift) - (raw[start - 1] - x[start - 1])
    if np.array_equal(np.sort(smoothed[start:] + shift), raw[start:]):
        # Nothing is smoothed where the tail spans hundreds of nats; k-hat is then Hill's, of an exact Pareto tail.
        probability = (np.arange(len(fit)) + 0.5) / len(fit)
        fit = x[start - 1] - khat * np.log1p(-probability)
    return fit
