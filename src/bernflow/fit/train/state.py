"""What is trained, and what the steps of a chunk saw."""

from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from bernflow.background import BackgroundJit, Effort
from bernflow.flows.base import AbstractDistribution, trained
from bernflow.placement import placed

Tree = TypeVar("Tree")


class TrainState(NamedTuple):
    """Flows in training, or one mixture of flows; every leaf has a leading axis of restarts.

    Attributes:
        flow: the stacked flows.
        weights: those of a network; None without one.
        state: of the network, such as running statistics; None without one.
        optimizer_state: of the flow, whose parameters are one vector.
        weights_optimizer_state: of the network; None without one.
        num_skipped: number of steps whose update was not finite.
    """

    flow: AbstractDistribution
    weights: PyTree
    state: PyTree
    optimizer_state: PyTree
    weights_optimizer_state: PyTree
    num_skipped: Int[Array | np.ndarray, " r"]


class Trace(NamedTuple):
    """What the steps of one chunk saw: mean and variance of the log weights, (restarts, steps)."""

    elbo: Float[Array | np.ndarray, "r c"]
    variance: Float[Array | np.ndarray, "r c"]


def begin(flows: AbstractDistribution, optimizer: optax.GradientTransformation) -> TrainState:
    """Give stacked flows a fresh optimizer state: that of one vector with all of a flow's parameters.

    A loop over few and long arrays runs and compiles far faster than one over many short ones.
    """
    num_skipped = placed(np.zeros(num_stacked(flows), np.int32))
    return TrainState(flows, None, None, initial_state(flows, optimizer), None, num_skipped)


def with_network(
    begun: TrainState, weights: PyTree, state: PyTree, optimizer: optax.GradientTransformation
) -> TrainState:
    """Return the beginning of a training of one flow and a network beside it."""
    weights, state = on_device((weights, state))
    network = jax.tree.map(lambda leaf: leaf[None], (weights, state, optimizer.init(weights)))
    return begun._replace(weights=network[0], state=network[1], weights_optimizer_state=network[2])


def on_device(tree: PyTree) -> PyTree:
    """Move the NumPy arrays of a tree to the device once, instead of with every chunk."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)


def fresh_state(flows: AbstractDistribution, optimizer: optax.GradientTransformation) -> PyTree:
    """Return the state of an optimizer before the first step."""
    return jax.vmap(lambda arrays: optimizer.init(ravel_pytree(arrays)[0]))(trained(flows)[0])


initial_state = BackgroundJit(fresh_state, Effort.LEAST)


def num_stacked(flows: AbstractDistribution) -> int:
    """Count the stacked flows."""
    return jax.tree.leaves(eqx.filter(flows, eqx.is_array))[0].shape[0]


def single(stacked: Tree) -> Tree:
    """Return the only one of a stack."""
    return jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, stacked)


def as_stack(tree: Tree) -> Tree:
    """Return a stack of one."""
    return jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, tree)
