"""Bernoulli: a skewed posterior on (0, 1) that is known exactly, Beta(3.1, 1.1)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.families import ONE_DIMENSIONAL
from benchmarks.study.curves import curve_task, exact_posterior
from benchmarks.study.figures import draw_losses, draw_spread, new_axes, new_figure, order_colors
from benchmarks.study.methods import METHODS, TRUTH
from benchmarks.study.page import Heading, Listing, Page, Picture
from benchmarks.study.plan import Experiment, Results, Task
from benchmarks.study.slopes import fit_slope
from benchmarks.study.tables import Claim, Table, claims_table, number
from benchmarks.targets import BENCHMARKS

TARGET = "bernoulli"
SHOWN_ORDERS = (1, 10, 50)
LOSS_ORDERS = (10, 30, 50, 100)
# Orders of the right panel of the paper's figure, its number of runs, and its training: S and epochs.
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {"orders": (1, 2, 3, 5, 10, 20, 30, 50, 100), "runs": 20, "num_particles": 2500, "steps": 2500},
    "quick": {"orders": (1, 2, 3, 5, 10, 30, 50, 100), "runs": 2, "num_particles": 250, "steps": 2500},
    "tiny": {"orders": (1, 10), "runs": 1, "num_particles": 8, "steps": 50},
}


def fit(scale: str, method: str, order: int | None, key: int) -> Task:
    """Return the fit of one method; the paper's with the paper's number of samples and epochs."""
    chosen = SETTINGS[scale]
    settings: dict[str, Any] = {} if order is None else {"order": order}
    if method == "paper":
        settings |= {"num_particles": chosen["num_particles"], "steps": chosen["steps"], "family": ONE_DIMENSIONAL}
    elif scale == "tiny":
        settings |= {"steps": chosen["steps"]}
    return curve_task(TARGET, method, key, **settings)


def runs(scale: str, method: str, order: int) -> list[Task]:
    """Return the repetitions at one order."""
    return [fit(scale, method, order, key) for key in range(SETTINGS[scale]["runs"])]


def loss_orders(scale: str) -> list[int]:
    """Return the orders of the loss curves that this scale runs."""
    return [order for order in LOSS_ORDERS if order in SETTINGS[scale]["orders"]]


def tasks(scale: str) -> list[Task]:
    """List the fits."""
    plan = [fit(scale, "gaussian", None, 0)]
    for method in ("paper", "bernflow"):
        for order in SETTINGS[scale]["orders"]:
            plan += runs(scale, method, order)
    return plan


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    orders = SETTINGS[scale]["orders"]
    kls = {
        m: [np.array([r["kl"] for r in results.of(runs(scale, m, M))]) for M in orders] for m in ("paper", "bernflow")
    }
    slopes = {m: fit_slope(orders, [np.median(values) for values in kls[m]]) for m in kls}
    gaussian = results[fit(scale, "gaussian", None, 0)]["kl"]
    largest = orders[-1]
    rows = [
        (M, float(np.median(kls["paper"][i])), float(np.median(kls["bernflow"][i])), float(np.max(kls["bernflow"][i])))
        for i, M in enumerate(orders)
    ]
    claims = [
        Claim(f"KL at M = {M}, median of {SETTINGS[scale]['runs']} runs", None, rows[i][2], rows[i][1])
        for i, M in enumerate(orders)
        if M in (*SHOWN_ORDERS, largest)
    ]
    claims.append(
        Claim(
            "slope of log KL over log M", -1.0, slopes["bernflow"].slope, slopes["paper"].slope, note="paper: bound 1/M"
        )
    )
    return Page(
        "Bernoulli: a skewed posterior, known exactly",
        [
            "Two observations of 1 and a Beta(1.1, 1.1) prior give the posterior Beta(3.1, 1.1) of the probability "
            "π. The appendix of the paper gives the second observation as 2, but the posterior that it states "
            "implies 1. The flow is fitted to the logit of π. The paper's recipe uses the paper's settings (S = "
            f"{SETTINGS[scale]['num_particles']:,}, {SETTINGS[scale]['steps']:,} epochs), bernflow with its defaults.",
            Picture(
                "densities",
                _densities(scale, results),
                "Posterior of π and its approximations (the paper's Fig. 2, left).",
            ),
            Picture(
                "kl_over_order",
                _kl_figure(orders, kls, slopes, gaussian),
                f"KL(q || posterior) over the order M, {SETTINGS[scale]['runs']} runs each (the paper's Fig. 2, "
                "right), by quadrature. Thin lines: fitted slopes; dotted: the proven rate 1/M, through the first "
                "point.",
            ),
            f"On the log-log plot the KL falls with slope {slopes['bernflow'].slope:.2f} (bernflow, M up to "
            f"{slopes['bernflow'].last:g}) and {slopes['paper'].slope:.2f} (the paper's recipe, M up to "
            f"{slopes['paper'].last:g}) down to the noise floor of the training; the appendix proves that a slope of "
            f"-1 can be reached. {_larger_orders(orders, kls)}",
            Listing(
                "kl_over_order",
                Table(("M", "paper's recipe, median KL", "bernflow, median KL", "bernflow, worst KL"), rows),
                "KL over the order.",
            ),
            Picture(
                "losses",
                _losses(scale, results),
                "Loss (-ELBO) over the steps; dashed: -log evidence (the paper's Fig. S1).",
            ),
            Heading("Compared with the paper"),
            Listing("claims", claims_table(claims), f"Smaller is better. Gaussian-VI reaches a KL of {gaussian:.3g}."),
        ],
        {"orders": list(orders), "kl": kls, "kl_gaussian": gaussian, "slopes": {m: s.slope for m, s in slopes.items()}},
    )


def _larger_orders(orders: Sequence[int], kls: Mapping[str, list[np.ndarray]]) -> str:
    """Say what the largest order costs beside the best one; the paper says that it does no harm."""
    parts = []
    for method, label in (("paper", "the paper's recipe"), ("bernflow", "bernflow")):
        medians = [float(np.median(values)) for values in kls[method]]
        best = int(np.argmin(medians))
        parts.append(
            f"{label} has its smallest median KL, {number(medians[best])}, at M = {orders[best]}, and "
            f"{number(medians[-1])} at M = {orders[-1]}"
        )
    return f"The paper finds that larger orders do no harm; here {'; '.join(parts)}."


def _densities(scale: str, results: Results) -> Figure:
    theta, _, log_p = exact_posterior(TARGET)
    figure = new_figure(7.0, 3.0)
    grid = new_axes(figure, 1, 2, sharex=True, sharey=True)
    orders = [order for order in SHOWN_ORDERS if order in SETTINGS[scale]["orders"]]
    colors = order_colors(orders)
    gaussian = results[fit(scale, "gaussian", None, 0)]["density"]
    for axes, method in zip(grid.flat, ("paper", "bernflow"), strict=True):
        axes.plot(theta, np.exp(log_p), color=TRUTH, linewidth=3.2, alpha=0.35, label="exact posterior")
        axes.plot(theta, gaussian, color=METHODS["gaussian"].color, linewidth=1.3, linestyle="--", label="Gaussian-VI")
        for order in orders:
            density = results[fit(scale, method, order, 0)]["density"]
            axes.plot(theta, density, color=colors[order], linewidth=1.4, label=f"BF-VI, M = {order}")
        axes.set_title(METHODS[method].label)
        axes.set_xlabel("π")
    grid[0, 0].set_ylabel("density p(π | D)")
    grid[0, 0].set_xlim(0.0, 1.0)
    grid[0, 0].set_ylim(0.0, 1.35 * float(np.exp(log_p).max()))
    grid[0, 0].legend(loc="upper left", fontsize=8)
    return figure


def _kl_figure(orders, kls, slopes, gaussian: float) -> Figure:
    figure = new_figure(5.2, 3.6)
    axes = new_axes(figure, 1, 1)[0, 0]
    for method, marker in (("paper", "s"), ("bernflow", "o")):
        color = METHODS[method].color
        # A KL that rounding makes negative is drawn at the floor of the quadrature.
        samples = [np.maximum(values, 1e-9) for values in kls[method]]
        draw_spread(axes, orders, samples, METHODS[method].label, color, marker)
        found = slopes[method]
        x = np.array([found.first, found.last], float)
        axes.plot(x, np.exp(found.intercept) * x**found.slope, color=color, linewidth=0.8)
    start = float(np.median(kls["paper"][0]))
    bound = np.array([orders[0], orders[-1]], float)
    axes.plot(bound, start * orders[0] / bound, ":", color=TRUTH, linewidth=1.0, label="1/M")
    axes.axhline(gaussian, color=METHODS["gaussian"].color, linestyle="--", linewidth=1.0, label="Gaussian-VI")
    axes.set(xscale="log", yscale="log", xlabel="order M of the Bernstein polynomial", ylabel="KL(q || posterior)")
    axes.set_xticks(orders, [str(order) for order in orders])
    axes.minorticks_off()
    axes.legend(fontsize=8)
    return figure


def _losses(scale: str, results: Results) -> Figure:
    evidence = BENCHMARKS[TARGET].log_evidence
    assert evidence is not None
    curves = {m: {M: results[fit(scale, m, M, 0)] for M in loss_orders(scale)} for m in ("paper", "bernflow")}
    return draw_losses(curves, results[fit(scale, "gaussian", None, 0)], evidence, height=1.0)


EXPERIMENT = Experiment(
    TARGET, "Bernoulli", "a skewed posterior, known exactly: densities, KL over the order, loss curves", tasks, present
)
