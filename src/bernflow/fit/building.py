"""Flows at their starts, several at once."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from bernflow.background import BackgroundJit, Effort, zeros_of
from bernflow.fit.settings import Settings
from bernflow.fit.start import Gaussian
from bernflow.flows.base import AbstractFlow
from bernflow.flows.factors import unit_factor
from bernflow.flows.families import Spec
from bernflow.keys import as_key, grid, quick
from bernflow.placement import fetched


def flows_at(
    settings: Settings, dim: int, starts: Gaussian, chosen: Int[np.ndarray, " r"], key: Key[Array, ""]
) -> AbstractFlow:
    """Return stacked flows, each at a chosen start."""
    build, spec, shape = settings.family.build, settings.spec(dim), (len(chosen),)
    loc, factor, _ = starts.at(chosen)
    if settings.family.compiled:
        return fetched(_build(build, spec, grid(quick(key), shape), loc, factor))
    return fetched(_build_one_by_one(build, spec, grid(key, shape), loc, factor))


def prepare_flows(settings: Settings, dim: int) -> None:
    """Begin to compile `flows_at` in the background."""
    _build.prepare(*_zero_arguments(settings, dim))


def zero_flows(settings: Settings, dim: int) -> AbstractFlow:
    """Return flows of the shapes that `flows_at` will return, with zeros in place of all numbers."""
    return zeros_of(_stacked, *_zero_arguments(settings, dim))


def _zero_arguments(settings: Settings, dim: int) -> tuple[Any, ...]:
    keys = grid(quick(as_key(0)), (settings.restarts,))
    factor = jax.tree.map(lambda leaf: np.zeros((settings.restarts, *leaf.shape)), unit_factor(dim))
    return settings.family.build, settings.spec(dim), keys, np.zeros((settings.restarts, dim)), factor


def _stacked(
    build: Callable[..., AbstractFlow],
    spec: Spec,
    keys: Key[Array, " r"],
    loc: Float[Array, "r p"],
    factor: Any,
) -> AbstractFlow:
    return eqx.filter_vmap(lambda key, loc, factor: build(key, spec, loc, factor))(keys, loc, factor)


_build = BackgroundJit(_stacked, Effort.LEAST)


def _build_one_by_one(build, spec, keys, loc, factor):
    factors = [jax.tree.map(lambda leaf, i=i: leaf[i], factor) for i in range(len(loc))]
    flows = [build(key, spec, *start) for key, *start in zip(keys, loc, factors, strict=True)]
    return jax.tree.map(lambda first, *others: jnp.stack([first, *others]) if eqx.is_array(first) else first, *flows)
