"""Exact marginal densities of components that come first in the flow, and the coordinates that control components."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bernflow.flows.base import AbstractFlow
from bernflow.flows.mixture import Mixture
from bernflow.keys import as_key
from bernflow.plots.components import Panel, component_draws
from bernflow.plots.densities import CENTRAL, Curve, framed
from bernflow.posterior import Posterior, sampling
from bernflow.posterior.stored import SavedLayout
from bernflow.precision import use_precision
from bernflow.target import AbstractLayout

# Grid of the noise, over a multiple of the range of one block of draws. The derivative is a difference quotient, whose
# error is then small, also in single precision.
NUM_POINTS, REACH = 801, 1.5

Component = tuple[str, tuple[int, ...]]


def exact_curve(posterior: Posterior, component: Component) -> Curve | None:
    """Return the marginal density of a component under q, or None if the flow does not know it in closed form.

    In an autoregressive flow the first coordinate depends on a single coordinate of the noise, so its marginal is the
    density of that coordinate, divided by the derivative of the map.

    Args:
        posterior: the posterior.
        component: name of a parameter, and index of its component.
    """
    q, layout = posterior.distribution, posterior.layout
    flows = q.components if isinstance(q, Mixture) else (q,)
    if isinstance(layout, SavedLayout) or not all(isinstance(flow, AbstractFlow) for flow in flows):
        return None
    first = layout.order[0]
    if component[0] != layout.names[first] or any(component[1]):
        return None
    with use_precision(posterior.precision):
        weights = np.exp(np.asarray(q.normalized_log_weights())) if isinstance(q, Mixture) else np.ones(1)
        curves = [_curve(flow, layout, component) for flow in flows]  # type: ignore[arg-type]
    known = [curve for curve in curves if curve is not None]
    if len(known) < len(curves):
        return None
    grid = np.unique(np.concatenate([places for places, _ in known]))
    parts = [np.interp(grid, places, heights, left=0.0, right=0.0) for places, heights in known]
    density = np.einsum("k,kn->n", weights, np.stack(parts))
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))])
    return framed(grid, density, np.interp(CENTRAL, mass / mass[-1], grid))


def with_exact(posterior: Posterior, panel: Panel) -> Panel:
    """Return a panel with its exact density, if the flow knows it."""
    known = panel.name in posterior.names
    return panel._replace(exact=exact_curve(posterior, (panel.name, panel.where))) if known else panel


def active_columns(layout: AbstractLayout, component: Component) -> np.ndarray:
    """Return the indices in x on which a component of theta depends."""
    name, where = component
    # Not at zero, where the derivative of some transforms vanishes.
    x = jnp.full(layout.dim, 0.5)
    return np.flatnonzero(np.asarray(jax.jit(jax.grad(lambda x: layout.constrain(x)[0][name][where]))(x)))


def base_density(
    flow: AbstractFlow, column: int, noise: Float[Array, "s p"], center: Float[Array, " p"], reach: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid of one coordinate of the base noise and its density there, normalized by quadrature."""
    low, high = float(noise[:, column].min()), float(noise[:, column].max())
    middle, half = (low + high) / 2, reach * (high - low) / 2
    grid = np.linspace(middle - half, middle + half, 20001)
    one = eqx.filter_jit(jax.vmap(lambda u: flow.base_log_prob(center.at[column].set(u))))
    log_density = np.asarray(one(jnp.asarray(grid, center.dtype)), dtype=np.float64)
    density = np.exp(log_density - log_density.max())
    return grid, density / np.trapezoid(density, grid)


def _curve(flow: AbstractFlow, layout: AbstractLayout, component: Component) -> tuple[np.ndarray, np.ndarray] | None:
    """Return increasing values of a component and its density under one flow; None if other noise changes it."""
    noise = sampling.noise_block(flow, as_key(0))
    wide, density = base_density(flow, 0, noise, noise[0], REACH)
    z = np.linspace(wide[0], wide[-1], NUM_POINTS)
    theta, again = (_values(flow, layout, component, z, np.asarray(row)) for row in (noise[0], noise[1]))
    if not np.array_equal(theta, again, equal_nan=True):
        return None
    theta = theta.astype(np.float64)
    slope = np.abs(np.gradient(theta, z))
    usable = np.isfinite(slope) & (slope > 0.0)
    theta, places = np.unique(theta[usable], return_index=True)
    return (theta, (np.interp(z, wide, density)[usable] / slope[usable])[places]) if len(theta) > 1 else None


def _values(
    flow: AbstractFlow, layout: AbstractLayout, component: Component, z: np.ndarray, others: np.ndarray
) -> np.ndarray:
    """Return a component of theta along the first coordinate of the noise, by functions that draws use too."""
    name, where = component
    points = np.tile(others, (len(z), 1))
    points[:, 0] = z
    x, _ = sampling.push(flow, points, points)
    return component_draws(sampling.constrain(layout, None, x)[name], where)
