"""Compile what a fit will need while it looks for its start."""

import equinox as eqx
import jax
import numpy as np

from bernflow import background, preflight
from bernflow.background import Effort
from bernflow.fit.building import prepare_flows, zero_flows
from bernflow.fit.settings import Settings
from bernflow.fit.train.objective import AllRows
from bernflow.fit.train.recipe import recipe_for
from bernflow.fit.train.steps import prepare_chunk
from bernflow.fit.wide_start import finder
from bernflow.flows.base import AbstractFlow
from bernflow.keys import as_key
from bernflow.posterior import sampling
from bernflow.target import Target

# To a tolerance, more rows than this often need no training: they make a posterior normal.
MAX_ROWS_TRAINED = 10_000


def prepare_steps(flows: AbstractFlow, target: Target, settings: Settings) -> None:
    """Begin to compile the training steps of flows of these shapes."""
    prepare_chunk(flows, AllRows(target), recipe_for(settings, flows))


def compile_ahead(
    target: Target, settings: Settings, num_starts: int, start_effort: Effort, at_once: int | None = None
) -> None:
    """Begin to compile what finds so many starts, builds, trains, evaluates and judges flows; only shapes matter.

    Args:
        target: the posterior.
        settings: of the fit.
        num_starts: number of starts.
        start_effort: how hard the compiler tries for what finds them.
        at_once: how many of them are found by one call; all of them if None.
    """
    if background.num_cores() == 1:
        return
    flows = zero_flows(settings, target.dim) if settings.family.compiled else None
    # Small functions that are needed first are compiled while the steps are traced. The steps take longest, so that
    # all others come after them.
    preflight.prepare(target, num_starts)
    may_train = settings.tolerance is None or sampling.num_rows(target) <= MAX_ROWS_TRAINED
    # How many flows a mixture begins with is known only after the start.
    if flows is not None and may_train and not settings.trains_together(flows):
        prepare_steps(flows, target, settings)
    finder(target.dim).with_effort(start_effort).prepare(
        target, np.zeros((at_once or num_starts, target.dim)), as_key(0)
    )
    if flows is not None:
        prepare_flows(settings, target.dim)
        flow = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, flows)
        sampling.prepare(flow, target.layout, target.model)
