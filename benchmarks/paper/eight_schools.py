"""Eight schools, centered and non-centered: a hierarchical posterior with a funnel."""

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.marginal_plots import draw_boxes
from benchmarks.paper.repetitions import KL_HEADING, RECIPE, describe_truth, fit, repetitions, summarize, truth
from benchmarks.study.figures import new_axes, new_figure
from benchmarks.study.fits import draws_of
from benchmarks.study.methods import METHODS, TRUTH
from benchmarks.study.page import Heading, Listing, Page, Picture
from benchmarks.study.plan import Experiment, Results, Task
from benchmarks.study.tables import Claim, Table, claims_table
from benchmarks.targets import BENCHMARKS

CENTERED, NONCENTERED = "eight-schools-centered", "eight-schools-noncentered"
TARGETS = {NONCENTERED: ("NCP", "theta_trans", "θ̃"), CENTERED: ("CP", "theta", "θ")}
METHODS_SHOWN = ("bernflow", "paper", "paper-text", "gaussian")


def tasks(scale: str) -> list[Task]:
    """List the fits."""
    fits = [task for t in TARGETS for method in METHODS_SHOWN for task in repetitions(scale, t, method)]
    return [truth(scale, NONCENTERED), *fits]


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    # Both posteriors are the same one; NUTS samples it well in the non-centered form, which gives theta too.
    reference = results[truth(scale, NONCENTERED)]
    trusted = draws_of(reference)
    summary = {target: summarize(scale, results, target, METHODS_SHOWN) for target in TARGETS}
    rows, claims, pictures = [], [], []
    for target, (short, site, symbol) in TARGETS.items():
        samples = {m: draws_of(results[fit(scale, target, m)]) for m in METHODS_SHOWN}
        paper = BENCHMARKS[target].paper
        found = summary[target]
        for m, s in found.items():
            tau = float(np.mean(samples[m]["tau"]))
            rows.append((short, METHODS[m].label, s["khat_text"], s["kl_text"], s["ess_fraction_median"], tau))
        note = paper["note"]
        claims += [
            Claim(
                f"k-hat, BF-VI, {short}", paper["khat"], found["bernflow"]["khat"], found["paper"]["khat"], note=note
            ),
            Claim(
                f"k-hat, MF-Gaussian-VI, {short}",
                paper["khat_mean_field_gaussian"],
                found["gaussian"]["khat"],
                tolerance=0.1,
            ),
            Claim(f"KL(q || posterior), {short}", None, found["bernflow"]["kl_median"], found["paper"]["kl_median"]),
        ]
        pictures.append(
            Picture(
                f"marginals_{short.lower()}",
                _marginals(samples, trusted, site, symbol),
                f"Marginals of {symbol}, μ and τ, {short} parametrization (the paper's Fig. S6). Medians, central 50 "
                "% and 95 % intervals.",
            )
        )
    rows.append(("both", "NUTS", None, None, None, float(np.mean(trusted["tau"]))))
    columns = ("form", "method", "k-hat (90 %)", KL_HEADING, "ESS fraction", "E[τ]")
    return Page(
        "Eight schools: a hierarchical model, centered and non-centered",
        [
            "Effects of coaching in eight schools. In the centered form (CP) the school "
            "effects θ and their scale τ are parameters, which makes a funnel. In the "
            "non-centered form (NCP) they are θ = μ + τ θ̃. " + describe_truth(reference),
            "The script published with the paper omits the log-Jacobian of τ, so its k-hat refers to a different "
            "posterior, with E[τ] = 0.55. " + RECIPE,
            *pictures,
            Listing("methods", Table(columns, rows), f"{len(repetitions(scale, CENTERED, 'paper'))} repetitions."),
            Heading("Compared with the paper"),
            Listing("claims", claims_table(claims), "Smaller is better."),
        ],
        {"summary": summary, "nuts": {name: reference[name] for name in ("rhat", "ess", "num_divergent", "num_draws")}},
    )


def _marginals(samples: dict, trusted: dict, site: str, symbol: str) -> Figure:
    figure = new_figure(7.2, 3.2)
    grid = new_axes(figure, 1, 3, width_ratios=(8, 1.4, 1.4))[0]
    shown = {"NUTS": (trusted, TRUTH)}
    shown |= {METHODS[m].label: (samples[m], METHODS[m].color) for m in METHODS_SHOWN}
    panels = ((site, [f"{symbol}{'₁₂₃₄₅₆₇₈'[i]}" for i in range(8)]), ("mu", ["μ"]), ("tau", ["τ"]))
    handles = []
    for axes, (name, columns) in zip(grid, panels, strict=True):
        groups = {k: (list(np.atleast_2d(np.asarray(d[name]).T)), color) for k, (d, color) in shown.items()}
        handles = draw_boxes(axes, columns, groups)
    grid[0].set_ylabel("value")
    grid[2].set_ylim(bottom=0.0)
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    "eight-schools",
    "Eight schools",
    "a hierarchical model, centered and non-centered: marginals and k-hat",
    tasks,
    present,
)
