"""The outer affine map: a fixed whitening of the target, followed inwards by a trained correction."""

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float


class TriangularAffine(eqx.Module):
    """x = mu + L (m + A y), with mu and L fixed by the start and m, A (lower triangular) trained from 0 and I.

    Training in whitened units makes the fit independent of the units of the parameters: one learning rate serves a
    coefficient of 1e-5 and one of 1e5.
    """

    start_loc: Float[Array, " p"]
    start_tril: Float[Array, "p p"]
    shift: Float[Array, " p"]
    log_diagonal: Float[Array, " p"]
    lower: Float[Array, "p p"]

    def __init__(self, loc: Float[Array, " p"], tril: Float[Array, "p p"]):
        dim = loc.shape[0]
        self.start_loc = loc
        self.start_tril = tril
        self.shift = jnp.zeros(dim)
        self.log_diagonal = jnp.zeros(dim)
        self.lower = jnp.zeros((dim, dim))

    def matrix(self) -> Float[Array, "p p"]:
        """Return dx/dy = L A, lower triangular."""
        return self.start_tril @ self._trained()

    def _trained(self) -> Float[Array, "p p"]:
        return jnp.tril(self.lower, -1) + jnp.diag(jnp.exp(self.log_diagonal))

    def transform_and_log_det(self, y: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map y to x; return log |dx/dy|."""
        tril = stop_gradient(self.start_tril)
        x = stop_gradient(self.start_loc) + tril @ (self.shift + self._trained() @ y)
        return x, self.log_det()

    def inverse(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        """Map x to y."""
        whitened = solve_triangular(self.start_tril, x - self.start_loc, lower=True)
        return solve_triangular(self._trained(), whitened - self.shift, lower=True)

    def pull_back(self, covector: Float[Array, " p"]) -> Float[Array, " p"]:
        """Return (dx/dy)^-T applied to a gradient with respect to y: the gradient with respect to x."""
        inner = solve_triangular(self._trained(), covector, lower=True, trans="T")
        return solve_triangular(self.start_tril, inner, lower=True, trans="T")

    def log_det(self) -> Float[Array, ""]:
        """Return log |dx/dy|."""
        diagonal = jnp.diagonal(stop_gradient(self.start_tril))
        return jnp.sum(self.log_diagonal) + jnp.sum(jnp.log(jnp.abs(diagonal)))


class DiagonalAffine(eqx.Module):
    """x = mu + exp(s) (m + exp(d) y), dimension by dimension: the outer map of mean-field families."""

    start_loc: Float[Array, " p"]
    start_scale: Float[Array, " p"]
    shift: Float[Array, " p"]
    log_diagonal: Float[Array, " p"]

    def __init__(self, loc: Float[Array, " p"], scale: Float[Array, " p"]):
        self.start_loc = loc
        self.start_scale = scale
        self.shift = jnp.zeros(loc.shape)
        self.log_diagonal = jnp.zeros(loc.shape)

    def transform_and_log_det(self, y: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map y to x; return log |dx/dy|."""
        scale = stop_gradient(self.start_scale)
        return stop_gradient(self.start_loc) + scale * (self.shift + jnp.exp(self.log_diagonal) * y), self.log_det()

    def inverse(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        """Map x to y."""
        return ((x - self.start_loc) / self.start_scale - self.shift) / jnp.exp(self.log_diagonal)

    def matrix(self) -> Float[Array, "p p"]:
        """Return dx/dy, diagonal."""
        return jnp.diag(self.start_scale * jnp.exp(self.log_diagonal))

    def pull_back(self, covector: Float[Array, " p"]) -> Float[Array, " p"]:
        """Return (dx/dy)^-T applied to a gradient with respect to y: the gradient with respect to x."""
        return covector / (self.start_scale * jnp.exp(self.log_diagonal))

    def log_det(self) -> Float[Array, ""]:
        """Return log |dx/dy|."""
        return jnp.sum(self.log_diagonal) + jnp.sum(jnp.log(stop_gradient(self.start_scale)))
