"""What each addition to the paper's flow contributes: each is removed from the default in turn."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

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
                "-ELBO relative to the best. The dashed line is the default. Median of "
                f"{SETTINGS[scale]['keys']} keys.",
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
    columns = next((n for n in (4, 3, 2) if len(targets) % n == 0), min(4, len(targets)))
    figure = new_figure(7.6, 0.7 + 1.9 * -(-len(targets) // columns))
    grid = new_axes(figure, -(-len(targets) // columns), columns, sharey=True)
    shift = _best(targets, found)
    variants = list(VARIANTS)
    for axes, target in zip(grid.flat, targets, strict=False):
        values = {
            v: max(found[target, v]["loss"] - shift[target], SMALLEST_KL) for v in variants if (target, v) in found
        }
        _draw_dots(axes, [values.get(v) for v in variants])
        axes.set_title(TARGETS[target], fontsize=9)
        if shift[target]:
            axes.set_title(f"{TARGETS[target]}*", fontsize=9)
        axes.tick_params(labelsize=7.5)
    for axes in grid.flat[len(targets) :]:
        axes.axis("off")
    labels = [VARIANTS[v].partition(" (")[0].partition(":")[0] for v in variants]
    for row in grid:
        row[0].set_yticks(range(len(variants)), ["the default", *(f"without {label}" for label in labels[1:])])
    grid[0, 0].set_ylim(len(variants) - 0.5, -0.5)
    note = "   * ELBO below the best one: the evidence is unknown" if any(shift.values()) else ""
    figure.supxlabel(f"KL(q || posterior), nats{note}", fontsize=9)
    return figure


def _draw_dots(axes: Axes, values: list[float | None]) -> None:
    """Draw one dot per variant, joined to the default by a line, with its value."""
    default = values[0]
    known = [value for value in values if value is not None]
    if default is not None:
        axes.axvline(default, color="#9A9A9A", linewidth=0.9, linestyle=(0, (4, 2)), zorder=0)
    for place, value in enumerate(values):
        if value is None:
            continue
        color = "#222222" if place == 0 else "#0072B2"
        if default is not None:
            axes.plot([default, value], [place, place], color=color, linewidth=1.2, alpha=0.5)
        axes.plot([value], [place], "o", color=color, markersize=4.5)
        text = f"<{SMALLEST_KL:g}" if value <= SMALLEST_KL else number(value, 2)
        right = default is None or value >= 0.98 * default
        axes.annotate(
            text,
            (value, place),
            (5 if right else -5, 0),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            fontsize=6.5,
        )
    axes.set_xscale("log")
    low, high = np.log10(min(known)), np.log10(max(known))
    reach = max(high - low, 1.0)
    # Room for the numbers, which are on the far side of the default.
    left = 0.6 if default is not None and min(known) < 0.98 * default else 0.2
    axes.set_xlim(10.0 ** (low - left * reach), 10.0 ** (high + 0.6 * reach))
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    axes.xaxis.set_minor_formatter(NullFormatter())


EXPERIMENT = Experiment(
    "additions",
    "Additions",
    "what each addition to the paper's flow contributes, by removing one at a time",
    tasks,
    present,
)
