"""A flow as a NumPyro transform."""

from typing import Any

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from bernflow.compiled import jit
from bernflow.flows.base import AbstractFlow


class FlowTransform(Transform):
    """Map base noise to unconstrained parameters; leading axes are batches.

    Args:
        flow: the flow; its base noise is that of the transformed distribution.
        path_gradient: differentiate log q at a draw only through the draw, with the flow's own score. Values and
            expected gradients do not change: the omitted term has mean zero, but contributes noise even if flow and
            target agree. Needs a flow with a score, and a bound that is linear in log q.

    Example:
        >>> import jax
        >>> from bernflow.numpyro import FlowTransform
        >>> transform = FlowTransform(post.distribution)
        >>> with jax.enable_x64(True):  # the precision of the flow
        ...     transform(np.zeros((5, 1))).shape
        (5, 1)
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, flow: AbstractFlow, *, path_gradient: bool = False):
        self.flow = flow
        self.path_gradient = path_gradient

    def __call__(self, x: Float[Array, "*batch p"]) -> Float[Array, "*batch p"]:
        """Map noise to parameters."""
        return _forward(self.flow, x)[0]

    def call_with_intermediates(self, x: Float[Array, "*batch p"]) -> tuple[Array, Array]:
        """Map noise to parameters and return the log-determinant, so that the density of a draw needs no inverse."""
        y, log_det = _forward(self.flow, x)
        if self.path_gradient:
            log_det = stop_gradient(log_det) - jnp.sum(_score(self.flow, x) * (y - stop_gradient(y)), -1)
        return y, log_det

    def _inverse(self, y: Float[Array, "*batch p"]) -> Float[Array, "*batch p"]:
        return _backward(self.flow, y)

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Array | None = None) -> Float[Array, "*batch"]:
        """Evaluate log |dy/dx| at the noise x."""
        return _forward(self.flow, x)[1] if intermediates is None else intermediates

    def tree_flatten(self):
        """Return the children and auxiliary data of the pytree."""
        return (self.flow,), (("flow",), {"path_gradient": self.path_gradient})


# Jitted because NumPyro also calls guides outside jit, where compiling single operations would take seconds.
@jit
def _forward(flow: AbstractFlow, x: Float[Array, "*batch p"]) -> tuple[Array, Array]:
    return jnp.vectorize(flow.transform_and_log_det, signature="(p)->(p),()")(x)


@jit
def _backward(flow: AbstractFlow, y: Float[Array, "*batch p"]) -> Float[Array, "*batch p"]:
    return jnp.vectorize(lambda y: flow.inverse_and_log_det(y)[0], signature="(p)->(p)")(y)


@jit
def _score(flow: Any, x: Float[Array, "*batch p"]) -> Float[Array, "*batch p"]:
    return stop_gradient(jnp.vectorize(flow.score, signature="(p)->(p)")(x))
