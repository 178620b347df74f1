"""What is trained: the log density of all rows, or its estimate from a batch of them, with a network or without.

An objective says which density a step sees; whatever else there is to a step is the same for all.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from bernflow.compiled import filter_jit
from bernflow.fit.batches.rows import Batches
from bernflow.models.base import AbstractJointModel
from bernflow.objectives import AbstractScored, Scores
from bernflow.placement import replicated
from bernflow.target import AbstractLayout, Density


class AbstractObjective(eqx.Module):
    """What a step needs to know of what is trained; part of the compiled steps."""

    @abstractmethod
    def density(
        self, weights: PyTree, state: PyTree, batch: PyTree, key: Key[Array, ""] | None
    ) -> Density | AbstractScored:
        """Return the density that a step sees.

        Args:
            weights: those of a network; None without one.
            state: of the network.
            batch: rows of the step, or their indices; None where all rows are used.
            key: for the randomness of the network.
        """


class Feed(Protocol):
    """Hands out what the chunks of a training are given."""

    def chunks(self, lengths: list[int], first: int, width: int) -> Iterator[tuple[AbstractObjective, PyTree]]:
        """Yield the objective and the batches of chunks of so many steps, each filled up to `width`."""


class AllRows(AbstractObjective):
    """The log density of all rows."""

    target: Any

    def density(self, weights: PyTree, state: PyTree, batch: PyTree, key: Key[Array, ""] | None) -> Density:
        """Return the log density, the same for every step."""
        return self.target

    def chunks(self, lengths: list[int], first: int, width: int) -> Iterator[tuple[AbstractObjective, PyTree]]:
        """Yield this objective for every chunk."""
        return iter([(self, None)] * len(lengths))


class Anchor(NamedTuple):
    """The log density of all rows at one point near the mode, and its gradient there.

    Batches then estimate only how the density differs from its tangent at the anchor, which near the anchor varies
    little from batch to batch: the noise of the batches nearly vanishes (control variates as in SVRG).
    """

    x: Float[Array, " p"]
    value: Float[Array, ""]
    gradient: Float[Array, " p"]


class BatchDensity(AbstractScored):
    """The estimate of the log density on R^p from one batch, in which its rows count N / B times.

    Attributes:
        layout: of the parameters.
        model: the model without its rows.
        weights: those of a network; None without one.
        state: of the network.
        batch: the rows.
        key: for the randomness of the network; None for a fixed one.
        anchor: of the control variates; None without them.
    """

    layout: AbstractLayout
    model: AbstractJointModel
    weights: PyTree
    state: PyTree
    batch: PyTree
    key: Key[Array, ""] | None = None
    anchor: Anchor | None = None

    @property
    def dim(self) -> int:
        """Number of unconstrained dimensions p."""
        return self.layout.dim

    def log_density(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the estimate at one point, without control variates; NaN counts as -inf."""
        value, _ = self._one(x, self.weights)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    def scores(self, x: Float[Array, "s p"]) -> Scores:
        """Evaluate the estimate at some points, with its gradients there and in the weights of the network."""

        def total(x: Float[Array, "s p"], weights: PyTree) -> tuple[Array, tuple[Array, PyTree]]:
            log_p, state = jax.vmap(lambda x: self._one(x, weights))(x)
            if self.anchor is not None:
                at, exact, gradient = self.anchor
                value, slope = jax.value_and_grad(lambda x: self._one(x, weights)[0])(at)
                log_p += exact - value + (x - at) @ (gradient - slope)
            usable = jnp.isfinite(log_p)
            # The state does not depend on theta: every particle has the same.
            return jnp.sum(jnp.where(usable, log_p, 0.0)), (log_p, jax.tree.map(lambda leaf: leaf[0], state))

        (score, by_weights), (log_p, state) = jax.grad(total, argnums=(0, 1), has_aux=True)(x, self.weights)
        return Scores(log_p, score, by_weights, state)

    def _one(self, x: Float[Array, " p"], weights: PyTree) -> tuple[Float[Array, ""], PyTree]:
        theta, log_jacobian = self.layout.constrain(x)
        key = jax.random.key(0) if self.key is None else self.key
        value, state = self.model.log_density_of_batch(theta, weights, self.state, self.batch, key)
        return value + log_jacobian, state


class BatchOfRows(AbstractObjective):
    """The log density as a batch of rows estimates it.

    Attributes:
        layout: of the parameters.
        model: the model without its rows.
        anchor: of the control variates; None without them.
        rows: all rows, on the device; None where batches bring them along.
    """

    layout: AbstractLayout
    model: AbstractJointModel
    anchor: Anchor | None
    rows: PyTree = None

    def density(self, weights: PyTree, state: PyTree, batch: PyTree, key: Key[Array, ""] | None) -> BatchDensity:
        """Return the estimate from the batch of a step."""
        batch = batch if self.rows is None else jax.tree.map(lambda leaf: leaf[batch], self.rows)
        return BatchDensity(self.layout, self.model, weights, state, batch, key, self.anchor)


class BatchFeed(NamedTuple):
    """The batches of a training, one after the other."""

    objective: BatchOfRows
    batches: Batches

    def chunks(self, lengths: list[int], first: int, width: int) -> Iterator[tuple[AbstractObjective, PyTree]]:
        """Yield the objective and the batches of every chunk; copies of the last one fill it up."""
        if not lengths:
            return
        for (rows, indices), length in zip(self.batches.chunks(lengths, first), lengths, strict=True):
            if indices is not None:
                yield self._with(rows), np.pad(indices, ((0, width - length), (0, 0)), mode="edge")
                continue
            if length < width:
                rows = jax.tree.map(lambda leaf, n=width - length: jnp.concatenate([leaf, *[leaf[-1:]] * n]), rows)
            yield self._with(None), rows

    def _with(self, rows: PyTree) -> BatchOfRows:
        return BatchOfRows(self.objective.layout, self.objective.model, self.objective.anchor, rows)


@filter_jit
def _value_and_gradient(density: BatchDensity, x: Float[Array, " p"]) -> tuple[Array, Array]:
    return replicated(jax.value_and_grad(density.log_density)(x))


def find_anchor(density: BatchDensity, batches: Batches, x: Float[Array, " p"], block: int | None = None) -> Anchor:
    """Evaluate the log density of all rows, batch by batch, or block by block of other size.

    The estimate of a batch of B rows is log prior + N / B sum of its rows, so that the mean of all estimates, weighted
    by B, is the density of all rows.
    """
    value, gradient = jnp.zeros(()), jnp.zeros_like(x)
    for rows in batches.in_order(block):
        part = eqx.tree_at(lambda d: d.batch, density, jax.tree.map(lambda leaf: leaf[0], batches.take(rows[None])))
        v, g = _value_and_gradient(part, x)
        share = len(rows) / batches.num_rows
        value, gradient = value + share * v, gradient + share * g
    return Anchor(x, value, gradient)
