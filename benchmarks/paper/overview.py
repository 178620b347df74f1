"""The overview: Table I with the best method of every experiment, Figure 1, and the architectures."""

import tempfile
from pathlib import Path

import numpy as np

import bernflow as bf
from benchmarks.paper import bernoulli, cauchy, khat_table, nn_regression, repetitions, toy_regression
from benchmarks.paper.drawings import draw_architectures
from benchmarks.study.fits import SAVE, draws_of
from benchmarks.study.methods import METHODS
from benchmarks.study.page import Heading, Listing, Page, Picture
from benchmarks.study.plan import Experiment, Results, Task
from benchmarks.study.tables import Table, number
from benchmarks.targets import BENCHMARKS
from bernflow.plots import plot_transformation

MODELS = {
    "Bernoulli": ("Y ~ Ber(π), π ~ Beta(1.1, 1.1)", "analytical"),
    "Cauchy": ("Y ~ Cauchy(ξ, γ = 0.5), ξ ~ N(0, 1)", "quadrature, NUTS"),
    "Toy linear regression": ("Y ~ N(μ₀ + β₁x₁ + β₂x₂, σ)", "NUTS"),
    "Diamonds": ("Y ~ N(μ₀ + xᵀβ, σ), 26 parameters", "posteriordb"),
    "8 schools (CP)": ("Y ~ N(θ, σ), θ ~ N(μ, τ), τ ~ half-Cauchy(0, 5)", "NUTS"),
    "8 schools (NCP)": ("Y ~ N(μ + τθ̃, σ), θ̃ ~ N(0, 1), τ ~ half-Cauchy(0, 5)", "NUTS"),
    "NN regression": ("Y ~ N(μ(x), 0.2), 10 weights ~ N(0, 1)", "NUTS"),
}
PAPER_BEST = {
    "Bernoulli": "BF-VI",
    "Cauchy": "BF-VI",
    "Toy linear regression": "BF-VI",
    "Diamonds": "MF-Gaussian-VI",
    "8 schools (CP)": "BF-VI",
    "8 schools (NCP)": "BF-VI",
    "NN regression": "none in bold",
}


def transformed(scale: str) -> Task:
    """Return the fit behind Figure 1."""
    steps = {"steps": 30} if scale == "tiny" else {}
    return Task(SAVE, {"target": "cauchy", "order": 50, **steps})


def tasks(scale: str) -> list[Task]:
    """List the fits: those of the other experiments."""
    others = (bernoulli, cauchy, toy_regression, khat_table, nn_regression)
    return [transformed(scale), *(task for module in others for task in module.tasks(scale))]


def compared(scale: str, results: Results) -> dict[str, tuple[str, dict[str, float]]]:
    """Return, by experiment, what is compared and its value by method; smaller is better."""
    order = bernoulli.SETTINGS[scale]["orders"][-1]
    shown = cauchy.SETTINGS[scale]["shown"][-1]
    found: dict[str, tuple[str, dict[str, float]]] = {
        "Bernoulli": (
            f"KL, M = {order}",
            {
                m: results[bernoulli.fit(scale, m, None if m == "gaussian" else order, 0)]["kl"]
                for m in ("bernflow", "paper", "gaussian")
            },
        ),
        "Cauchy": (
            f"KL, M = {shown}",
            {
                "bernflow": results[cauchy.default(scale, shown, 0)]["kl"],
                "paper": results[cauchy.recipe(scale, shown, 0)]["kl"],
                "gaussian": results[cauchy.gaussian(scale)]["kl"],
            },
        ),
    }
    rows = {"toy-regression": ("Toy linear regression", ("bernflow", "paper", "gaussian"))}
    rows |= {target: (title, tuple(khat_table.PUBLISHED)) for target, title in khat_table.TARGETS.items()}
    for target, (title, methods) in rows.items():
        runs = {m: results.of(repetitions.repetitions(scale, target, m)) for m in methods}
        found[title] = ("KL", {m: float(np.median([r["kl"] for r in rs])) for m, rs in runs.items()})
    x = np.linspace(-10.0, 10.0, nn_regression.NUM_INPUTS)
    nuts = nn_regression.predictive_quantiles(draws_of(results[nn_regression.truth(scale)]), x)
    bands = {}
    for m in nn_regression.METHODS_SHOWN:
        draws = draws_of(results[repetitions.fit(scale, nn_regression.TARGET, m)])
        bands[m] = nn_regression.distance(nn_regression.predictive_quantiles(draws, x), nuts)
    found["NN regression"] = ("distance of the bands", bands)
    return found


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    found = compared(scale, results)
    rows = []
    for name, (model, truth) in MODELS.items():
        quantity, values = found[name]
        best = min(values, key=values.__getitem__)
        without_ours = {m: v for m, v in values.items() if m not in ("bernflow", "mixture")}
        runner_up = min(without_ours, key=without_ours.__getitem__)
        listed = "; ".join(
            f"{METHODS[m].label} {number(v)}" for m, v in sorted(values.items(), key=lambda pair: pair[1])
        )
        rows.append(
            (name, model, truth, quantity, listed, METHODS[best].label, METHODS[runner_up].label, PAPER_BEST[name])
        )
    columns = (
        "experiment",
        "model",
        "ground truth",
        "compared by",
        "methods, best first",
        "best",
        "best without ours",
        "best in the paper",
    )
    return Page(
        "Overview of the experiments",
        [
            "The paper's Table I, with the methods ordered by our measurements, its Figure 1 and its drawing of the "
            "networks. The melanoma experiment has its own figures.",
            Listing(
                "experiments",
                Table(columns, rows),
                "Models, ground truth and methods. Smaller values are better throughout.",
            ),
            Heading("The transformation"),
            Picture(
                "transformation",
                plot_transformation(_posterior(scale, results)),
                "The fitted transformation of the Cauchy experiment, M = 50 (the paper's Fig. 1). A: the map from "
                "the latent variable to the parameter; B: the latent density; C: the density of the parameter.",
            ),
            Heading("The networks"),
            Picture(
                "architectures",
                draw_architectures(),
                "Networks of the experiments (the paper's Fig. 6), and the flow itself.",
            ),
        ],
        {name: {"quantity": quantity, "values": values} for name, (quantity, values) in found.items()},
    )


def _posterior(scale: str, results: Results) -> bf.Posterior:
    benchmark = BENCHMARKS["cauchy"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior.bf"
        path.write_bytes(results[transformed(scale)]["saved"].tobytes())
        return bf.load(path, benchmark.model, *benchmark.args)


EXPERIMENT = Experiment(
    "overview",
    "Overview",
    "Table I, the transformation of Figure 1, and the networks drawn",
    tasks,
    present,
    needs={"flowjax": "peers"},
)
