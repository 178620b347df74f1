"""Compile what a fit will need while it looks for its start."""

import equinox as eqx
import jax
import numpy as np

from bernflow import background
from bernflow.fit.building import prepare_flows
from bernflow.fit.chunk import prepare_chunk
from bernflow.fit.settings import Settings
from bernflow.keys import as_key
from bernflow.posterior.sampling import BLOCK, density_block, log_density_block, noise_block, push_block
from bernflow.target import Target


def compile_ahead(target: Target, settings: Settings) -> None:
    """Begin to compile what builds, trains, evaluates and judges flows, the longest first; only shapes matter."""
    if background.num_cores() == 1 or not settings.family.compiled:
        return
    flows = prepare_flows(settings, target.dim)
    prepare_chunk(
        flows,
        target,
        optimizer=settings.optimizer,
        num_particles=settings.num_particles,
        use_score=settings.trains_by_score(flows),
    )
    flow = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, flows)
    block = np.zeros((BLOCK, target.dim))
    push_block.prepare(flow, block, block)
    noise_block.prepare(flow, as_key(0))
    log_density_block.prepare(target.layout, target.model, block[: density_block(target.model)])
