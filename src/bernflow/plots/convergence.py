"""Training curves."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, SymmetricalLogLocator

from bernflow.diagnostics.findings import Diagnostics
from bernflow.errors import ArgumentError
from bernflow.plots.backends import stay_static
from bernflow.plots.style import FIT, REFERENCE, HouseFigure, house_style, verdict_title

# Smaller differences of log densities are rounding.
LEAST_LINEAR = 1e-4


class FitHistory(Protocol):
    """A posterior, or an object with its history and diagnostics."""

    @property
    def history(self) -> Mapping[str, np.ndarray]:
        """Training history: "step", "elbo", "elbo_se"."""

    @property
    def diagnostics(self) -> Diagnostics:
        """Diagnostics of the fit."""


def plot_convergence(posterior: FitHistory) -> Figure:
    """Plot how far the ELBO is below the log evidence over the training steps, both with two standard errors.

    The distance is the Kullback-Leibler divergence in nats. The axis is linear near zero and logarithmic below, so that
    it holds the first steps as well as the last. If the weights are too uneven to estimate the evidence, the distance
    is that to the largest ELBO.

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
    has_evidence = diagnostics.verdict != "poor" and np.isfinite(diagnostics.log_evidence)
    finite = elbo[np.isfinite(elbo)]
    level = diagnostics.log_evidence if has_evidence else float(finite.max(initial=-np.inf, where=finite < np.inf))
    if not np.isfinite(level):
        level = 0.0
    level_error = diagnostics.log_evidence_se if has_evidence else 0.0
    with house_style():
        figure = HouseFigure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        band: dict[str, Any] = {"alpha": 0.2, "linewidth": 0}
        if has_evidence:
            label = f"log evidence, {level:.{_decimals(2 * level_error)}f} ± {2 * level_error:.1g}"
            axes.axhspan(-2 * level_error, 2 * level_error, color=REFERENCE, **band)
            axes.axhline(0.0, color=REFERENCE, linewidth=1.1, linestyle=(0, (4, 2)), label=label)
        gap = elbo - level
        lower, upper = gap - 2 * error, gap + 2 * error
        axes.fill_between(steps, lower, upper, color=FIT, **band)
        marker = "o" if len(steps) < 3 else None
        axes.plot(steps, gap, color=FIT, linewidth=1.4, marker=marker, label="ELBO (bands: 2 standard errors)")
        _set_scale(axes, np.concatenate([lower, upper, [2 * level_error, -2 * level_error]]), error, level_error)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.set_xlabel("step")
        axes.set_ylabel(f"ELBO - {'log evidence' if has_evidence else 'largest ELBO'} (nats)")
        axes.legend(loc="lower right")
        title, color = verdict_title(diagnostics)
        figure.set_heading(title, color)
    return figure


def _set_scale(axes: Axes, values: np.ndarray, error: np.ndarray, level_error: float) -> None:
    """Make the axis linear within the errors of the end, logarithmic beyond, and wide enough for all values."""
    usable = values[np.isfinite(values)]
    if not len(usable):
        return
    errors = error[np.isfinite(error)]
    linear = max(2 * level_error, 2 * float(errors[-1]) if len(errors) else 0.0, LEAST_LINEAR)
    # A power of ten, which is then the first tick.
    linear = 10.0 ** np.ceil(np.log10(linear))
    axes.set_yscale("symlog", linthresh=linear, linscale=0.6)
    axes.set_ylim(1.6 * min(float(usable.min()), -linear), 1.6 * max(float(usable.max()), linear))
    decades = np.log10(max(-float(usable.min()) / linear, 1.0))
    axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10.0 ** max(1.0, np.ceil(decades / 5)), linthresh=linear))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _decimals(error: float) -> int:
    """Return the number of decimals of a value with this error."""
    return int(np.clip(-np.floor(np.log10(error)), 0, 4)) if error > 0 else 4
