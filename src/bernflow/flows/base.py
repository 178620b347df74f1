"""Interfaces of variational distributions: sample with log q, and evaluate log q at any point."""

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

LOG_2PI = 1.8378770664093453
Module = TypeVar("Module", bound=eqx.Module)
Value = TypeVar("Value")


class Fixed(eqx.Module, Generic[Value]):
    """A part of a flow that is not trained."""

    value: Value


def trained(flow: Any) -> tuple[Any, Any]:
    """Split a flow into its trained arrays and everything else; `equinox.combine` undoes it."""
    return eqx.partition(flow, eqx.is_inexact_array, is_leaf=lambda part: isinstance(part, Fixed))


class AbstractDistribution(eqx.Module):
    """A normalized distribution on R^p."""

    dim: eqx.AbstractVar[int]

    @abstractmethod
    def sample_and_log_prob(self, key: Key[Array, ""], num: int) -> tuple[Float[Array, "s p"], Float[Array, " s"]]:
        """Draw `num` points with their log q."""

    @abstractmethod
    def log_prob(self, x: Float[Array, "s p"]) -> Float[Array, " s"]:
        """Evaluate log q at given points."""

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """Describe the family and its sizes as JSON values, from which `families.build` rebuilds all but the arrays."""


class AbstractFlow(AbstractDistribution):
    """A distribution that pushes base noise z through a trainable bijection x = T(z).

    The bijection methods act on one sample and have the same names as in flowjax; the two methods of
    `AbstractDistribution` act on batches.
    """

    @abstractmethod
    def sample_base(self, key: Key[Array, ""], num: int) -> Float[Array, "s p"]:
        """Draw base noise."""

    @abstractmethod
    def base_log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the normalized log density of the base noise."""

    def mirror(self, z: Float[Array, "*s p"]) -> Float[Array, "*s p"] | None:
        """Return the reflection of z, which has the same density as z; None to train with independent draws."""
        return -z

    @abstractmethod
    def transform_and_log_det(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise to a parameter vector; return x and log |dx/dz|."""

    @abstractmethod
    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise; return z and log |dz/dx|."""

    def sample_and_log_prob(self, key: Key[Array, ""], num: int) -> tuple[Float[Array, "s p"], Float[Array, " s"]]:
        """Draw `num` points with their log q = log f_Z(z) - log |dx/dz| (the paper's change of variables)."""
        z = self.sample_base(key, num)
        x, log_det = jax.vmap(self.transform_and_log_det)(z)
        return x, jax.vmap(self.base_log_prob)(z) - log_det

    def log_prob(self, x: Float[Array, "s p"]) -> Float[Array, " s"]:
        """Evaluate log q at given points, through the inverse."""
        z, log_det = jax.vmap(self.inverse_and_log_det)(x)
        return jax.vmap(self.base_log_prob)(z) + log_det


class AbstractScoredFlow(AbstractFlow):
    """A flow that can evaluate the gradient of its log density without its inverse."""

    @property
    def has_loops(self) -> bool:
        """Whether its forward pass or its score contain a loop."""
        return False

    @abstractmethod
    def score(self, z: Float[Array, " p"]) -> Float[Array, " p"]:
        """Evaluate the gradient of log q with respect to x at x = T(z)."""

    def transform_and_score(
        self, z: Float[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " p"]]:
        """Return x = T(z), log |dx/dz| and the score at x; only x should be differentiated."""
        return *self.transform_and_log_det(z), jax.lax.stop_gradient(self.score(z))


def inlined(flow: AbstractFlow) -> AbstractContextManager:
    """Reduce the time to trace a flow that has a score and contains no loop.

    JAX functions that would be compiled separately are inlined; loops would be unrolled.
    """
    return jax.disable_jit() if isinstance(flow, AbstractScoredFlow) and not flow.has_loops else nullcontext()


def constant(flow: Module) -> Module:
    """Stop gradients through the arrays of a flow."""
    return jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_array(leaf) else leaf, flow)


def normal_log_prob(z: Float[Array, " p"]) -> Float[Array, ""]:
    """Evaluate the standard normal log density of a vector."""
    return -0.5 * jnp.sum(z**2) - 0.5 * z.shape[-1] * LOG_2PI
