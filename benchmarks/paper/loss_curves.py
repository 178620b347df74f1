"""Scaled loss curves of the multi-parameter experiments."""

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.repetitions import fit
from benchmarks.study.figures import new_axes, new_figure
from benchmarks.study.methods import METHODS
from benchmarks.study.page import Listing, Page, Picture
from benchmarks.study.plan import Experiment, Result, Results, Task
from benchmarks.study.tables import Table

TARGETS = {
    "toy-regression": ("toy regression", "#0072B2"),
    "diamonds": ("diamonds", "#D55E00"),
    "eight-schools-centered": ("8 schools (CP)", "#009E73"),
    "eight-schools-noncentered": ("8 schools (NCP)", "#CC79A7"),
    "nn-regression": ("NN regression", "#E69F00"),
}
METHODS_SHOWN = ("paper", "bernflow")
# Scaled losses below this are drawn at the end of the axis: the minimum itself has no logarithm.
SMALLEST_SHOWN = 1e-5
# Blocks of 25 steps at the end.
NUM_LAST = 40
BINS_PER_DECADE, QUANTILES = 12, (0.1, 0.5, 0.9)


def tasks(scale: str) -> list[Task]:
    """List the fits."""
    return [fit(scale, target, method) for target in TARGETS for method in METHODS_SHOWN]


def scaled(result: Result) -> np.ndarray:
    """Return the loss minus its minimum, divided by the minimum's absolute value, as in the paper."""
    loss = -np.asarray(result["history/elbo"], np.float64)
    smallest = np.nanmin(loss)
    return (loss - smallest) / abs(smallest)


def steps_to(result: Result, level: float = 0.01) -> int:
    """Return the first step from which on the scaled loss stays below a level."""
    above = np.flatnonzero(~(scaled(result) < level))
    steps = result["history/step"]
    return int(steps[min(above[-1] + 1, len(steps) - 1)]) if above.size else int(steps[0])


def final_elbo(result: Result) -> float:
    """Return the ELBO of the last blocks of the training.

    That of fresh draws is minus infinity where a single one of them has a density of zero.
    """
    return float(np.nanmean(np.asarray(result["history/elbo"], np.float64)[-NUM_LAST:]))


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    found = {t: {m: results[fit(scale, t, m)] for m in METHODS_SHOWN} for t in TARGETS}
    rows = [
        (TARGETS[t][0], *(x for m in METHODS_SHOWN for x in (int(r[m]["steps"]), steps_to(r[m]), final_elbo(r[m]))))
        for t, r in found.items()
    ]
    columns = ["posterior"]
    columns += [f"{METHODS[m].label}: {x}" for m in METHODS_SHOWN for x in ("steps", "steps to 1 %", "ELBO at the end")]
    return Page(
        "Loss curves of the multi-parameter experiments",
        [
            "The loss (-ELBO) of the first run of each experiment, minus its minimum, divided by the minimum's "
            "absolute value. The curves are means over blocks of 25 steps. bernflow begins near the optimum.",
            Picture(
                "losses", _figure(found), "Scaled loss over the steps, median and 10 to 90 % (the paper's Fig. S7)."
            ),
            Listing(
                "steps",
                Table(columns, rows, digits=5),
                "Steps taken, steps until the scaled loss stays below 1 %, ELBO of the last "
                f"{NUM_LAST} blocks of the training.",
            ),
        ],
        {
            t: {m: {"steps": r["steps"], "elbo": final_elbo(r), "to_1_percent": steps_to(r)} for m, r in rs.items()}
            for t, rs in found.items()
        },
    )


def _figure(found: dict[str, dict[str, Result]]) -> Figure:
    figure = new_figure(7.2, 3.4)
    grid = new_axes(figure, 1, 2, sharey=True)[0]
    shown = []
    for axes, method in zip(grid, METHODS_SHOWN, strict=True):
        for target, (label, color) in TARGETS.items():
            result = found[target][method]
            steps, low, middle, high = binned(np.asarray(result["history/step"]), scaled(result))
            axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
            axes.plot(steps, middle, color=color, linewidth=1.4, label=label)
            shown += [low, high]
        axes.set(
            xscale="log", yscale="log", xlabel="step" if method == "bernflow" else "epoch", title=METHODS[method].label
        )
    grid[0].set_ylabel("scaled loss")
    values = np.concatenate(shown)
    if len(values):
        grid[0].set_ylim(0.5 * values.min(), 2.0 * values.max())
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)
    return figure


def binned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the 10, 50 and 90 % quantiles of positive values over bins of equal length on a logarithmic axis.

    Single values scatter over decades, and the minimum, whose scaled loss is zero, has no logarithm.

    Returns:
        The middle of every bin with values in it, and the three quantiles there.
    """
    usable = np.isfinite(values) & (values > 0.0) & (steps > 0)
    if not usable.any():
        return (np.zeros(0),) * 4
    steps, values = steps[usable], values[usable]
    logs = np.log10(steps)
    places = np.floor((logs - logs.min()) * BINS_PER_DECADE).astype(int)
    rows = [
        (float(np.exp(np.log(steps[places == i]).mean())), *np.quantile(values[places == i], QUANTILES))
        for i in np.unique(places)
    ]
    middle, low, median, high = np.array(rows).T
    return middle, np.maximum(low, SMALLEST_SHOWN), np.maximum(median, SMALLEST_SHOWN), np.maximum(high, SMALLEST_SHOWN)


EXPERIMENT = Experiment(
    "loss-curves", "Loss curves", "scaled loss of all multi-parameter experiments over the steps", tasks, present
)
