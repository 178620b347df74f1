"""Toy linear regression: four parameters, two of them strongly correlated."""

import numpy as np

from benchmarks.paper.repetitions import KL_HEADING, RECIPE, describe_truth, fit, repetitions, summarize, truth
from benchmarks.study.fits import draws_of
from benchmarks.study.methods import METHODS
from benchmarks.study.page import Heading, Listing, Page, Picture
from benchmarks.study.plan import Experiment, Results, Task
from benchmarks.study.tables import Claim, Table, claims_table
from benchmarks.targets import BENCHMARKS
from bernflow.plots import plot_pairs

TARGET = "toy-regression"
METHODS_SHOWN = ("bernflow", "paper", "paper-text", "gaussian")


def tasks(scale: str) -> list[Task]:
    """List the fits."""
    return [truth(scale, TARGET), *(task for method in METHODS_SHOWN for task in repetitions(scale, TARGET, method))]


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    reference = results[truth(scale, TARGET)]
    summary = summarize(scale, results, TARGET, METHODS_SHOWN)
    paper = BENCHMARKS[TARGET].paper
    rows = [(METHODS[m].label, s["khat_text"], s["kl_text"], s["ess_fraction_median"]) for m, s in summary.items()]
    claims = [
        Claim("k-hat, BF-VI", paper["khat"], summary["bernflow"]["khat"], summary["paper"]["khat"], note=paper["note"]),
        Claim(
            "k-hat, MF-Gaussian-VI",
            paper["khat_mean_field_gaussian"],
            summary["gaussian"]["khat"],
            tolerance=0.1,
            note=paper["note"],
        ),
        Claim("KL(q || posterior)", None, summary["bernflow"]["kl_median"], summary["paper"]["kl_median"]),
    ]
    pictures = [
        Picture(
            f"pairs_{method}",
            _pairs(results, scale, method, reference),
            f"Posterior draws of {METHODS[method].label} and NUTS for (μ₀, β₁, β₂, σ) ({where}).",
        )
        for method, where in (
            ("bernflow", "the paper's Fig. 4, drawn with bernflow's defaults"),
            ("paper", "the paper's Fig. 4, with its own recipe"),
            ("gaussian", "the paper's Fig. S4"),
        )
    ]
    return Page(
        "Toy linear regression: dependence between parameters",
        [
            "Six observations and two predictors with a correlation of 0.99: the posterior of the slopes is a thin "
            "ridge, and "
            "σ is skewed. " + describe_truth(reference) + " " + RECIPE,
            *pictures,
            Listing(
                "methods",
                Table(("method", "k-hat (90 %)", KL_HEADING, "ESS fraction, median"), rows),
                f"{len(repetitions(scale, TARGET, 'paper'))} repetitions; k-hat pooled by Rubin's rules.",
            ),
            Heading("Compared with the paper"),
            Listing("claims", claims_table(claims), "Smaller is better."),
        ],
        {"summary": summary, "nuts": {name: reference[name] for name in ("rhat", "ess", "num_divergent", "num_draws")}},
    )


def _pairs(results: Results, scale: str, method: str, reference):
    return plot_pairs(
        _named(draws_of(results[fit(scale, TARGET, method)])),
        reference=_named(draws_of(reference)),
        label=METHODS[method].label,
    )


def _named(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Name the parameters as the paper does."""
    return {"μ₀": draws["b"], "β₁": draws["w"][:, 0], "β₂": draws["w"][:, 1], "σ": draws["sigma"]}


EXPERIMENT = Experiment(
    TARGET, "Toy linear regression", "dependence between four parameters: pairs plots and k-hat", tasks, present
)
