"""Differentiable JAX functions of a Stan program.

The gradient is Stan's own, from the same call as the value. Derivatives that Stan does not provide (second ones, and
those of the map to the constrained scale) are fourth-order finite differences in double precision. They are full
matrices, so that both forward and reverse mode differentiation work.
"""

from functools import partial

import jax
from jaxtyping import Array, Float, Int

from bernflow.models.stan.instance import Instance, Operation


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def log_density(instance: Instance, handle: Int[Array, ""], x: Float[Array, " p"]) -> Float[Array, ""]:
    """Evaluate log prior + log likelihood + log |d theta / d x| with all constants; -inf if the program throws."""
    return instance.call(Operation.VALUE, handle, x, 1)[0]


@log_density.defjvp
def _log_density_jvp(instance, primals, tangents):
    handle, x = primals
    value, gradient = _value_and_gradient(instance, handle, x)
    return value, gradient @ tangents[1]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value_and_gradient(instance, handle, x):
    out = instance.call(Operation.GRADIENT, handle, x, 1 + instance.dim)
    return out[0], out[1:]


@_value_and_gradient.defjvp
def _value_and_gradient_jvp(instance, primals, tangents):
    handle, x = primals
    value, gradient = _value_and_gradient(instance, handle, x)
    hessian = instance.call(Operation.HESSIAN, handle, x, instance.dim**2).reshape(instance.dim, instance.dim)
    return (value, gradient), (gradient @ tangents[1], hessian @ tangents[1])


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def constrain(instance: Instance, handle: Int[Array, ""], x: Float[Array, " p"]) -> Float[Array, " n"]:
    """Map x to the parameters, as a flat array in Stan's order."""
    return instance.call(Operation.CONSTRAIN, handle, x, instance.num_theta)


@constrain.defjvp
def _constrain_jvp(instance, primals, tangents):
    handle, x = primals
    size = instance.num_theta * instance.dim
    slopes = instance.call(Operation.CONSTRAIN_SLOPES, handle, x, size).reshape(instance.num_theta, instance.dim)
    return constrain(instance, handle, x), slopes @ tangents[1]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def log_jacobian(instance: Instance, handle: Int[Array, ""], x: Float[Array, " p"]) -> Float[Array, ""]:
    """Evaluate log |d theta / d x|, a difference of log densities with and without Jacobian; NaN if it throws."""
    return instance.call(Operation.LOG_JACOBIAN, handle, x, 1)[0]


@log_jacobian.defjvp
def _log_jacobian_jvp(instance, primals, tangents):
    handle, x = primals
    out = instance.call(Operation.LOG_JACOBIAN, handle, x, 1 + instance.dim)
    return out[0], out[1:] @ tangents[1]
