"""Make the pictures of the how-to page on figures: one fit of eight schools, drawn in every way.

`python docs/figures.py` writes docs/assets/plots/*.png.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

import bernflow as bf
from bernflow.experiments.targets import BENCHMARKS

FOLDER = Path(__file__).parent / "assets" / "plots"
SHOWN = ["mu", "tau", "theta[0]", "theta[1]"]
# By name: how the page calls them with the posterior, exact draws of NUTS and a comparison of the two.
FIGURES: dict[str, Callable[..., Figure]] = {
    "posterior": lambda post, exact, both: post.plot(var_names=SHOWN, reference=exact, num=20_000),
    "pairs": lambda post, exact, both: bf.plots.plot_pairs(post, SHOWN, reference=exact),
    "transformation": lambda post, exact, both: bf.plots.plot_transformation(post, "tau"),
    "convergence": lambda post, exact, both: bf.plots.plot_convergence(post),
    "weights": lambda post, exact, both: bf.plots.plot_weights(post),
    "predictive": lambda post, exact, both: bf.plots.plot_predictive(post),
    "comparison": lambda post, exact, both: both.plot(),
}


def main(folder: Path = FOLDER) -> None:
    """Fit once and draw everything."""
    benchmark = BENCHMARKS["eight-schools-noncentered"]
    post = bf.fit(benchmark.model, *benchmark.args, progress=False)
    run = post.to_nuts(num=4000, progress=False)
    exact = {name: draws.reshape(-1, *draws.shape[2:]) for name, draws in run.draws().items()}
    both = bf.compare({"flow": post, "NUTS": run})
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        draw(post, exact, both).savefig(folder / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
