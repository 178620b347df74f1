"""What each addition to the paper's flow contributes: each is removed from the default in turn."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.study.figures import new_axes, new_figure
from benchmarks.study.fits import fit_task
from benchmarks.study.page import Listing, Page, Picture
from benchmarks.study.plan import Experiment, Results, Task
from benchmarks.study.tables import Table, number

TARGETS = {
    "bernoulli": "Bernoulli",
    "cauchy": "Cauchy",
    "toy-regression": "Toy regression",
    "eight-schools-noncentered": "8 schools (NCP)",
    "eight-schools-centered": "8 schools (CP)",
    "diamonds": "Diamonds",
    "nn-regression": "NN regression",
}
VARIANTS = {
    "bernstein": "nothing: the default",
    "bernstein:no-outer": "outer affine (a diagonal one stays)",
    "bernstein:no-skip": "linear terms of the conditioner",
    "bernstein:no-score": "sticking the landing (and polish)",
    "bernstein:no-start": "start from mode and curvature",
    "bernstein:no-tails": "linear tails (sigmoid instead)",
    "bernstein:no-cover": "polish of the tails",
}
# In one dimension there is no conditioner, and an outer affine map is diagonal anyway.
MULTIVARIATE_ONLY = ("bernstein:no-outer", "bernstein:no-skip")
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {"keys": 3, "num_draws": 50_000, "targets": tuple(TARGETS)},
    "quick": {"keys": 1, "num_draws": 20_000, "targets": ("cauchy", "toy-regression", "eight-schools-centered")},
    "tiny": {"keys": 1, "num_draws": 500, "targets": ("toy-regression",), "steps": 10},
}
# Smaller KL than this is below the Monte Carlo error of its estimate.
SMALLEST_KL = 1e-5


def applies(target: str, variant: str) -> bool:
    """Tell whether a part can be removed on this target."""
    return variant not in MULTIVARIATE_ONLY or target not in ("bernoulli", "cauchy")


def fits(scale: str, target: str, variant: str) -> list[Task]:
    """Return the repetitions of one variant on one target."""
    chosen = SETTINGS[scale]
    more = {"steps": chosen["steps"]} if "steps" in chosen else {}
    if target == "cauchy":
        more["order"] = 50
    return [
        fit_task(target, "bernflow", key, num_draws=chosen["num_draws"], family=variant, **more)
        for key in range(chosen["keys"])
    ]


def tasks(scale: str) -> list[Task]:
    """List the fits."""
    pairs = [(t, v) for t in SETTINGS[scale]["targets"] for v in VARIANTS if applies(t, v)]
    return [task for target, variant in pairs for task in fits(scale, target, variant)]


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    targets = SETTINGS[scale]["targets"]
    found = {
        (t, v): {
            "loss": float(np.median([_loss(r) for r in runs])),
            "khat": float(np.median([r["khat"] for r in runs])),
            "ess_fraction": float(np.median([r["ess_fraction"] for r in runs])),
            "steps": float(np.median([r["steps"] for r in runs])),
        }
        for t in targets
        for v in VARIANTS
        if applies(t, v)
        for runs in [results.of(fits(scale, t, v))]
    }
    return Page(
        "The contribution of each addition",
        [
            "bernflow's default flow and training with one part removed at a time. The tail polish needs path "
            "gradients, so the variant without sticking the landing has no polish either.",
            Picture(
                "additions",
                _figure(targets, found),
                "KL(q || posterior) with one part removed (log scale); for the network, whose evidence is unknown, "
                f"-ELBO relative to the best. The gray bar is the default. Median of {SETTINGS[scale]['keys']} keys.",
            ),
            Listing(
                "kl",
                _table(targets, found, "loss"),
                "Median KL (NN regression: distance to the best ELBO of the table).",
            ),
            Listing("khat", _table(targets, found, "khat"), "Median k-hat."),
            Listing("ess", _table(targets, found, "ess_fraction"), "Median ESS fraction."),
            Listing("steps", _table(targets, found, "steps"), "Median number of steps until training stopped."),
        ],
        {t: {v: found[t, v] for v in VARIANTS if applies(t, v)} for t in targets},
    )


def _loss(result: dict[str, Any]) -> float:
    return -result["elbo"] if result["kl"] is None else result["kl"]


def _best(targets, found) -> dict[str, float]:
    """Return what to subtract from the losses: nothing where they are KL, else the smallest."""
    unknown = ("nn-regression",)
    return {t: min(f["loss"] for (u, _), f in found.items() if u == t) if t in unknown else 0.0 for t in targets}


def _table(targets, found, name: str) -> Table:
    shift = _best(targets, found) if name == "loss" else dict.fromkeys(targets, 0.0)
    rows = []
    for variant, label in VARIANTS.items():
        cells = [found[t, variant][name] - shift[t] if (t, variant) in found else None for t in targets]
        rows.append([label, *(int(c) if name == "steps" and c is not None else c for c in cells)])
    return Table(("removed", *(TARGETS[t] for t in targets)), rows)


def _figure(targets, found) -> Figure:
    figure = new_figure(7.4, 2.2 + 1.9 * ((len(targets) - 1) // 4))
    columns = min(4, len(targets))
    grid = new_axes(figure, -(-len(targets) // columns), columns, sharey=True)
    shift = _best(targets, found)
    variants = list(VARIANTS)
    for axes, target in zip(grid.flat, targets, strict=False):
        for place, variant in enumerate(variants):
            if (target, variant) not in found:
                continue
            value = max(found[target, variant]["loss"] - shift[target], SMALLEST_KL)
            color = "#9A9A9A" if variant == "bernstein" else "#0072B2"
            axes.barh(place, value - SMALLEST_KL / 2, left=SMALLEST_KL / 2, color=color, height=0.7)
            axes.text(value * 1.25, place, number(value, 2), va="center", fontsize=7)
        axes.set_xscale("log")
        axes.set_xlim(SMALLEST_KL / 2, 40.0 * max(f["loss"] - shift[t] for (t, _), f in found.items() if t == target))
        axes.set_title(TARGETS[target], fontsize=9)
        axes.tick_params(labelsize=7.5)
    for axes in grid.flat[len(targets) :]:
        axes.remove()
    for row in grid:
        row[0].set_yticks(range(len(variants)), [VARIANTS[v].partition(" (")[0] for v in variants])
    grid[0, 0].invert_yaxis()
    figure.supxlabel("KL(q || posterior)", fontsize=9)
    return figure


EXPERIMENT = Experiment(
    "additions",
    "Additions",
    "what each addition to the paper's flow contributes, by removing one at a time",
    tasks,
    present,
)
