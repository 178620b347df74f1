"""The figures of the melanoma experiment."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks.melanoma import metrics
from benchmarks.melanoma.effects import Slope
from benchmarks.study.figures import new_axes, new_figure
from benchmarks.study.plan import Result

COLORS = ("#009E73", "#D55E00", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9")
GRAY = "#8A8A8A"
# By a word in the name of the posterior; the first that fits.
SLOPE_COLORS = {"the paper": GRAY, "M2": COLORS[2], "default posterior": COLORS[3], "": COLORS[1]}
# Curves by name: outcomes and probabilities.
Curves = Mapping[str, tuple[np.ndarray, np.ndarray]]


def draw_roc(curves: Curves) -> Figure:
    """Draw ROC curves."""
    figure = new_figure(5.0, 4.6)
    axes = new_axes(figure, 1, 1)[0, 0]
    for color, (label, (target, probability)) in zip(COLORS, curves.items(), strict=False):
        curve = metrics.roc_curve(target, probability)
        text = f"{label}: AUC {metrics.auc(target, probability):.3f}"
        axes.plot(curve.false_positive, curve.true_positive, color=color, linewidth=1.4, label=text)
    axes.plot([0, 1], [0, 1], color="#9A9A9A", linewidth=0.8, linestyle=":")
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend(fontsize=8, loc="lower right")
    return figure


def draw_calibration(curves: Curves) -> Figure:
    """Draw the observed share of melanomas, with its interval, over the predicted probability; one panel per model."""
    figure = new_figure(2.3 * len(curves) + 0.6, 2.9)
    panels = new_axes(figure, 1, len(curves), sharex=True, sharey=True)[0]
    for color, axes, (label, (target, probability)) in zip(COLORS, panels, curves.items(), strict=False):
        curve = metrics.calibration_curve(target, probability)
        errors = np.abs([curve.observed - curve.low, curve.high - curve.observed])
        # A bin without a melanoma has no place on a log scale; the upper end of its interval has.
        shown = curve.observed > 0
        axes.errorbar(
            curve.predicted[shown],
            curve.observed[shown],
            errors[:, shown],
            fmt="o",
            color=color,
            markersize=4,
            linewidth=1.0,
        )
        axes.plot(curve.predicted[~shown], curve.high[~shown], "v", color=color, markersize=4, fillstyle="none")
        axes.set(title=label, xscale="log", yscale="log", xlabel="predicted probability")
        axes.axline((0.01, 0.01), (0.1, 0.1), color="#9A9A9A", linewidth=0.8, linestyle=":")
    panels[0].set_ylabel("observed share")
    return figure


def draw_slopes(found: Sequence[Slope]) -> Figure:
    """Draw 90 % intervals of the effect of age, one row per posterior."""
    figure = new_figure(7.0, 0.24 * len(found) + 0.9)
    axes = new_axes(figure, 1, 1)[0, 0]
    for row, slope in enumerate(found):
        color = next(color for word, color in SLOPE_COLORS.items() if word in slope.name)
        width = 2.6 if "seeds" in slope.name else 1.3
        axes.plot([slope.low, slope.high], [row, row], color=color, linewidth=width, solid_capstyle="butt")
        axes.plot(slope.mean, row, "o", color=color, markersize=4)
    axes.set_yticks(range(len(found)), [slope.name for slope in found], fontsize=8)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.grid(axis="x", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel("β₁, log odds ratio per standard deviation of age")
    return figure


def draw_losses(runs: Mapping[str, Sequence[Result]]) -> Figure:
    """Draw the training loss and the validation score over the epochs."""
    figure = new_figure(7.0, 2.9)
    left, right = new_axes(figure, 1, 2)[0]
    for color, (label, members) in zip(COLORS, runs.items(), strict=False):
        for number, run in enumerate(members):
            epochs = np.arange(1, len(run["valid_scores"]) + 1)
            steps = run["loss_steps"] / run["loss_steps"][-1] * epochs[-1] if "loss_steps" in run else epochs
            left.plot(steps, run["losses"], color=color, linewidth=1.0)
            right.plot(epochs, run["valid_scores"], label=label if number == 0 else None, color=color, linewidth=1.0)
    left.set(xlabel="epoch", ylabel="training loss per picture", ylim=(0.0, 0.15))
    right.set(xlabel="epoch", ylabel="validation log score", ylim=(-0.15, -0.06))
    right.legend(fontsize=8)
    return figure


def choose_pictures(probability: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return three pictures without and three with a melanoma, at spread-out ranks of risk, from low to high risk."""
    chosen = []
    for outcome in (0, 1):
        own = np.flatnonzero(target == outcome)
        own = own[np.argsort(probability[own])]
        chosen += [own[int(share * (len(own) - 1))] for share in (0.1, 0.5, 0.95)] if len(own) else []
    return np.array(sorted(chosen, key=lambda row: probability[row]), int)


def draw_pictures(images: np.ndarray, ages: np.ndarray, target: np.ndarray, parts: Mapping[str, np.ndarray]) -> Figure:
    """Draw pictures above their predictions: what the age alone says, what the picture adds, and the interval.

    Args:
        images: of the rows to show (k, H, W, 3).
        ages: in years (k,).
        target: 1 for a melanoma (k,).
        parts: "probability" (k,), "low" and "high" (k,) of its 90 % interval, and "by_age" (k,), the probability of
            the same age with an average picture.
    """
    figure = new_figure(1.55 * len(images) + 0.7, 3.6)
    grid = new_axes(figure, 2, len(images), height_ratios=(1.35, 1.0))
    shown = np.concatenate(list(parts.values()))
    low, high = shown.min() / 1.6, min(shown.max() * 1.6, 1.0)
    for i, (axes, image) in enumerate(zip(grid[0], images, strict=True)):
        axes.imshow(image)
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"{ages[i]:.0f} years\n{'melanoma' if target[i] else 'benign'}", fontsize=9)
        below = grid[1, i]
        _draw_share(below, {name: float(values[i]) for name, values in parts.items()})
        below.set(yscale="log", ylim=(low, high), xlim=(-0.5, 1.5))
        interval = f"({parts['low'][i]:.1%} to {parts['high'][i]:.1%})"
        below.set_xlabel(f"{parts['probability'][i]:.1%}\n{interval}", fontsize=8)
        below.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        below.grid(axis="y", color="#E4E4E4", linewidth=0.7)
        below.set_axisbelow(True)
        if i:
            below.set_yticklabels([])
    grid[1, 0].set_ylabel("P(melanoma)")
    return figure


def _draw_share(axes: Axes, part: Mapping[str, float]) -> None:
    """Draw the probability by age alone, an arrow for what the picture adds, and the prediction with its interval."""
    axes.plot(0, part["by_age"], "o", color=GRAY, markersize=5)
    axes.annotate(
        "",
        (1, part["probability"]),
        (0, part["by_age"]),
        arrowprops={"arrowstyle": "->", "color": "#9A9A9A", "shrinkA": 4, "shrinkB": 4},
    )
    axes.plot([1, 1], [part["low"], part["high"]], color=COLORS[3], linewidth=2.0)
    axes.plot(1, part["probability"], "o", color=COLORS[3], markersize=5)
    axes.set_xticks([0, 1], ["age", "age,\npicture"], fontsize=7)
