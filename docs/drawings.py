"""Make the drawings of the explanation from the code that they explain.

`python docs/drawings.py` writes docs/assets/*.svg.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bernflow.flows.affine import TriangularAffine
from bernflow.flows.autoregressive import FIRST_INCREMENT, BernsteinFlow
from bernflow.flows.bernstein import centered_polynomial, centering, inverse_increments
from bernflow.flows.noise import NOISES
from bernflow.flows.tails import MAX_LOG_WEIGHT, POWER_UNIT, apply_tails
from bernflow.plots.style import ACCENT, FIT, MUTED, house_style

ASSETS = Path(__file__).parent / "assets"
HALF_WIDTH = NOISES["normal"].half_width
# Increments of a polynomial of order 20 that grow from left to right: the noise becomes skewed.
INCREMENTS = 0.4 * np.exp(np.linspace(-1.3, 1.3, 20))


def polynomial() -> Figure:
    """Draw an increasing Bernstein polynomial as a map, with the density before and after it."""
    z = jnp.linspace(-5.0, 5.0, 241)
    t = (z + HALF_WIDTH) / (2 * HALF_WIDTH)
    y, slope = centered_polynomial(jnp.asarray(INCREMENTS), t)
    density = jnp.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    new_density = density / (slope / (2 * HALF_WIDTH))
    coefficients = INCREMENTS @ centering(len(INCREMENTS))
    with house_style():
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        grid = figure.subplots(2, 2, width_ratios=(3, 1.1), height_ratios=(3, 1.1), sharex="col", sharey="row")
        (map_axes, right), (below, empty) = grid
        map_axes.axvspan(-HALF_WIDTH, HALF_WIDTH, color="#F1F4F7", linewidth=0)
        map_axes.plot(z, y, color=FIT, linewidth=2)
        nodes = np.linspace(-HALF_WIDTH, HALF_WIDTH, len(coefficients))
        map_axes.plot(nodes, coefficients, "o", color=ACCENT, markersize=3.5, label="coefficients, increasing")
        map_axes.legend(loc="upper left", fontsize=8.5)
        map_axes.set_title("the map: a polynomial inside, straight lines outside", loc="left", fontsize=9.5)
        map_axes.set_ylabel("e")
        below.fill_between(z, density, color=MUTED, alpha=0.35, linewidth=0)
        below.set(xlabel="noise z", yticks=[])
        right.fill_betweenx(y, new_density, color=FIT, alpha=0.35, linewidth=0)
        right.set(xticks=[])
        right.set_title("density of e", loc="left", fontsize=9.5)
        empty.axis("off")
    return figure


def layers() -> Figure:
    """Draw a grid and two circles of the noise after each part of a flow of two dimensions."""
    eye = jnp.eye(2)
    start = BernsteinFlow(jax.random.key(0), TriangularAffine(jnp.zeros(2), eye), order=len(INCREMENTS), width=4)
    raw = start.bias.at[0, FIRST_INCREMENT:].set(jnp.asarray(inverse_increments(INCREMENTS)))
    bent = eqx.tree_at(lambda flow: flow.bias, start, raw)
    lower = jnp.zeros((2, 2)).at[1, 0].set(0.35)
    conditioned = eqx.tree_at(lambda flow: flow.skip.log_scale, bent, lower)
    outer = TriangularAffine(jnp.array([1.0, 0.5]), jnp.array([[1.0, 0.0], [0.8, 1.0]]))
    whole = eqx.tree_at(lambda flow: flow.outer, conditioned, outer)
    steps, line = np.linspace(-2.5, 2.5, 11), np.linspace(-2.5, 2.5, 61)
    across = [np.stack([line, np.full_like(line, at)], -1) for at in steps]
    along = [np.stack([np.full_like(line, at), line], -1) for at in steps]
    angle = np.linspace(0, 2 * np.pi, 91)
    # Circles that hold 50 and 90 % of the noise.
    circles = [np.sqrt(-2 * np.log(1 - p)) * np.stack([np.cos(angle), np.sin(angle)], -1) for p in (0.5, 0.9)]
    titles = (
        "noise",
        "1  a polynomial per dimension",
        "2  scales that depend on\nearlier dimensions",
        "3  an affine map around all",
    )
    with house_style():
        figure = Figure(figsize=(8.6, 2.7), layout="constrained")
        for axes, flow, title in zip(figure.subplots(1, 4), (start, bent, conditioned, whole), titles, strict=True):
            push = jax.jit(jax.vmap(lambda z, flow=flow: flow.transform_and_log_det(z)[0]))
            for curves, color, width in ((across, MUTED, 0.5), (along, MUTED, 0.5), (circles, FIT, 1.8)):
                for x in map(push, curves):
                    axes.plot(*x.T, color=color, linewidth=width)
            axes.set_title(title, loc="left", fontsize=8.5)
            axes.set(xticks=[], yticks=[], xlabel="dimension 1")
        figure.axes[0].set_ylabel("dimension 2")
    return figure


def tails() -> Figure:
    """Draw normal noise with learned tails: the map, and the log density that it leads to."""
    u = jnp.linspace(-6.0, 6.0, 241)
    with house_style():
        figure = Figure(figsize=(7.6, 3.1), layout="constrained")
        left, right = figure.subplots(1, 2)
        for weight, power, color in ((0.6, 0.0, ACCENT), (1.0, 0.0, MUTED), (2.0, 0.0, FIT), (1.0, 0.25, "#009E73")):
            raw = MAX_LOG_WEIGHT * np.arctanh(np.log(weight) / MAX_LOG_WEIGHT)
            bent = apply_tails(jnp.array([0.0, raw, 0.0, power / POWER_UNIT]), u)  # the left side stays normal
            label = f"d = {weight:g}, h = {power:g}" + (" (normal)" if (weight, power) == (1, 0) else "")
            left.plot(u, bent.value, color=color, label=label)
            right.plot(bent.value, -0.5 * u**2 - 0.5 * np.log(2 * np.pi) - bent.log_slope, color=color)
        left.set(xlabel="u", ylabel="H(u)", ylim=(-6, 20), xlim=(-4, 5))
        left.legend(loc="upper left", fontsize=8.5)
        right.set(xlabel="value after the map", ylabel="log density", ylim=(-14, 0), xlim=(-6, 25))
    return figure


# Packages and what they know, in two rows: each imports only from those before it.
PACKAGES = (
    (
        ("models", "NumPyro, PyMC,\nStan, bf.Model"),
        ("target", "supports to R^p,\nJacobians"),
        ("flows", "z to x,\nlog q"),
        ("objectives", "ELBO,\ngradients"),
        ("diagnostics", "weights to\na verdict"),
        ("posterior", "names, draws,\nfiles, NUTS"),
        ("fit", "start, loop,\nstopping"),
    ),
    (
        ("semistructured\nnumpyro", ""),
        ("calibrate\ncompare", ""),
        ("plots", "figures"),
        ("report", "one page"),
        ("runs", "folders of fits"),
        ("cli", "bernflow ..."),
    ),
)
# What the user writes, what no user sees, and what the user gets.
GROUPS = {"models": ACCENT, **dict.fromkeys(("target", "flows", "objectives"), MUTED)}


def architecture() -> Figure:
    """Draw the packages as boxes, in the order in which they may import each other."""
    width, height, gap = 1.0, 0.62, 0.22
    with house_style():
        figure = Figure(figsize=(9.6, 2.6))
        axes = figure.add_axes((0, 0, 1, 1))
        for row, boxes in enumerate(PACKAGES):
            for column, (name, about) in enumerate(boxes):
                x, y = column * (width + gap), -row * (height + 0.4)
                color = GROUPS.get(name, FIT)
                box = Rectangle((x, y), width, height, facecolor=f"{color}1C", edgecolor=color, linewidth=1.2)
                axes.add_patch(box)
                middle = x + width / 2
                axes.text(
                    middle,
                    y + height * (0.76 if about else 0.5),
                    name,
                    ha="center",
                    va="center",
                    fontsize=9,
                    weight="bold",
                )
                axes.text(middle, y + height * 0.32, about, ha="center", va="center", fontsize=8.5, color="#333333")
                if column:
                    _arrow(axes, (x - gap, y + height / 2), (x, y + height / 2))
        # From the end of the first row to the beginning of the second.
        end, turn = 7 * (width + gap) - gap - width / 2, -0.2
        axes.plot([end, end, width / 2, width / 2], [0, turn, turn, turn], color="#333333", linewidth=1)
        _arrow(axes, (width / 2, turn), (width / 2, turn - 0.2))
        axes.set(xlim=(-0.05, 7 * (width + gap) - gap + 0.05), ylim=(-height - 0.45, height + 0.05))
        axes.axis("off")
    return figure


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": "#333333", "shrinkA": 0, "shrinkB": 0, "linewidth": 1}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


DRAWINGS: dict[str, Callable[[], Figure]] = {
    "polynomial": polynomial,
    "layers": layers,
    "tails": tails,
    "architecture": architecture,
}


def main(folder: Path = ASSETS) -> None:
    """Write every drawing; the same code gives the same files."""
    # Text stays text, and nothing in a file depends on the time.
    with mpl.rc_context({"svg.hashsalt": "bernflow", "svg.fonttype": "none", "font.family": "sans-serif"}):
        for name, draw in DRAWINGS.items():
            figure = draw()
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
