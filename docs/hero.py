"""Make the picture at the top of the README: a posterior that Gaussian approximations miss.

`python docs/hero.py` writes docs/assets/plots/hero.png.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal
from numpyro.optim import Adam

import bernflow as bf
from bernflow.cli.demo import EFFECTS, ERRORS
from bernflow.plots.densities import estimate_density
from bernflow.plots.regions import highest_density
from bernflow.plots.style import ACCENT, FIT, REFERENCE, house_style

FOLDER = Path(__file__).parent / "assets" / "plots"
GUIDES = {"Mean-field Gaussian": AutoDiagonalNormal, "Full-rank Gaussian": AutoMultivariateNormal}
NUM_STEPS, RATE, NUM_DRAWS, NUM_ELBO, NUM_POINTS = 10_000, 0.01, 40_000, 20_000, 1500
DASHES = (0, (4, 2))

Draws = Mapping[str, np.ndarray]


def centered(y: np.ndarray, sigma: np.ndarray) -> None:
    """Eight schools in the centered form, whose posterior is a funnel: effects are similar where tau is small."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def fit_guide(guide_of: type) -> tuple[Draws, float]:
    """Fit a Gaussian by SVI; return its draws and its ELBO."""
    guide = guide_of(centered)
    svi = SVI(centered, guide, Adam(RATE), Trace_ELBO(num_particles=10))
    found = svi.run(jax.random.key(0), NUM_STEPS, EFFECTS, ERRORS, progress_bar=False)
    draws = guide.sample_posterior(jax.random.key(1), found.params, sample_shape=(NUM_DRAWS,))
    loss = Trace_ELBO(num_particles=NUM_ELBO).loss(jax.random.key(2), found.params, centered, guide, EFFECTS, ERRORS)
    return {name: np.asarray(value) for name, value in draws.items()}, -float(loss)


def coordinates(draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """Return the two coordinates that are drawn: log tau and the effect of the first school."""
    return np.log(np.asarray(draws["tau"], np.float64)), np.asarray(draws["theta"], np.float64)[:, 0]


def draw(methods: Mapping[str, tuple[Draws, float]], exact: Draws) -> Figure:
    """Draw one panel per method, with its divergence from the posterior, over the contours of NUTS."""
    with house_style():
        figure = Figure(figsize=(10.4, 3.7), layout="constrained")
        panels = figure.subplots(1, len(methods), sharex=True, sharey=True)
        truth = coordinates(exact)
        for axes, (name, (draws, divergence)) in zip(panels, methods.items(), strict=True):
            color = FIT if name == "bernflow" else ACCENT
            _draw_contours(axes, coordinates(draws), color, "-")
            _draw_contours(axes, truth, REFERENCE, DASHES)
            axes.set_title(name, fontweight="bold", color=color, fontsize=12)
            text = f"KL divergence {divergence:.2g} nats"
            axes.text(0.03, 0.96, text, transform=axes.transAxes, va="top", fontsize=10, color=color)
            axes.set_xlabel("log tau, spread between schools")
        views = [estimate_density(values) for values in truth]
        panels[0].set(xlim=(views[0].low, views[0].high), ylim=(views[1].low, views[1].high))
        panels[0].set_ylabel("theta[0], effect in school A")
        handles = [
            Line2D([], [], color=REFERENCE, linestyle=DASHES, label="NUTS"),
            Line2D([], [], color="#6B6B6B", label="approximation: 50 and 90 % regions and draws"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=10)
    return figure


def _draw_contours(axes: Axes, points: tuple[np.ndarray, np.ndarray], color: str, linestyle: object) -> None:
    if linestyle == "-":
        axes.scatter(*(values[:NUM_POINTS] for values in points), s=3, color=color, alpha=0.25, linewidths=0)
    region = highest_density(*points)
    if region is not None:
        style = {"colors": color, "linewidths": 1.5, "linestyles": [linestyle]}
        axes.contour(region.x, region.y, region.density, levels=region.levels, **style)


def main(folder: Path = FOLDER) -> None:
    """Fit, and draw."""
    post = bf.fit(centered, EFFECTS, ERRORS, progress=False)
    chains = post.to_nuts(num=8000, progress=False).draws()
    exact = {name: values.reshape(-1, *values.shape[2:]) for name, values in chains.items()}
    evidence = post.diagnostics.log_evidence
    methods = {}
    for name, guide_of in GUIDES.items():
        draws, elbo = fit_guide(guide_of)
        methods[name] = (draws, evidence - elbo)
    methods["bernflow"] = (post.draws(NUM_DRAWS, weighted=False), evidence - post.diagnostics.elbo)
    folder.mkdir(parents=True, exist_ok=True)
    draw(methods, exact).savefig(folder / "hero.png", dpi=150, facecolor="white")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
