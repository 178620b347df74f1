"""Make the pictures of the how-to pages: one fit of eight schools, drawn in every way, and a calibration.

`python docs/figures.py` writes docs/assets/plots/*.png.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.figure import Figure

import bernflow as bf
from bernflow.cli.demo import EFFECTS, ERRORS, eight_schools

FOLDER = Path(__file__).parent / "assets" / "plots"
SHOWN = ["mu", "tau", "theta[0]", "theta[1]"]
# By name: how the page calls them with the posterior, exact draws of NUTS and a comparison of the two.
FIGURES: dict[str, Callable[..., Figure]] = {
    "posterior": lambda post, exact, both: post.plot(var_names=SHOWN, reference=exact, num=40_000),
    "pairs": lambda post, exact, both: bf.plots.plot_pairs(post, SHOWN, reference=exact),
    "transformation": lambda post, exact, both: bf.plots.plot_transformation(post, "tau"),
    "convergence": lambda post, exact, both: bf.plots.plot_convergence(post),
    "weights": lambda post, exact, both: bf.plots.plot_weights(post),
    "predictive": lambda post, exact, both: bf.plots.plot_predictive(post),
    "comparison": lambda post, exact, both: both.plot(),
    "structure": lambda post, exact, both: fit_groups().plot("structure"),
}


def line(x: np.ndarray, y: np.ndarray) -> None:
    """Declare the regression that the page on calibration simulates."""
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(slope * x, sigma), obs=y)


def groups(group: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Declare the regression with varying intercepts and slopes whose structure is shown."""
    mean = numpyro.sample("mean", dist.Normal(0, 2).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    b = numpyro.sample("b", dist.Normal(mean, scale).expand([50, 2]).to_event(2))
    numpyro.sample("y", dist.Normal(b[group, 0] + b[group, 1] * x, sigma), obs=y)


def fit_groups() -> bf.Posterior:
    """Fit 50 groups of simulated data."""
    rng = np.random.default_rng(1)
    group, x = np.repeat(np.arange(50), 8), rng.normal(size=400)
    b = rng.normal(1.0, 0.5, size=(50, 2))
    y = b[group, 0] + b[group, 1] * x + 0.5 * rng.normal(size=400)
    return bf.fit(groups, group, x, y, progress=False)


def references(post: bf.Posterior, run: Any) -> tuple[dict[str, np.ndarray], bf.Comparison]:
    """Return the draws of NUTS, and a comparison of both by the names that the model gives to the effects."""
    exact = {name: draws.reshape(-1, *draws.shape[2:]) for name, draws in run.draws().items()}
    trees = {"flow": post.to_arviz(), "NUTS": run.to_tree()}
    return exact, bf.compare(trees, reference="NUTS", var_names=["mu", "tau", "theta"], loo=False)


def main(folder: Path = FOLDER) -> None:
    """Fit once and draw everything."""
    post = bf.fit(eight_schools, EFFECTS, ERRORS, progress=False)
    run = post.to_nuts(num=4000, progress=False)
    exact, both = references(post, run)
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        draw(post, exact, both).savefig(folder / f"{name}.png", dpi=110)
    found = bf.calibrate(line, np.linspace(-1, 1, 12), np.zeros(12), num_simulations=128, steps=500, progress=False)
    found.plot().savefig(folder / "calibration.png", dpi=110)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
