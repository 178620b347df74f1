"""A mixture of flows, for posteriors with separate modes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bernflow.flows.base import AbstractDistribution


class Mixture(AbstractDistribution):
    """q(x) = sum_k w_k q_k(x); the log weights need not be normalized."""

    components: tuple[AbstractDistribution, ...]
    log_weights: Float[Array, " k"]
    dim: int = eqx.field(static=True)

    def __init__(self, components: tuple[AbstractDistribution, ...], log_weights: Float[Array, " k"]):
        self.components = components
        self.log_weights = jax.nn.log_softmax(log_weights)
        self.dim = components[0].dim

    def sample_and_log_prob(self, key: Key[Array, ""], num: int) -> tuple[Float[Array, "s p"], Float[Array, " s"]]:
        """Draw `num` points, each from a component chosen by its weight, with the log q of the whole mixture."""
        keys = jax.random.split(key, len(self.components) + 1)
        choice = jax.random.categorical(keys[0], self.log_weights, shape=(num,))
        x, own = self._of_each(lambda part, key: part.sample_and_log_prob(key, num), keys[1:])
        drawn = choice, jnp.arange(num)
        return x[drawn], self._combine(x[drawn], own[drawn], choice)

    def log_prob(self, x: Float[Array, "s p"]) -> Float[Array, " s"]:
        """Evaluate log q at given points."""
        return jax.nn.logsumexp(self.normalized_log_weights()[:, None] + self._component_log_probs(x), axis=0)

    def normalized_log_weights(self) -> Float[Array, " k"]:
        """Return the normalized log weights; during training `log_weights` are not normalized."""
        return jax.nn.log_softmax(self.log_weights)

    def stacked(self) -> AbstractDistribution:
        """Stack the components, which must have the same structure, along a leading axis."""
        return jax.tree.map(
            lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *self.components
        )

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved mixture can be rebuilt."""
        return {"kind": "mixture", "components": [part.recipe() for part in self.components]}

    def _of_each(self, function, *given):
        """Apply a function to every component and its arguments; components of equal structure are vmapped."""
        if all(_kind(part) == _kind(self.components[0]) for part in self.components[1:]):
            return eqx.filter_vmap(function)(self.stacked(), *given)
        found = [function(part, *(leaf[i] for leaf in given)) for i, part in enumerate(self.components)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)

    def _component_log_probs(self, x):
        log_probs = self._of_each(lambda part: part.log_prob(x))
        # Far from a component its inverse overflows, where its density is zero.
        return jnp.where(jnp.isnan(log_probs), -jnp.inf, log_probs)

    def _combine(self, x, own, choice):
        """Evaluate the mixture's log q at its draws, with the exact log q of the component that each was drawn from."""
        log_probs = self._component_log_probs(x)
        drawn = jnp.arange(len(self.components))[:, None] == choice[None, :]
        return jax.nn.logsumexp(self.normalized_log_weights()[:, None] + jnp.where(drawn, own, log_probs), axis=0)


def _kind(part: AbstractDistribution) -> tuple[Any, ...]:
    """Return the properties that components must share to be stacked."""
    arrays, others = eqx.partition(part, eqx.is_array)
    return jax.tree.structure(part), [leaf.shape for leaf in jax.tree.leaves(arrays)], jax.tree.leaves(others)
