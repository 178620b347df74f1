"""Which views of its globals a model takes: read off the map from R^p to its parameters, at a few points.

Only the map is asked, so that this is the same for all front ends.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from bernflow.background import Effort, background_jit
from bernflow.flows.views import View
from bernflow.models.base import Theta
from bernflow.target import AbstractLayout

# An unconstrained value at which parameters are at their bounds, and random points between.
FAR, NUM_CHECKS = 40.0, 4
# A view must agree with the map to this share of its values.
AGREES = 1e-4
# Ordered vectors and simplexes of more parts than this are not looked at.
MAX_PARTS = 32


def views_of(layout: AbstractLayout, leaders: Sequence[int]) -> tuple[View, ...]:
    """Return the views of the globals that their supports suggest."""
    place = {int(dimension): number for number, dimension in enumerate(leaders)}
    views: list[View] = []
    for start, x, theta in _sites(layout):
        own = {member - start: number for member, number in place.items() if 0 <= member - start < x.shape[1]}
        with np.errstate(all="ignore"):
            found = [view for view in _views_of_site(x, theta, list(own)) if set(view.members) <= set(own)]
        views += [dataclasses.replace(view, members=tuple(own[m] for m in view.members)) for view in found]
    return tuple(views)


def on_intervals(layout: AbstractLayout) -> Bool[np.ndarray, " p"]:
    """Tell which parameters lie on intervals, each by itself."""
    found = np.zeros(layout.dim, bool)
    for start, x, theta in _sites(layout):
        flat = theta.reshape(len(theta), -1)
        if flat.shape == x.shape:
            with np.errstate(all="ignore"):
                found[start : start + x.shape[1]] = _is_on_interval(x, flat)
    return found


def _sites(layout: AbstractLayout) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the first dimension of every site, and its values at the bounds and between, in R^p and constrained."""
    between = np.random.default_rng(0).uniform(-2.0, 2.0, (NUM_CHECKS, layout.dim))
    points = np.concatenate([np.array([[-FAR], [FAR]]) * np.ones(layout.dim), between])
    theta = jax.tree.map(np.asarray, _constrain(layout, points))
    start = 0
    for i in layout.order:
        yield start, points[:, start : start + layout.sizes[i]], theta[layout.sites[i].name]
        start += layout.sizes[i]


@background_jit(Effort.LEAST)
def _constrain(layout: AbstractLayout, x: Float[Array, "k p"]) -> Theta:
    return jax.vmap(lambda x: layout.constrain(x)[0])(x)


def _views_of_site(
    x: Float[np.ndarray, "k m"], theta: Float[np.ndarray, "k ..."], wanted: Sequence[int]
) -> Iterator[View]:
    """Yield the views of some members of a site; members of a view are counted within the site."""
    flat = theta.reshape(len(theta), -1)
    for member in wanted:
        found = _elementwise(x, flat[:, member], member) if flat.shape == x.shape else []
        yield from found or [View("identity", (member,))]
    if wanted and theta.ndim > 1:
        yield from _of_parts(x, theta)


def _elementwise(x: Float[np.ndarray, "k m"], theta: Float[np.ndarray, " k"], member: int) -> list[View]:
    """Return the views of a parameter that depends on one value alone; none: the value as it is."""
    low, high = (float(bound) for bound in theta[:2])
    low = 0.0 if abs(low) < 1e-10 * abs(theta[2]) else low
    own = (member,)
    half, softplus = View("half", own), View("log-softplus", own)
    if _is_on_interval(x[:, member], theta):
        return [half] if low < 0.0 else [half, View("log-interval", own, low, high)]
    if low > 0.0 and _agree(x[:, member], np.log(theta - low)):
        return [View("identity", own), View("log-above", own, low)]
    return [softplus] if _agree(softplus(x, np), np.log(theta)) else []


def _is_on_interval(x: Float[np.ndarray, "k ..."], theta: Float[np.ndarray, "k ..."]) -> Bool[np.ndarray, " ..."]:
    """Tell of values that are at their bounds in the first two rows whether they depend on x as on a logit."""
    low, high = theta[:2]
    agree = _agree(0.5 * x, np.arctanh((2.0 * theta - low - high) / (high - low)))
    return np.isfinite(high - low) & agree


def _of_parts(x: Float[np.ndarray, "k m"], theta: Float[np.ndarray, "k ..."]) -> Iterator[View]:
    """Yield the views of vectors whose parts depend on several values: ordered ones, and simplexes."""
    num = theta.shape[-1]
    rows = theta.reshape(len(theta), -1, num)
    each = x.shape[1] // rows.shape[1]
    if num > MAX_PARTS or each not in (num, num - 1):
        return
    for row, part in np.ndindex(rows.shape[1:]):
        members = tuple(int(row * each + i) for i in range(min(part + 1, each)))
        if each < num:
            views = [View("log-simplex" if part < each else "log-simplex-last", members, each)]
        else:
            views = [View("ordered", members), View("log-sum", members)] if part else []
        value = rows[:, row, part]
        for view in views:
            at = view(x, np)
            if _agree(at, np.log(value)) or (view.kind == "ordered" and _agree(at, value)):
                yield view
                break


def _agree(left: Float[np.ndarray, "k ..."], right: Float[np.ndarray, "k ..."]) -> Bool[np.ndarray, " ..."]:
    """Tell whether two functions are the same between the bounds, of which the first two values are taken."""
    left, right = left[2:], right[2:]
    return np.all(np.abs(left - right) <= AGREES * (1.0 + np.abs(left)), axis=0)
