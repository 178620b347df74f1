"""Cauchy: a bimodal posterior, its approximations, and the ablation of what stands before the polynomial."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.data import load_paper_cauchy_kl
from benchmarks.study.curves import curve_task, exact_posterior
from benchmarks.study.figures import draw_losses, draw_spread, new_axes, new_figure
from benchmarks.study.methods import METHODS, TRUTH
from benchmarks.study.nuts import nuts_task
from benchmarks.study.page import Heading, Listing, Page, Picture
from benchmarks.study.plan import Experiment, Results, Task
from benchmarks.study.tables import Claim, Table, claims_table
from benchmarks.targets import BENCHMARKS

TARGET = "cauchy"
# Medians of few runs of a noisy training are called equal within this factor.
SAME_KL = 2.0
TRANSFORMATIONS = {"f1": "f1 = BP ∘ σ ∘ l", "f2": "f2 = BP ∘ σ", "f3": "f3 = BP, truncated normal"}
COLORS = {"f1": "#D55E00", "f2": "#E69F00", "f3": "#CC79A7"}
MARKERS = {"f1": "s", "f2": "^", "f3": "v"}
# Neighboring tick labels of a logarithmic axis need this ratio.
LEAST_TICK_RATIO = 1.3
# As in the text: S and epochs. The ablation is trained to the end, at ten times the rate: the paper's own figures are
# met only so.
TRAINED_TO_THE_END: dict[str, Any] = {"steps": 5000, "optimizer": 0.01}
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {
        "shown": (2, 6, 10, 30, 50),
        "losses": (1, 10, 30, 50),
        "ablation": (1, 2, 3, 6, 10, 20, 30, 50, 60, 100, 300),
        "runs": 10,
        "ablation_runs": 3,
        "recipe": {"num_particles": 1000, "steps": 1000},
        "trained": {"num_particles": 1000, **TRAINED_TO_THE_END},
        "nuts": {"num_warmup": 2000, "num_samples": 10_000, "num_kept": 20_000},
    },
    "quick": {
        "shown": (2, 10, 50),
        "losses": (1, 10, 50),
        "ablation": (1, 3, 10, 50),
        "runs": 3,
        "ablation_runs": 1,
        "recipe": {"num_particles": 1000, "steps": 1000},
        "trained": {"num_particles": 100, **TRAINED_TO_THE_END},
        "nuts": {"num_warmup": 1000, "num_samples": 5000, "num_kept": 20_000},
    },
    "tiny": {
        "shown": (2,),
        "losses": (2,),
        "ablation": (2,),
        "runs": 2,
        "ablation_runs": 1,
        "recipe": {"num_particles": 8, "steps": 30},
        "trained": {"num_particles": 8, "steps": 30},
        "nuts": {"num_warmup": 100, "num_samples": 100, "num_kept": 400, "strict": False},
    },
}


def recipe(scale: str, order: int, key: int) -> Task:
    """Return a fit by the paper's recipe with the number of samples and epochs of its text."""
    return curve_task(TARGET, "paper", key, family="bernstein-paper:f1@3", order=order, **SETTINGS[scale]["recipe"])


def ablated(scale: str, transformation: str, order: int, key: int) -> Task:
    """Return a fit of one of the transformations, trained to the end."""
    family = f"bernstein-paper:{transformation}@3"
    return curve_task(TARGET, "paper", key, family=family, order=order, **SETTINGS[scale]["trained"])


def default(scale: str, order: int, key: int) -> Task:
    """Return a fit by bernflow's default family."""
    steps = {"steps": 30} if scale == "tiny" else {}
    return curve_task(TARGET, "bernflow", key, order=order, **steps)


def gaussian(scale: str) -> Task:
    """Return the Gaussian fit."""
    return curve_task(TARGET, "gaussian", 0, **({"steps": 30} if scale == "tiny" else {}))


def nuts(scale: str) -> Task:
    """Return the ground truth by NUTS."""
    return nuts_task(TARGET, **SETTINGS[scale]["nuts"])


def tasks(scale: str) -> list[Task]:
    """List the fits."""
    chosen = SETTINGS[scale]
    plan = [nuts(scale), gaussian(scale)]
    for make in (recipe, default):
        plan += [make(scale, order, key) for order in chosen["shown"] for key in range(chosen["runs"])]
        plan += [make(scale, order, 0) for order in chosen["losses"]]
    for key in range(chosen["ablation_runs"]):
        for order in chosen["ablation"]:
            plan += [ablated(scale, name, order, key) for name in TRANSFORMATIONS]
            plan.append(default(scale, order, key))
    return plan


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    chosen = SETTINGS[scale]
    orders, runs = chosen["ablation"], range(chosen["ablation_runs"])
    kls = {
        name: [np.array([results[ablated(scale, name, M, key)]["kl"] for key in runs]) for M in orders]
        for name in TRANSFORMATIONS
    }
    kls["bernflow"] = [np.array([results[default(scale, M, key)]["kl"] for key in runs]) for M in orders]
    paper = load_paper_cauchy_kl()
    rows = [
        [M, *(_median(paper[f].get(M)) for f in TRANSFORMATIONS), *(_median(kls[name][i]) for name in kls)]
        for i, M in enumerate(orders)
    ]
    columns = ["M", *(f"{f}, paper" for f in TRANSFORMATIONS), *(f"{f}, run here" for f in TRANSFORMATIONS), "bernflow"]
    claims = [
        Claim(f"KL at M = {row[0]}", row[1], row[-1], row[4], note="paper: f1, median of 20 seeds")
        for row in rows
        if row[1] is not None
    ]
    truth = results[nuts(scale)]
    evidence = BENCHMARKS[TARGET].log_evidence
    return Page(
        "Cauchy: a bimodal posterior, and the map in front of the polynomial",
        [
            "Six observations from a mixture of two Cauchy distributions, fitted by one Cauchy distribution of known "
            f"scale: the posterior of its location ξ is bimodal. The log evidence is {evidence} by quadrature. NUTS: "
            f"R-hat {truth['rhat']:.4f}, {truth['ess']:,.0f} effective of {truth['num_draws']:,} draws.",
            Picture(
                "densities",
                _densities(scale, results),
                f"Posterior of ξ by quadrature and NUTS, and its approximations, {chosen['runs']} runs overlaid (the "
                "paper's Fig. 3). Top: the paper's recipe with S and epochs as in its text; bottom: bernflow with "
                "its defaults.",
            ),
            Picture(
                "losses",
                _losses(scale, results),
                "Loss (-ELBO) over the steps; dashed: -log evidence (the paper's Fig. S2).",
            ),
            Heading("Ablation of the transformation"),
            "The paper tries three maps of the noise to the interval of the polynomial. Its text does not give the "
            "initial coefficients. Here they start on a line over [-3, 3] and are trained to convergence (5,000 steps "
            f"at a learning rate of 0.01). {_agreement(orders, kls, paper)}",
            Picture(
                "ablation",
                _ablation(orders, kls, paper),
                "KL(q || posterior) over the order M: the paper's values (open, medians of 20 seeds), the same flows "
                "as we ran them (filled), and bernflow's default flow (the paper's Fig. S3).",
            ),
            Listing("ablation", Table(columns, rows), "Median KL over the order M."),
            Heading("Compared with the paper"),
            Listing("claims", claims_table(claims), "Smaller is better."),
        ],
        {
            "orders": list(orders),
            "kl": kls,
            "kl_gaussian": results[gaussian(scale)]["kl"],
            "kl_recipe": {
                M: [results[recipe(scale, M, k)]["kl"] for k in range(chosen["runs"])] for M in chosen["shown"]
            },
            "kl_default": {
                M: [results[default(scale, M, k)]["kl"] for k in range(chosen["runs"])] for M in chosen["shown"]
            },
            "nuts": {name: truth[name] for name in ("rhat", "ess", "num_divergent", "num_draws")},
        },
    )


def _agreement(orders: Sequence[int], kls: Mapping[str, list[np.ndarray]], paper: Mapping[str, Any]) -> str:
    """Say for how many orders of each transformation our median agrees with the paper's."""
    parts = []
    for name in TRANSFORMATIONS:
        pairs = [(float(np.median(kls[name][i])), _median(paper[name].get(M))) for i, M in enumerate(orders)]
        ratios = [ours / theirs for ours, theirs in pairs if theirs is not None]
        near = sum(1.0 / SAME_KL <= ratio <= SAME_KL for ratio in ratios)
        above = sum(ratio > SAME_KL for ratio in ratios)
        parts.append(f"{name}: {near} of {len(ratios)} orders ({above} above, {len(ratios) - near - above} below)")
    return f"Within a factor of {SAME_KL:g} of the paper's own medians are, by transformation, {'; '.join(parts)}."


def _median(values: np.ndarray | None) -> float | None:
    return None if values is None else float(np.median(values))


def _densities(scale: str, results: Results) -> Figure:
    xi, _, log_p = exact_posterior(TARGET)
    p = np.exp(log_p)
    orders = SETTINGS[scale]["shown"]
    draws = results[nuts(scale)]["draws/xi"]
    counts, edges = np.histogram(draws, bins=60, range=(-4.5, 4.5))
    heights = counts / (len(draws) * np.diff(edges))
    figure = new_figure(7.2, 3.6)
    grid = new_axes(figure, 2, len(orders) + 1, sharex=True, sharey=True)
    for row, (make, name) in enumerate(((recipe, "paper"), (default, "bernflow"))):
        for column, axes in enumerate(grid[row]):
            axes.stairs(heights, edges, fill=True, color="#DDDDDD", label="NUTS")
            axes.plot(xi, p, color=TRUTH, linewidth=0.9, label="exact")
            if column == 0:
                density = results[gaussian(scale)]["density"]
                axes.plot(xi, density, color=METHODS["gaussian"].color, linewidth=1.2, label="Gaussian-VI")
            else:
                for key in range(SETTINGS[scale]["runs"]):
                    density = results[make(scale, orders[column - 1], key)]["density"]
                    label = METHODS[name].label if key == 0 else None
                    axes.plot(xi, density, color=METHODS[name].color, linewidth=0.9, alpha=0.6, label=label)
            if row == 0:
                axes.set_title("Gaussian-VI" if column == 0 else f"M = {orders[column - 1]}", fontsize=9)
            else:
                axes.set_xlabel("ξ")
        grid[row, 0].set_ylabel("density")
    grid[0, 0].set_xlim(-4.5, 4.5)
    grid[0, 0].set_xticks((-4, -2, 0, 2, 4))
    grid[0, 0].set_ylim(0.0, 1.5 * float(p.max()))
    handles = {text: h for axes in grid.flat for h, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles), fontsize=8)
    return figure


def _losses(scale: str, results: Results) -> Figure:
    evidence = BENCHMARKS[TARGET].log_evidence
    assert evidence is not None
    makers = {"paper": recipe, "bernflow": default}
    curves = {m: {M: results[make(scale, M, 0)] for M in SETTINGS[scale]["losses"]} for m, make in makers.items()}
    return draw_losses(curves, results[gaussian(scale)], evidence, height=2.0)


def _ablation(orders, kls, paper) -> Figure:
    figure = new_figure(5.6, 4.0)
    axes = new_axes(figure, 1, 1)[0, 0]
    for name, text in TRANSFORMATIONS.items():
        draw_spread(axes, orders, kls[name], f"{text}, run here", COLORS[name], MARKERS[name])
        theirs = paper[name]
        axes.plot(
            list(theirs),
            [np.median(v) for v in theirs.values()],
            MARKERS[name],
            linestyle=":",
            linewidth=0.9,
            color=COLORS[name],
            markerfacecolor="white",
            markersize=6,
            label=f"{name}, the paper's points",
        )
    # A KL that rounding makes negative is drawn at the floor.
    draw_spread(axes, orders, [np.maximum(v, 1e-7) for v in kls["bernflow"]], "bernflow", METHODS["bernflow"].color)
    axes.set(xscale="log", yscale="log", xlabel="order M of the Bernstein polynomial", ylabel="KL(q || posterior)")
    axes.set_xticks(orders, _tick_labels(orders))
    axes.minorticks_off()
    axes.legend(fontsize=7.5, loc="lower left")
    return figure


def _tick_labels(orders) -> list[str]:
    """Return the labels of a logarithmic axis, empty where one would run into the label before it."""
    labels, last = [], 0.0
    for order in orders:
        fits = order >= LEAST_TICK_RATIO * last
        last = order if fits else last
        labels.append(str(order) if fits else "")
    return labels


EXPERIMENT = Experiment(
    TARGET,
    "Cauchy",
    "a bimodal posterior: densities, loss curves and the ablation of the transformation",
    tasks,
    present,
)
