"""Factors F of a covariance F F^T: a triangular matrix or, in many dimensions, a factor with linear memory.

Both kinds have the same interface.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

# Up to this many dimensions a factor is a matrix: exact, and at most 32 MB.
MAX_DIM_DENSE = 2000
# A low-rank factor stores the correlations of this many leading dimensions with all others ...
BORDER = 32
# ... and this many directions among the others.
RANK = 32


def is_dense(dim: int) -> bool:
    """Tell whether square matrices of this size are affordable."""
    return dim <= MAX_DIM_DENSE


class DenseFactor(NamedTuple):
    """A triangular matrix."""

    tril: Float[Any, "p p"]

    def color(self, z: Float[Any, "*s p"]) -> Float[Any, "*s p"]:
        """Return F z."""
        return self.tril @ z if z.ndim == 1 else z @ self.tril.T

    def transposed(self, v: Float[Any, " p"]) -> Float[Any, " p"]:
        """Return F^T v."""
        return self.tril.T @ v

    def whiten(self, x: Float[np.ndarray, "*s p"]) -> Float[np.ndarray, "*s p"]:
        """Return F^-1 x, on the host."""
        return np.linalg.solve(np.asarray(self.tril), x.T).T

    def log_det(self) -> float:
        """Return log |F|, on the host."""
        return float(np.linalg.slogdet(np.asarray(self.tril))[1])

    def reach(self, scale: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Return the largest effect, in units of `scale`, of every coordinate of noise on any parameter."""
        return np.max(np.abs(self.tril) / scale[:, None], 0)

    def conditional_scales(self) -> Float[Array, " p"]:
        """Return the standard deviation of every parameter given all others."""
        inverse = solve_triangular(self.tril, jnp.eye(self.tril.shape[0], dtype=self.tril.dtype), lower=True)
        return 1.0 / jnp.linalg.norm(inverse, axis=0)

    def matrix(self) -> Float[Array, "p p"]:
        """Return a triangular factor of the same covariance."""
        return self.tril


class LowRankFactor(NamedTuple):
    """A dense factor of the leading dimensions l, and a low-rank one of the others f given them.

        x_l = L z_l,    x_f = B x_l + s (I + Q diag(a) Q^T) z_f

    Q has orthonormal columns. As with a triangular matrix, the leading dimensions, such as the scales of a hierarchy,
    do not depend on the noise of the others.

    Attributes:
        leading: L, lower triangular.
        coupling: B.
        scale: s.
        basis: Q.
        stretch: a, each above -1.
    """

    leading: Float[Any, "c c"]
    coupling: Float[Any, "n c"]
    scale: Float[Any, " n"]
    basis: Float[Any, "n r"]
    stretch: Float[Any, " r"]

    def color(self, z: Float[Any, "*s p"]) -> Float[Any, "*s p"]:
        """Return F z."""
        first, rest = self.split(z)
        x = first @ self.leading.T
        return _join(x, x @ self.coupling.T + self.scale * self.stretched(rest, self.stretch))

    def transposed(self, v: Float[Any, " p"]) -> Float[Any, " p"]:
        """Return F^T v."""
        first, rest = self.split(v)
        return _join((first + rest @ self.coupling) @ self.leading, self.stretched(self.scale * rest, self.stretch))

    def whiten(self, x: Float[np.ndarray, "*s p"]) -> Float[np.ndarray, "*s p"]:
        """Return F^-1 x, on the host."""
        first, rest = self.split(x)
        inner = self.stretched((rest - first @ self.coupling.T) / self.scale, self.shrink())
        return np.concatenate([np.linalg.solve(self.leading, first.T).T, inner], -1)

    def log_det(self, like: Any = np) -> Any:
        """Return log |F|, by NumPy or by JAX (`like`)."""
        leading = like.log(like.abs(like.diagonal(self.leading)))
        return like.sum(leading) + like.sum(like.log(self.scale)) + like.sum(like.log1p(self.stretch))

    def reach(self, scale: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Return the effect, in units of `scale`, of every coordinate of noise on its own parameter."""
        own = self.scale * np.abs(1.0 + np.sum(self.basis**2 * self.stretch, -1))
        return np.concatenate([np.abs(np.diagonal(self.leading)), own]) / scale

    def conditional_scales(self) -> Float[Array, " p"]:
        """Return the standard deviation of every parameter given all others."""
        inner = (1.0 + self.stretch) ** -2 - 1.0
        following = (1.0 + jnp.sum(self.basis**2 * inner, -1)) / self.scale**2
        inverse = solve_triangular(self.leading, jnp.eye(self.leading.shape[0], dtype=self.leading.dtype), lower=True)
        coupled = self.coupling / self.scale[:, None]
        along = self.basis.T @ coupled
        leading = jnp.sum(inverse**2, 0) + jnp.sum(coupled**2, 0) + inner @ along**2
        return jax.lax.rsqrt(jnp.concatenate([leading, following]))

    def matrix(self) -> Float[Array, "p p"]:
        """Return a triangular factor of the same covariance, which takes memory quadratic in p."""
        inner = self.scale[:, None] * (self.basis * ((1.0 + self.stretch) ** 2 - 1.0)) @ (self.basis.T * self.scale)
        corner = jnp.linalg.cholesky(inner + jnp.diag(self.scale**2))
        above = jnp.zeros((self.leading.shape[0], corner.shape[0]), corner.dtype)
        return jnp.block([[self.leading, above], [self.coupling @ self.leading, corner]])

    def split(self, x: Float[Any, "*s p"]) -> tuple[Float[Any, "*s c"], Float[Any, "*s n"]]:
        """Return the leading coordinates, and the others."""
        num = self.leading.shape[-1]
        return x[..., :num], x[..., num:]

    def stretched(self, x: Float[Any, "*s n"], by: Float[Any, " r"]) -> Float[Any, "*s n"]:
        """Return (I + Q diag(by) Q^T) x."""
        return x + ((x @ self.basis) * by) @ self.basis.T

    def shrink(self) -> Float[Any, " r"]:
        """Return the stretch of the inverse: (I + Q diag(a) Q^T)^-1 = I - Q diag(a / (1 + a)) Q^T."""
        return -self.stretch / (1.0 + self.stretch)


Factor = DenseFactor | LowRankFactor


def as_factor(factor: Any) -> Factor:
    """Wrap a triangular matrix; return a factor unchanged."""
    return factor if isinstance(factor, DenseFactor | LowRankFactor) else DenseFactor(factor)


def unit_factor(dim: int, like: Any = np) -> Any:
    """Return a factor of the identity, as NumPy or JAX arrays (`like`): a matrix if that is affordable."""
    if is_dense(dim):
        return like.eye(dim)
    return unit_low_rank(dim, BORDER, RANK, like)


def unit_low_rank(dim: int, border: int, rank: int, like: Any = np) -> LowRankFactor:
    """Return a low-rank factor of the identity."""
    num = dim - border
    rest = like.zeros((num, border)), like.ones(num), like.zeros((num, rank)), like.zeros(rank)
    return LowRankFactor(like.eye(border), *rest)


def _join(first: Float[Any, "*s c"], rest: Float[Any, "*s n"]) -> Float[Any, "*s p"]:
    return (np if isinstance(first, np.ndarray) and isinstance(rest, np.ndarray) else jnp).concatenate(
        [first, rest], -1
    )
