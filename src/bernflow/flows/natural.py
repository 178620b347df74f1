"""Gaussians with block-diagonal or block-tridiagonal precision (a chain), in natural parameters.

The density is proportional to exp(-y^T Q y / 2 + h^T y). In a chain, off-diagonal blocks of the precision Q link every
block to the one before it. Blocks are eliminated from the last to the first:

    y_b | y_{b-1}:   L_b^T y_b = z_b + half_b - V_b y_{b-1},   L_b L_b^T the precision of block b given those before it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Blocks up to these sizes are factored by unrolled loops and by loops; larger ones recursively, by halves.
MAX_UNROLLED, MAX_LOOP = 6, 16
TINY = 1e-30

# A lower triangular factor, and its inverse.
Factors = tuple[Float[Array, "b s s"], Float[Array, "b s s"]]


class Natural(NamedTuple):
    """Natural parameters.

    Attributes:
        precision: the diagonal blocks of Q.
        link: the blocks of Q that link every block to the one before it; None without a chain.
        potential: h.
    """

    precision: Float[Array | np.ndarray, "*k b s s"]
    link: Float[Array | np.ndarray, "*k b s s"] | None
    potential: Float[Array | np.ndarray, "*k b s"]


class Eliminated(NamedTuple):
    """A factored Gaussian: L, its inverse, half and V as in the docstring of the module."""

    lower: Float[Array, "b s s"]
    inverse: Float[Array, "b s s"]
    half: Float[Array, "b s"]
    link: Float[Array, "b s s"] | None

    def color(self, z: Float[Array, "b s"]) -> Float[Array, "b s"]:
        """Map standard noise to y."""
        if self.link is None:
            return _times_transposed(self.inverse, z + self.half)

        def step(before, inputs):
            inverse, right, link = inputs
            y = inverse.T @ (right - link @ before)
            return y, y

        return jax.lax.scan(step, jnp.zeros_like(z[0]), (self.inverse, z + self.half, self.link))[1]

    def whiten(self, y: Float[Array, "b s"]) -> Float[Array, "b s"]:
        """Invert `color`."""
        z = _times_transposed(self.lower, y) - self.half
        if self.link is None:
            return z
        before = jnp.concatenate([jnp.zeros_like(y[:1]), y[:-1]])
        return z + jnp.einsum("bij,bj->bi", self.link, before)

    def log_det(self) -> Float[Array, ""]:
        """Return log |dy/dz|."""
        return -jnp.sum(jnp.log(jnp.diagonal(self.lower, axis1=-2, axis2=-1)))


def _times_transposed(matrix: Float[Array, "b s s"], vector: Float[Array, "b s"]) -> Float[Array, "b s"]:
    return jnp.einsum("bji,bj->bi", matrix, vector)


def eliminate(natural: Natural, least: Float[Array, "b s"]) -> Eliminated:
    """Factor a Gaussian; pivots of the precision below `least` are raised to it."""
    if natural.link is None:
        lower, inverse = factor(jnp.asarray(natural.precision), least)
        return Eliminated(lower, inverse, jnp.einsum("bij,bj->bi", inverse, natural.potential), None)

    def step(later, inputs):
        precision, potential, link, least = inputs
        lower, inverse = (part[0] for part in factor((precision - later[0])[None], least[None]))
        half, link = inverse @ (potential - later[1]), inverse @ link
        return (link.T @ link, link.T @ half), (lower, inverse, half, link)

    start = jnp.zeros_like(natural.precision[0]), jnp.zeros_like(natural.potential[0])
    inputs = natural.precision, natural.potential, natural.link, least
    return Eliminated(*jax.lax.scan(step, start, inputs, reverse=True)[1])


def factor(matrix: Float[Array, "b s s"], least: Float[Array, "b s"]) -> Factors:
    """Return lower triangular factors of matrices, with pivots of at least `least`, and their inverses.

    LAPACK is avoided: two simultaneous calls inside one compiled function can deadlock on few cores.
    """
    least = jnp.maximum(jax.lax.stop_gradient(least), TINY)
    return _unrolled(matrix, least) if matrix.shape[-1] <= MAX_UNROLLED else _factor(matrix, least)


@jax.custom_vjp
def _factor(matrix: Float[Array, "b s s"], least: Float[Array, "b s"]) -> Factors:
    """Factor the first half of the rows, then the Schur complement of the others."""
    size = matrix.shape[-1]
    if size <= MAX_LOOP:
        return _looped(matrix, least)
    half = size // 2
    first, first_inverse = _factor(matrix[:, :half, :half], least[:, :half])
    below = jnp.einsum("bij,bkj->bik", matrix[:, half:, :half], first_inverse)
    second, second_inverse = _factor(
        matrix[:, half:, half:] - jnp.einsum("bij,bkj->bik", below, below), least[:, half:]
    )
    corner = -second_inverse @ (below @ first_inverse)
    return _stacked(first, below, second), _stacked(first_inverse, corner, second_inverse)


def _looped(matrix: Float[Array, "b s s"], least: Float[Array, "b s"]) -> Factors:
    """Eliminate the columns of the matrix and of an identity matrix, which becomes the inverse."""
    size = matrix.shape[-1]

    def step(i, carry):
        left, lower, inverse = carry
        root = jnp.sqrt(jnp.maximum(left[:, i, i], least[:, i]))[:, None]
        column = jnp.where(jnp.arange(size) > i, left[:, :, i] / root, 0.0)
        row = inverse[:, i] / root
        left = left - column[:, :, None] * column[:, None, :]
        lower = lower.at[:, :, i].set(column).at[:, i, i].set(root[:, 0])
        return left, lower, (inverse - column[:, :, None] * row[:, None, :]).at[:, i].set(row)

    identity = jnp.broadcast_to(jnp.eye(size, dtype=matrix.dtype), matrix.shape)
    return jax.lax.fori_loop(0, size, step, (matrix, jnp.zeros_like(matrix), identity))[1:]


def _stacked(first: Array, below: Array, second: Array) -> Array:
    above = jnp.zeros((*first.shape[:-1], second.shape[-1]), first.dtype)
    return jnp.concatenate([jnp.concatenate([first, above], -1), jnp.concatenate([below, second], -1)], -2)


def _factor_forward(matrix, least):
    both = _factor(matrix, least)
    return both, both


def _factor_backward(both, bars):
    (lower, inverse), (lower_bar, inverse_bar) = both, bars
    transposed = jnp.swapaxes(inverse, -1, -2)
    lower_bar = lower_bar - transposed @ inverse_bar @ transposed
    inner = jnp.swapaxes(lower, -1, -2) @ lower_bar
    inner = jnp.tril(inner) - 0.5 * inner * jnp.eye(inner.shape[-1])
    bar = transposed @ inner @ inverse
    return 0.5 * (bar + jnp.swapaxes(bar, -1, -2)), jnp.zeros_like(lower[:, :, 0])


_factor.defvjp(_factor_forward, _factor_backward)


def _unrolled(matrix: Float[Array, "b s s"], least: Float[Array, "b s"]) -> Factors:
    size = matrix.shape[-1]
    zero = jnp.zeros_like(matrix[:, 0, 0])
    rows: list[list[Array]] = []
    for i in range(size):
        row: list[Array] = []
        for j in range(i):
            inner = sum((row[k] * rows[j][k] for k in range(j)), start=zero)
            row.append((matrix[:, i, j] - inner) / rows[j][j])
        pivot = matrix[:, i, i] - sum((entry**2 for entry in row), start=zero)
        row.append(jnp.sqrt(jnp.maximum(pivot, least[:, i])))
        rows.append(row)
    inverse: list[list[Array]] = []
    for i in range(size):
        inverse.append([])
        for j in range(i):
            inner = sum((rows[i][k] * inverse[k][j] for k in range(j, i)), start=zero)
            inverse[i].append(-inner / rows[i][i])
        inverse[i].append(1.0 / rows[i][i])
    return _full(rows, zero), _full(inverse, zero)


def _full(rows: list[list[Array]], zero: Array) -> Float[Array, "b s s"]:
    size = len(rows)
    return jnp.stack([jnp.stack(row + [zero] * (size - len(row)), -1) for row in rows], -2)
