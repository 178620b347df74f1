"""Training curves."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from matplotlib.figure import Figure

from bernflow.diagnostics.findings import Diagnostics
from bernflow.errors import ArgumentError
from bernflow.plots.backends import stay_static
from bernflow.plots.style import FIT, REFERENCE, HouseFigure, house_style, verdict_title


class FitHistory(Protocol):
    """A posterior, or an object with its history and diagnostics."""

    @property
    def history(self) -> Mapping[str, np.ndarray]:
        """Training history: "step", "elbo", "elbo_se"."""

    @property
    def diagnostics(self) -> Diagnostics:
        """Diagnostics of the fit."""


def plot_convergence(posterior: FitHistory) -> Figure:
    """Plot the ELBO over the training steps, with a band of two Monte Carlo standard errors.

    The dashed line is the estimate of the log evidence, which the ELBO approaches from below; it is omitted if the
    weights are too uneven to estimate it.

    Args:
        posterior: a posterior with its training history.

    Returns:
        The figure.

    Example:
        >>> from bernflow.plots import plot_convergence
        >>> plot_convergence(post).savefig("training.png")
    """
    stay_static("plot_convergence")
    history = posterior.history
    missing = [name for name in ("step", "elbo") if name not in history or not len(history[name])]
    if missing:
        raise ArgumentError(
            f"The history has no {' and '.join(missing)}: expected a posterior made by bf.fit, with its history."
        )
    steps, elbo = np.asarray(history["step"]), np.asarray(history["elbo"], dtype=np.float64)
    error = np.asarray(history.get("elbo_se", np.zeros_like(elbo)), dtype=np.float64)
    diagnostics = posterior.diagnostics
    with house_style():
        figure = HouseFigure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.plot(steps, elbo, color=FIT, linewidth=1.6, marker="o" if len(steps) < 3 else None, label="ELBO")
        axes.fill_between(
            steps, elbo - 2 * error, elbo + 2 * error, color=FIT, alpha=0.2, linewidth=0, label="2 standard errors"
        )
        finite = elbo[np.isfinite(elbo)]
        levels = list(finite)
        if diagnostics.verdict != "poor":
            level = diagnostics.log_evidence
            levels.append(level)
            axes.axhline(level, color=REFERENCE, linewidth=1.1, linestyle=(0, (4, 2)), label="log evidence")
        if levels:
            # Exclude the first steps, whose ELBO is far below, from the range of the axis.
            bottom, top = np.quantile(finite, 0.1) if len(finite) else min(levels), max(levels)
            margin = 0.12 * (top - bottom) + 2 * float(np.nan_to_num(error[-1], posinf=0.0)) + 1e-6
            axes.set_ylim(bottom - margin, top + margin)
        # Show full numbers at the ticks instead of offsets.
        axes.ticklabel_format(axis="y", style="plain", useOffset=False)
        axes.set_xlabel("step")
        axes.set_ylabel("nats")
        axes.legend(loc="lower right")
        title, color = verdict_title(diagnostics)
        figure.set_heading(title, color)
    return figure
