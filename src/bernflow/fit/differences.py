"""Second derivatives by differences of gradients, for densities that cannot be differentiated twice."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bernflow.models.base import AbstractModel
from bernflow.target import Target, log_density

# A central difference moves no coordinate by more than the cube root of the rounding error, in units of max(1, |x|).
STEP_POWER = 1 / 3


class DifferencedTarget(Target):
    """A target whose gradient is differentiated by central differences.

    A function with a derivative by `jax.custom_vjp`, such as a solver that is called on the host, has a gradient, and
    JAX knows no derivative of that. The start of a fit needs curvatures all the same.
    """

    def __init__(self, model: AbstractModel):
        super().__init__(model)

    def log_density_of_sites(self, pieces: list[Array]) -> Float[Array, ""]:
        """Evaluate the log density with x split by site; NaN counts as -inf."""
        return _value(self, self.layout.join(pieces))


@eqx.filter_custom_jvp
def _value(target: Target, x: Float[Array, " p"]) -> Float[Array, ""]:
    return log_density(target.layout, target.model, x)


@_value.def_jvp
def _value_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    target, x = primals
    gradient, tangent = _gradient(target, x), tangents[1]
    return _value(target, x), jnp.zeros_like(x[0]) if tangent is None else jnp.dot(gradient, tangent)


@eqx.filter_custom_jvp
def _gradient(target: Target, x: Float[Array, " p"]) -> Float[Array, " p"]:
    return jax.grad(lambda x: log_density(target.layout, target.model, x))(x)


@_gradient.def_jvp
def _gradient_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    target, x = primals
    gradient, tangent = _gradient(target, x), tangents[1]
    if tangent is None:
        return gradient, jnp.zeros_like(gradient)
    largest = jnp.max(jnp.abs(tangent))
    step = jnp.finfo(x.dtype).eps ** STEP_POWER * jnp.maximum(1.0, jnp.max(jnp.abs(x)))
    step /= jnp.where(largest > 0, largest, 1.0)
    ahead, behind = _gradient(target, x + step * tangent), _gradient(target, x - step * tangent)
    return gradient, (ahead - behind) / (2 * step)
