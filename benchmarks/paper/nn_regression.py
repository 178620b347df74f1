"""Regression by a small Bayesian network: a posterior with many equal modes, judged by what it predicts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtr

from benchmarks.data import load_nn_regression, load_paper_nn_quantiles
from benchmarks.paper.repetitions import describe_truth, repetitions, summarize
from benchmarks.study.figures import new_axes, new_figure
from benchmarks.study.fits import draws_of
from benchmarks.study.methods import METHODS, TRUTH
from benchmarks.study.nuts import nuts_task
from benchmarks.study.page import Heading, Listing, Page, Picture
from benchmarks.study.plan import Experiment, Results, Task
from benchmarks.study.tables import Claim, Table, claims_table
from benchmarks.targets import nn_mean

TARGET = "nn-regression"
METHODS_SHOWN = ("gaussian", "paper", "bernflow", "mixture")
LEVELS = (0.05, 0.5, 0.95)
# The published quantiles are called 5 and 95 %; they agree with NUTS at these levels and at no others.
PUBLISHED_LEVELS = (0.025, 0.5, 0.975)
NUM_INPUTS = 101
NUTS: dict[str, dict[str, Any]] = {
    "full": {"num_warmup": 3000, "num_samples": 20_000, "num_kept": 8000},
    "quick": {"num_warmup": 2000, "num_samples": 10_000, "num_kept": 4000},
    "tiny": {"num_warmup": 50, "num_samples": 50, "num_kept": 200, "strict": False},
}


def truth(scale: str) -> Task:
    """Return the ground truth; its chains move between the modes, so that it takes many draws."""
    return nuts_task(TARGET, **NUTS[scale])


def tasks(scale: str) -> list[Task]:
    """List the fits."""
    return [truth(scale), *(task for method in METHODS_SHOWN for task in repetitions(scale, TARGET, method))]


def predictive_quantiles(
    draws: Mapping[str, np.ndarray], x: np.ndarray, levels: Sequence[float] = LEVELS
) -> np.ndarray:
    """Return the quantiles of the predictive distribution at every input, (levels, n).

    The predictive distribution is a mixture of normal ones, one per draw; its quantiles are found by bisection, without
    noise of their own.
    """
    sigma = load_nn_regression()[2]
    weights = (draws[name].astype(np.float64) for name in ("w_first", "bias_first", "w_output", "bias_output"))
    mean = np.asarray(nn_mean(x, *weights), np.float64)
    low = np.repeat(mean.min(0)[None] - 5.0 * sigma, len(levels), 0)
    high = np.repeat(mean.max(0)[None] + 5.0 * sigma, len(levels), 0)
    wanted = np.array(levels)[:, None]
    for _ in range(40):
        middle = 0.5 * (low + high)
        below = np.stack([ndtr((row - mean) / sigma).mean(0) for row in middle]) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


def distance(bands: np.ndarray, reference: np.ndarray) -> float:
    """Return the mean absolute distance of the three curves to the reference's."""
    return float(np.mean(np.abs(bands - reference)))


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    x = np.linspace(-10.0, 10.0, NUM_INPUTS)
    reference = results[truth(scale)]
    nuts = predictive_quantiles(draws_of(reference), x)
    published = load_paper_nn_quantiles()
    paper = np.stack([np.interp(x, published["x"], published[name]) for name in ("q05", "q50", "q95")])
    draws = {m: [draws_of(run) for run in results.of(repetitions(scale, TARGET, m))] for m in METHODS_SHOWN}
    bands = {m: [predictive_quantiles(d, x) for d in runs] for m, runs in draws.items()}
    to_paper = {
        m: [distance(predictive_quantiles(d, x, PUBLISHED_LEVELS), paper) for d in runs] for m, runs in draws.items()
    }
    nuts_to_paper = distance(predictive_quantiles(draws_of(reference), x, PUBLISHED_LEVELS), paper)
    distances = {m: [distance(b, nuts) for b in found] for m, found in bands.items()}
    summary = summarize(scale, results, TARGET, METHODS_SHOWN)
    gaussian = float(np.median(distances["gaussian"]))
    rows = [
        (
            METHODS[m].label,
            summary[m]["elbo_median"],
            summary[m]["khat_text"],
            summary[m]["ess_fraction_median"],
            float(np.median(distances[m])),
            float(np.median(distances[m])) / gaussian,
            float(np.median(to_paper[m])),
        )
        for m in METHODS_SHOWN
    ]
    columns = (
        "method",
        "ELBO",
        "k-hat (90 %)",
        "ESS fraction",
        "distance to NUTS",
        "relative to MF-Gaussian",
        "distance to the paper's MCMC",
    )
    recipe = float(np.median(distances["paper"]))
    claims = [
        Claim("distance of the bands to NUTS, defaults", None, float(np.median(distances["bernflow"])), recipe),
        Claim("distance of the bands to NUTS, eight flows", None, float(np.median(distances["mixture"])), recipe),
        Claim("ELBO, defaults", None, summary["bernflow"]["elbo_median"], summary["paper"]["elbo_median"], "larger"),
        Claim("ELBO, eight flows", None, summary["mixture"]["elbo_median"], summary["paper"]["elbo_median"], "larger"),
    ]
    gain = summary["mixture"]["elbo_median"] - summary["bernflow"]["elbo_median"]
    return Page(
        "Regression by a small neural network",
        [
            "Nine observations, one hidden layer of three sigmoid units, ten weights with N(0, 1) priors, σ = 0.2. "
            "The hidden units can be exchanged, so the posterior has six equivalent modes for every function; the "
            "predictions are what matters. "
            + describe_truth(reference)
            + " R-hat and effective sample size refer to the function at nine inputs.",
            Picture(
                "bands",
                _figure(x, nuts, {m: bands[m][0] for m in METHODS_SHOWN}),
                "Posterior predictive 5, 50 and 95 % quantiles of NUTS (gray) and of each method (color); dots: the "
                "data (the paper's Fig. 5).",
            ),
            "With its defaults, bernflow fits a mixture automatically if a single flow misses mass that its starting "
            "points found. It is compared with a requested mixture of eight flows with fewer steps. Their ELBOs "
            f"differ by {gain:+.2f} nats, and the distances of their bands from NUTS are "
            f"{np.median(distances['bernflow']):.3f} and {np.median(distances['mixture']):.3f}. MF-Gaussian-VI is at "
            f"{gaussian:.3f}; two MCMC runs, ours and the paper's, differ by {nuts_to_paper:.3f}.",
            _claim(recipe, gaussian),
            Listing(
                "methods",
                Table(columns, rows),
                "Medians over the repetitions; distances are mean absolute differences of the bands.",
            ),
            Heading("Compared with the paper"),
            Listing("claims", claims_table(claims), "The paper shows this figure but gives no numbers."),
        ],
        {
            "summary": summary,
            "distances": distances,
            "distances_to_paper": to_paper,
            "distance_nuts_to_paper": nuts_to_paper,
            "x": x,
            "bands_nuts": nuts,
            "nuts": {name: reference[name] for name in ("rhat", "ess", "num_divergent", "num_draws")},
        },
    )


def _claim(recipe: float, gaussian: float) -> str:
    """Say whether the paper's claim on this experiment holds for its own recipe."""
    found = "is reproduced" if recipe < gaussian else "is not reproduced"
    return (
        "The paper claims a slight improvement of BF-VI over MF-Gaussian-VI, by the look of a figure. With its recipe "
        f"as run here the claim {found}: the distances to NUTS are {recipe:.3f} and {gaussian:.3f}."
    )


def _figure(x: np.ndarray, nuts: np.ndarray, bands: dict[str, np.ndarray]) -> Figure:
    inputs, outcomes, _ = load_nn_regression()
    figure = new_figure(7.2, 4.6)
    grid = new_axes(figure, 2, 2, sharex=True, sharey=True)
    for axes, (method, curves) in zip(grid.flat, bands.items(), strict=True):
        axes.fill_between(x, nuts[0], nuts[2], color="#D8D8D8", linewidth=0, label="NUTS, 5 to 95 %")
        axes.plot(x, nuts[1], color=TRUTH, linewidth=1.0, label="NUTS, median")
        color = METHODS[method].color
        axes.plot(x, curves[1], color=color, linewidth=1.4, label="median")
        axes.plot(x, curves[[0, 2]].T, color=color, linewidth=1.2, linestyle="--", label=["5 and 95 %", None])
        axes.plot(inputs, outcomes, "o", color=TRUTH, markersize=3.5, label="data")
        axes.set_title(METHODS[method].label)
    for axes in grid[1]:
        axes.set_xlabel("x")
    for axes in grid[:, 0]:
        axes.set_ylabel("y")
    handles = {text: h for h, text in zip(*grid[0, 0].get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=5, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    TARGET,
    "NN regression",
    "a small Bayesian network: predictive bands of the fit and of a larger mixture",
    tasks,
    present,
)
