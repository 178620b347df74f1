"""Location-scale families: the Gaussians and the mean-field Student-t."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Key

from bernflow.flows.affine import Affine, TriangularAffine
from bernflow.flows.base import AbstractScoredFlow, normal_log_prob


class LocationScale(AbstractScoredFlow):
    """x = outer(z) with standard normal z, or with independent Student-t z if degrees of freedom are given."""

    outer: Affine
    degrees_of_freedom: float | None = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __init__(self, outer: Affine, degrees_of_freedom: float | None = None):
        self.outer = outer
        self.degrees_of_freedom = degrees_of_freedom
        self.dim = outer.start_loc.shape[0]

    def sample_base(self, key: Key[Array, ""], num: int) -> Float[Array, "s p"]:
        """Draw base noise."""
        if self.degrees_of_freedom is None:
            return jax.random.normal(key, (num, self.dim))
        return jax.random.t(key, self.degrees_of_freedom, (num, self.dim))

    def base_log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density of the base noise."""
        nu = self.degrees_of_freedom
        if nu is None:
            return normal_log_prob(z)
        log_constant = gammaln(0.5 * (nu + 1)) - gammaln(0.5 * nu) - 0.5 * jnp.log(nu * jnp.pi)
        return jnp.sum(log_constant - 0.5 * (nu + 1) * jnp.log1p(z**2 / nu))

    def transform_and_log_det(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise to a parameter vector; return x and log |dx/dz|."""
        return self.outer.transform_and_log_det(z)

    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise; return z and log |dz/dx|."""
        return self.outer.inverse(x), -self.outer.log_det()

    def score(self, z: Float[Array, " p"]) -> Float[Array, " p"]:
        """Evaluate the gradient of log q with respect to x at x = T(z)."""
        gradient = jax.grad(self.base_log_prob)(z)
        if isinstance(self.outer, TriangularAffine):  # one system to solve instead of two
            return solve_triangular(self.outer.matrix(), gradient, lower=True, trans="T")
        return self.outer.pull_back(gradient)

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved flow can be rebuilt."""
        return {
            "kind": "location-scale",
            "dim": self.dim,
            "degrees_of_freedom": self.degrees_of_freedom,
            **self.outer.recipe(),
        }
