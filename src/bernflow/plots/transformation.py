"""The fitted map from base noise to a parameter (the paper's Figure 1)."""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bernflow.compiled import filter_jit
from bernflow.errors import ArgumentError
from bernflow.flows.base import AbstractFlow
from bernflow.keys import as_key
from bernflow.plots.backends import stay_static
from bernflow.plots.components import Panel, component_draws
from bernflow.plots.densities import WINDOW, estimate_density
from bernflow.plots.exact import active_columns, base_density, exact_curve
from bernflow.plots.style import ACCENT, FIT, LITERAL, MUTED, HouseFigure, house_style, verdict_title
from bernflow.posterior import Posterior
from bernflow.precision import use_precision
from bernflow.target import AbstractLayout

# The range of z as quantiles, and the quantiles that are traced through the map.
LATENT_VIEW = (0.001, 0.999)
GUIDES = (0.05, 0.5, 0.95)
NUM_CURVES = 25
NUM_POINTS = 301
NUM_DRAWS, NUM_NOISE = 40_000, 1000
# The density of z is normalized over this multiple of the range of draws.
REACH = 3.0


class Latent(NamedTuple):
    """The density of one coordinate of the base noise on a grid, and the quantiles to trace."""

    grid: np.ndarray
    density: np.ndarray
    guides: np.ndarray


class Curves(NamedTuple):
    """The map z -> theta, with the other coordinates at their center and at random draws."""

    center: np.ndarray
    others: list[np.ndarray]
    at_guides: np.ndarray


def plot_transformation(
    posterior: Posterior, name: str | None = None, index: int | tuple[int, ...] = 0, key: Any = 0
) -> Figure:
    """Plot the map from the base noise to one parameter (the paper's Figure 1).

    Panel A shows the fitted map z -> theta on the constrained scale, panel B below it the density of z, and panel C
    beside it the density of theta under q. Dotted lines trace the 5, 50 and 95 % quantiles of z through the map. With
    several parameters the map depends on the other coordinates of z: they are 0 for the thick curve and 25 random draws
    for the thin ones, and panel C shows the marginal density.

    Args:
        posterior: a posterior whose distribution is a single flow (any family except mixtures).
        name: the parameter; the first one if None.
        index: its component, as a number in C order or as a tuple of indices.
        key: integer seed or `jax.random.key` of the draws for the thin curves and panel C.

    Returns:
        The figure, not managed by pyplot: show it in a notebook or call its `savefig`.

    Example:
        >>> from bernflow.plots import plot_transformation
        >>> plot_transformation(post, "mu").savefig("map.png")
    """
    stay_static("plot_transformation")
    flow = posterior.distribution
    if not isinstance(flow, AbstractFlow):
        raise ArgumentError(
            f"plot_transformation: the distribution is a {type(flow).__name__}, which is not a single map from z to "
            "theta; expected one flow. Fit with components=1, or use plot_posterior."
        )
    name, where = _component(posterior, name, index)
    panel_key, noise_key = jax.random.split(as_key(key))
    with use_precision(posterior.precision):
        column = _own_column(posterior.layout, name, where)
        noise = flow.sample_base(noise_key, NUM_NOISE)
        center = _center(flow, noise)
        latent = _latent(flow, column, center, noise)
        others = noise[:NUM_CURVES] if flow.dim > 1 else noise[:0]
        curves = _trace(flow, posterior.layout, (name, where), column, center, others, latent)
    draws = posterior.draws(NUM_DRAWS, panel_key, weighted=False, deterministic=False)[name]
    return _draw(posterior, Panel(name, where, component_draws(draws, where)), column, latent, curves)


def _component(posterior: Posterior, name: str | None, index: int | tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Check name and index; return them as a name and a tuple of indices."""
    name = posterior.names[0] if name is None else name
    if name not in posterior.names:
        raise ArgumentError(f"name={name!r} is unknown: expected one of {', '.join(posterior.names)}.")
    shape = next(site.shape for site in posterior.layout.sites if site.name == name)
    try:
        if isinstance(index, tuple):
            where = tuple(operator.index(i) for i in index)
            inside = len(where) == len(shape) and all(0 <= i < size for i, size in zip(where, shape, strict=True))
        else:
            inside = 0 <= operator.index(index) < int(np.prod(shape))
            where = tuple(int(i) for i in np.unravel_index(operator.index(index), shape)) if inside and shape else ()
    except TypeError:
        inside = False
    if not inside:
        raise ArgumentError(
            f"index={index!r}: expected a component of {name!r}, which has the shape {shape}: an integer below "
            f"{int(np.prod(shape))} or a tuple of {len(shape)} indices."
        )
    return name, where


def _own_column(layout: AbstractLayout, name: str, where: tuple[int, ...]) -> int:
    """Return the index in x that controls a component: the last one of its parameter on which it depends.

    A scale or a probability depends on a single one. A component of a simplex or of a Cholesky factor depends on
    several, of which the last one is free given the others in the autoregressive order.
    """
    position = layout.names.index(name)
    before = layout.order[: layout.order.index(position)]
    start = sum(layout.sizes[i] for i in before)
    columns = active_columns(layout, (name, where))
    active = columns[(columns >= start) & (columns < start + layout.sizes[position])]
    if not len(active):
        raise ArgumentError(f"index={where}: this component of {name!r} is constant by its support; choose another.")
    return int(active[-1])


def _center(flow: AbstractFlow, noise: Float[Array, "s p"]) -> Float[Array, " p"]:
    """Return the values of the other coordinates: 0, or the median if the noise has no density at 0."""
    center = jnp.zeros(flow.dim)
    return center if jnp.isfinite(flow.base_log_prob(center)) else jnp.median(noise, axis=0)


def _latent(flow: AbstractFlow, column: int, center: Float[Array, " p"], noise: Float[Array, "s p"]) -> Latent:
    """Evaluate the density of one coordinate of z, by quadrature; the coordinates are independent."""
    wide, density = base_density(flow, column, noise, center, REACH)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(wide))])
    low, high, *guides = np.interp((*LATENT_VIEW, *GUIDES), mass / mass[-1], wide)
    grid = np.linspace(low, high, NUM_POINTS)
    return Latent(grid, np.interp(grid, wide, density), np.array(guides))


@filter_jit
def _values(
    flow: AbstractFlow,
    layout: AbstractLayout,
    component: tuple[str, tuple[int, ...]],
    column: int,
    others: Float[Array, " p"],
    z: Float[Array, " s"],
) -> Float[Array, " s"]:
    """Map values of one coordinate of z to a component of theta, with the other coordinates fixed."""
    name, where = component

    def one(u: Float[Array, ""]) -> Float[Array, ""]:
        x, _ = flow.transform_and_log_det(others.at[column].set(u))
        return layout.constrain(x)[0][name][where]

    return jax.vmap(one)(z)


def _trace(flow, layout, component, column, center, others, latent: Latent) -> Curves:
    z = jnp.asarray(np.concatenate([latent.grid, latent.guides]), center.dtype)

    def curve(held: Float[Array, " p"]) -> np.ndarray:
        return np.asarray(_values(flow, layout, component, column, held, z), dtype=np.float64)

    whole = curve(center)
    return Curves(whole[:NUM_POINTS], [curve(held)[:NUM_POINTS] for held in others], whole[NUM_POINTS:])


def _theta_density(posterior: Posterior, panel: Panel) -> tuple[np.ndarray, np.ndarray]:
    """Return the density of theta: exact if the flow knows it, an estimate from draws otherwise."""
    curve = exact_curve(posterior, (panel.name, panel.where)) or estimate_density(panel.values)
    return curve.on(curve.low, curve.high)


def _draw(posterior: Posterior, panel: Panel, column: int, latent: Latent, curves: Curves) -> Figure:
    theta, theta_density = _theta_density(posterior, panel)
    with house_style():
        figure = HouseFigure(figsize=(5.2, 4.6), layout="constrained")
        grid = figure.add_gridspec(2, 2, width_ratios=(2.4, 1), height_ratios=(2.4, 1))
        upper = figure.add_subplot(grid[0, 0])
        lower = figure.add_subplot(grid[1, 0], sharex=upper)
        side = figure.add_subplot(grid[0, 1], sharey=upper)
        for curve in curves.others:
            upper.plot(latent.grid, curve, color=FIT, alpha=0.22, linewidth=0.7)
        upper.plot(latent.grid, curves.center, color=FIT, linewidth=2.0)
        lower.fill_between(latent.grid, latent.density, color=MUTED, alpha=0.16, linewidth=0)
        lower.plot(latent.grid, latent.density, color=MUTED, linewidth=1.6)
        side.fill_betweenx(theta, theta_density, color=FIT, alpha=0.16, linewidth=0)
        side.plot(theta_density, theta, color=FIT, linewidth=1.6)
        upper.set_xlim(latent.grid[0], latent.grid[-1])
        upper.set_ylim(*_theta_limits(panel.values, latent, curves))
        lower.set_ylim(0.0, 1.18 * latent.density.max())
        side.set_xlim(0.0, 1.12 * theta_density.max())
        _draw_guides((upper, lower, side), latent, curves.at_guides)
        _label((upper, lower, side), panel.label, "$z$" if posterior.layout.dim == 1 else f"$z_{{{column + 1}}}$")
        # All curves of the first coordinate are equal, because it depends on no other.
        moved = any(not np.allclose(curve, curves.center) for curve in curves.others)
        _legend(figure.add_subplot(grid[1, 1]), len(curves.others) if moved else 0)
        title, color = verdict_title(posterior.diagnostics)
        figure.set_heading(title, color)
    return figure


def _theta_limits(values: np.ndarray, latent: Latent, curves: Curves) -> tuple[float, float]:
    """Return a range that includes the marginal density and the thick curve, but not the ends of the thin ones."""
    bulk = curves.center[(latent.grid >= latent.guides[0]) & (latent.grid <= latent.guides[-1])]
    ends = curves.center if not curves.others else bulk
    low, high = np.quantile(values, WINDOW)
    low, high = min(low, ends.min()), max(high, ends.max())
    margin = 0.04 * (high - low) or 1e-3 * max(abs(low), 1.0)
    return low - margin, high + margin


def _draw_guides(axes: tuple[Axes, Axes, Axes], latent: Latent, at_guides: np.ndarray) -> None:
    """Trace quantiles of z to the curve, and from there to the density of theta."""
    upper, lower, side = axes
    look: dict[str, Any] = {"color": ACCENT, "linewidth": 0.9, "linestyle": (0, (1, 1.6))}
    bottom, right = upper.get_ylim()[0], latent.grid[-1]
    for z, theta in zip(latent.guides, at_guides, strict=True):
        lower.plot([z, z], [0.0, lower.get_ylim()[1]], **look)
        upper.plot([z, z, right], [bottom, theta, theta], **look)
        side.plot([0.0, side.get_xlim()[1]], [theta, theta], **look)
    upper.plot(latent.guides, at_guides, "o", color="white", markeredgecolor=ACCENT, markersize=4.5, zorder=5)


def _label(axes: tuple[Axes, Axes, Axes], theta: str, z: str) -> None:
    upper, lower, side = axes
    upper.set_ylabel(theta, **LITERAL)
    upper.tick_params(labelbottom=False)
    upper.yaxis.set_major_locator(MaxNLocator(6))
    lower.set_xlabel(z)
    lower.set_ylabel(f"$f_Z(${z}$)$")
    lower.set_yticks([])
    side.tick_params(labelleft=False)
    side.set_xticks([])
    name = theta.replace("$", r"\$")  # this label is a formula, but the name is not
    side.set_xlabel(f"$q(${name}$)$")
    for letter, panel in zip("ABC", (upper, lower, side), strict=True):
        panel.set_title(letter, loc="left", fontweight="bold", fontsize=11, pad=4)


def _legend(axes: Axes, num_others: int) -> None:
    """Add the legend in the empty corner."""
    axes.axis("off")
    handles = [Line2D([], [], color=ACCENT, linewidth=0.9, linestyle=(0, (1, 1.6)), label="5, 50, 95 % of $z$")]
    if num_others:
        handles = [
            Line2D([], [], color=FIT, linewidth=2.0, label="other $z$ at 0"),
            Line2D([], [], color=FIT, linewidth=0.7, alpha=0.5, label=f"{num_others} draws of them"),
            *handles,
        ]
    axes.legend(handles=handles, loc="center left", fontsize=8, handlelength=1.6, borderpad=0.0, borderaxespad=0.0)
