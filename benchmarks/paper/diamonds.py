"""Diamonds: 26 parameters and a posterior so narrow that the paper's recipe does not find it."""

import numpy as np
from matplotlib.figure import Figure

from benchmarks.data import load_diamonds, load_diamonds_reference
from benchmarks.paper.marginal_plots import draw_boxes
from benchmarks.paper.repetitions import KL_HEADING, RECIPE, fit, repetitions, summarize
from benchmarks.study.figures import new_axes, new_figure
from benchmarks.study.fits import draws_of
from benchmarks.study.methods import METHODS, TRUTH
from benchmarks.study.page import Heading, Listing, Page, Picture
from benchmarks.study.plan import Experiment, Results, Task
from benchmarks.study.tables import Claim, Table, claims_table
from benchmarks.targets import BENCHMARKS

TARGET = "diamonds"
METHODS_SHOWN = ("bernflow", "paper", "paper-text", "gaussian")


def tasks(scale: str) -> list[Task]:
    """List the fits."""
    return [task for method in METHODS_SHOWN for task in repetitions(scale, TARGET, method)]


def maximum_likelihood() -> np.ndarray:
    """Return the maximum-likelihood estimate: 24 slopes, intercept, residual standard deviation."""
    x, y = load_diamonds()
    design = np.column_stack([x, np.ones(len(y))])
    estimate, *_ = np.linalg.lstsq(design, y, rcond=None)
    return np.append(estimate, np.sqrt(np.mean((y - design @ estimate) ** 2)))


def columns_of(draws: dict[str, np.ndarray]) -> np.ndarray:
    """Return draws as a matrix (num, 26): slopes, intercept, sigma."""
    return np.column_stack([draws["b"], draws["Intercept"], draws["sigma"]]).astype(np.float64)


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    summary = summarize(scale, results, TARGET, METHODS_SHOWN)
    reference = columns_of(load_diamonds_reference())
    center, spread = reference.mean(0), reference.std(0, ddof=1)
    samples = {m: columns_of(draws_of(results[fit(scale, TARGET, m)])) for m in METHODS_SHOWN}
    errors = {
        m: {
            "worst_mean": float(np.max(np.abs(values.mean(0) - center) / spread)),
            "worst_sd": float(np.max(np.abs(np.log(values.std(0, ddof=1) / spread)))),
        }
        for m, values in samples.items()
    }
    rows = [
        (METHODS[m].label, s["khat_text"], s["kl_text"], s["ess_fraction_median"], *errors[m].values())
        for m, s in summary.items()
    ]
    columns = (
        "method",
        "k-hat (90 %)",
        KL_HEADING,
        "ESS fraction",
        "worst |mean error| / sd",
        "worst |log sd ratio|",
    )
    paper = BENCHMARKS[TARGET].paper
    claims = [
        Claim("k-hat, BF-VI", paper["khat"], summary["bernflow"]["khat"], summary["paper"]["khat"]),
        Claim("k-hat, MF-Gaussian-VI", paper["khat_mean_field_gaussian"], summary["gaussian"]["khat"], tolerance=0.1),
        Claim("KL(q || posterior)", None, summary["bernflow"]["kl_median"], summary["paper"]["kl_median"]),
    ]
    return Page(
        "Diamonds: many observations, a narrow posterior",
        [
            "5,000 diamonds, 24 nearly collinear predictors: the posterior is a narrow Gaussian. Along collinear "
            "directions the N(0, 1) prior dominates, and the maximum-likelihood estimate lies up to nine posterior "
            "standard deviations away. The reference consists of 2,000 draws of posteriordb. The paper's flow has no "
            "affine map after the polynomial and starts a thousand times too wide; bernflow starts from the mode and "
            "the curvature. " + RECIPE,
            Picture(
                "marginals",
                _marginals(reference, samples),
                "Marginals of posteriordb's reference draws, bernflow and the paper's recipe; crosses: maximum "
                "likelihood (the paper's Fig. S5). Medians, central 50 % and 95 % intervals. Bottom: in standard "
                "deviations of the reference.",
            ),
            Listing("methods", Table(columns, rows), f"{len(repetitions(scale, TARGET, 'paper'))} repetitions."),
            Heading("Compared with the paper"),
            Listing("claims", claims_table(claims), "Smaller is better."),
        ],
        {"summary": summary, "errors": errors},
    )


def _marginals(reference: np.ndarray, samples: dict[str, np.ndarray]) -> Figure:
    best = maximum_likelihood()
    names = [*(f"β{_subscript(i + 1)}" for i in range(24)), "μ₀", "σ"]
    center, spread = reference.mean(0), reference.std(0, ddof=1)
    figure = new_figure(7.4, 5.2)
    above, below = new_axes(figure, 2, 1, sharex=True)[:, 0]
    shown = {"posteriordb reference": (reference, TRUTH)}
    shown |= {METHODS[m].label: (samples[m], METHODS[m].color) for m in ("bernflow", "paper")}
    groups = {label: (list(values.T), color) for label, (values, color) in shown.items()}
    handles = draw_boxes(above, names, groups)
    (cross,) = above.plot(np.arange(26), best, "x", color="#CC2222", markersize=6, label="maximum likelihood", zorder=5)
    above.set_ylabel("value")
    standardized = {k: ((v - center) / spread, c) for k, (v, c) in shown.items()}
    draw_boxes(below, names, {label: (list(values.T), color) for label, (values, color) in standardized.items()})
    below.plot(np.arange(26), (best - center) / spread, "x", color="#CC2222", markersize=6, zorder=5)
    below.set_ylim(-10.0, 10.0)
    below.set_ylabel("(value - mean) / sd of the reference")
    below.tick_params(axis="x", labelsize=8)
    figure.legend(handles=[*handles, cross], loc="outside upper center", ncols=4, fontsize=8)
    return figure


def _subscript(num: int) -> str:
    return str(num).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


EXPERIMENT = Experiment(
    TARGET, "Diamonds", "26 parameters, a narrow posterior: marginals against posteriordb", tasks, present
)
