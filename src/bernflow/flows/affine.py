"""The outer affine map: a fixed whitening of the target, followed inwards by a trained correction."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from bernflow.flows.factors import LowRankFactor


class TriangularAffine(eqx.Module):
    """x = mu + L (m + A y), with mu and L fixed by the start and m, A (lower triangular) trained from 0 and I.

    Training in whitened coordinates makes the fit invariant to the units of the parameters: the same learning rate
    works for a coefficient of 1e-5 and for one of 1e5.
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

    def row_norms(self) -> Float[Array, " p"]:
        """Return the norms of the rows of dx/dy: the scales of x if y is standard noise."""
        return jnp.linalg.norm(self.matrix(), axis=1)

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

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved map can be rebuilt."""
        return {"outer": "triangular"}


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
        return jnp.diag(self.row_norms())

    def row_norms(self) -> Float[Array, " p"]:
        """Return the norms of the rows of dx/dy: the scales of x if y is standard noise."""
        return self.start_scale * jnp.exp(self.log_diagonal)

    def pull_back(self, covector: Float[Array, " p"]) -> Float[Array, " p"]:
        """Return (dx/dy)^-T applied to a gradient with respect to y: the gradient with respect to x."""
        # Multiply by the reciprocal, as a triangular solver does: the results agree to the last bit.
        return covector * (1.0 / self.row_norms())

    def log_det(self) -> Float[Array, ""]:
        """Return log |dx/dy|."""
        return jnp.sum(self.log_diagonal) + jnp.sum(jnp.log(stop_gradient(self.start_scale)))

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved map can be rebuilt."""
        return {"outer": "diagonal"}


class LowRankAffine(eqx.Module):
    """x = mu + F (m + exp(d) y), with mu and F (see `LowRankFactor`) fixed by the start and m, d trained from 0.

    Memory and time are linear in the number of dimensions. The inner flow learns the correlations with leading
    dimensions that F does not represent.
    """

    start_loc: Float[Array, " p"]
    start_factor: LowRankFactor
    shift: Float[Array, " p"]
    log_diagonal: Float[Array, " p"]

    def __init__(self, loc: Float[Array, " p"], factor: LowRankFactor):
        self.start_loc = loc
        self.start_factor = factor
        self.shift = jnp.zeros(loc.shape)
        self.log_diagonal = jnp.zeros(loc.shape)

    def transform_and_log_det(self, y: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map y to x; return log |dx/dy|."""
        inner = self.shift + jnp.exp(self.log_diagonal) * y
        return stop_gradient(self.start_loc) + stop_gradient(self.start_factor).color(inner), self.log_det()

    def inverse(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        """Map x to y."""
        factor = self.start_factor
        first, rest = factor.split(x - self.start_loc)
        inner = factor.stretched((rest - factor.coupling @ first) / factor.scale, factor.shrink())
        whitened = jnp.concatenate([solve_triangular(factor.leading, first, lower=True), inner])
        return (whitened - self.shift) / jnp.exp(self.log_diagonal)

    def pull_back(self, covector: Float[Array, " p"]) -> Float[Array, " p"]:
        """Return (dx/dy)^-T applied to a gradient with respect to y: the gradient with respect to x."""
        factor = self.start_factor
        first, rest = factor.split(covector / jnp.exp(self.log_diagonal))
        following = factor.stretched(rest, factor.shrink()) / factor.scale
        leading = solve_triangular(factor.leading, first, lower=True, trans="T")
        return jnp.concatenate([leading - following @ factor.coupling, following])

    def matrix(self) -> Float[Array, "p p"]:
        """Return dx/dy, for comparisons: it takes memory quadratic in p, and is not triangular."""
        columns = jnp.diag(jnp.exp(self.log_diagonal))
        return jax.vmap(self.start_factor.color, in_axes=1, out_axes=1)(columns)

    def row_norms(self) -> Float[Array, " p"]:
        """Return the norms of the rows of dx/dy: the scales of x if y is standard noise."""
        factor = self.start_factor
        first, rest = factor.split(jnp.exp(self.log_diagonal))
        leading = factor.leading * first
        turned = factor.basis * factor.stretch
        # Row i of (I + Q diag(a) Q^T) diag(e) is e_i at position i plus e times (Q diag(a) Q^T)_i.
        own = rest**2 * (1.0 + 2.0 * jnp.sum(turned * factor.basis, 1))
        mixed = jnp.sum(turned * (turned @ ((factor.basis.T * rest**2) @ factor.basis)), 1)
        coupled = jnp.sum((factor.coupling @ leading) ** 2, 1)
        following = jnp.sqrt(coupled + factor.scale**2 * (own + mixed))
        return jnp.concatenate([jnp.linalg.norm(leading, axis=1), following])

    def log_det(self) -> Float[Array, ""]:
        """Return log |dx/dy|."""
        return jnp.sum(self.log_diagonal) + stop_gradient(self.start_factor).log_det(jnp)

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved map can be rebuilt."""
        num, rank = self.start_factor.basis.shape
        return {"outer": "low-rank", "border": self.start_loc.shape[0] - num, "rank": rank}


Affine = TriangularAffine | DiagonalAffine | LowRankAffine
