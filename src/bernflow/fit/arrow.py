"""The locals of a hierarchical posterior given its globals, as Gaussians in blocks or in a chain of them.

All on the host: blocks are small, and NumPy needs no compilation. Arrays may have leading axes, one entry per point.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import lapack

from bernflow.flows.structure import Structure

# By how much a diagonal, in units of itself, is raised to make a matrix positive.
RAISED = (1e-6, 1e-3, 1e-2, 0.1, 0.5, 2.0, 8.0)


class Curvature(NamedTuple):
    """Minus the second derivatives of a log density among locals, as far as its structure lets them differ from zero.

    Attributes:
        blocks: among the locals of a block; one on the diagonal where a block is filled up.
        chain: of a block with the one before it, or None.
    """

    blocks: Float[np.ndarray, "*k b s s"]
    chain: Float[np.ndarray, "*k b s s"] | None


def tangents(structure: Structure) -> Float[np.ndarray, "t p"]:
    """Return directions whose products with the Hessian give all entries among locals that the structure allows.

    Blocks that do not interact share a direction: one per place in a block, three times as many in a chain.
    """
    num_groups = 3 if structure.chained else 1
    rows = np.zeros((num_groups, structure.size, structure.dim))
    for number, block in enumerate(structure.blocks):
        for place, member in enumerate(block):
            rows[number % num_groups, place, member] = 1.0
    return rows.reshape(-1, structure.dim)


def read_curvature(structure: Structure, products: Float[np.ndarray, "k t p"]) -> Curvature:
    """Take the second derivatives out of products of the Hessian with `tangents`."""
    products = -products
    members = np.maximum(structure.members, 0)
    inside = structure.is_member
    num_groups = 3 if structure.chained else 1
    from_local = products.reshape(len(products), num_groups, structure.size, structure.dim)
    both = inside[:, :, None] & inside[:, None, :]
    group = np.arange(len(structure.blocks)) % num_groups
    places = np.arange(structure.size)
    # Entry [b, i, j]: row of member i, direction of member j of the same group as block b.
    blocks = from_local[:, group[:, None, None], places, members[:, :, None]]
    blocks = np.where(both, 0.5 * (blocks + np.swapaxes(blocks, -1, -2)), np.eye(structure.size))
    chain = None
    if structure.chained:
        before = np.roll(group, 1)[:, None, None]
        chain = from_local[:, before, places, members[:, :, None]]
        chain *= inside[:, :, None] & np.roll(inside, 1, axis=0)[:, None, :]
        chain[:, 0] = 0.0
    return Curvature(blocks, chain)


class Locals(NamedTuple):
    """The locals of a Gaussian given its globals, block after block.

        l_b - m_b = carry_b (l_{b-1} - m_{b-1}) + factor_b z_b,   carry_b = -factor_b factor_b^T chain_b

    Attributes:
        factor: lower triangular.
        chain: curvature of a block with the one before it; None without a chain.
    """

    factor: Float[np.ndarray, "k b s s"]
    chain: Float[np.ndarray, "k b s s"] | None

    def at(self, which: Any) -> "Locals":
        """Return those of some points."""
        return Locals(self.factor[which], None if self.chain is None else self.chain[which])

    def solve(self, rhs: Float[np.ndarray, "k b s r"]) -> Float[np.ndarray, "k b s r"]:
        """Solve Q x = rhs, Q the precision of all locals."""
        if self.chain is None:
            return self.factor @ (np.swapaxes(self.factor, -1, -2) @ rhs)
        return self._by_point(lapack.dpbtrs, rhs, lower=1)

    def color(self, z: Float[np.ndarray, "k b s"]) -> Float[np.ndarray, "k b s"]:
        """Map noise to deviations from the conditional mean."""
        if self.chain is None:
            return (self.factor @ z[..., None])[..., 0]
        return self._by_point(lapack.dtbtrs, z[..., None], uplo="L", trans="T")[..., 0]

    def _by_point(self, solve: Any, rhs: Float[np.ndarray, "k b s r"], **options: Any) -> Float[np.ndarray, "k b s r"]:
        """Call a solver of LAPACK with the banded factor of every point; a single point serves all right-hand sides."""
        assert self.chain is not None
        upper = np.linalg.inv(np.swapaxes(self.factor, -1, -2))
        band = _to_band(upper, np.swapaxes(self.chain[:, 1:], -1, -2) @ self.factor[:, 1:])
        band = np.broadcast_to(band, (len(rhs), *band.shape[1:]))
        reverse = rhs[:, ::-1, ::-1].reshape(len(rhs), -1, rhs.shape[-1])
        solved = np.stack([solve(one, right, **options)[0] for one, right in zip(band, reverse, strict=True)])
        return solved.reshape(rhs.shape)[:, ::-1, ::-1]

    def log_det(self) -> Float[np.ndarray, "*k"]:
        """Return the log determinant of the factor of the covariance."""
        return np.sum(np.log(np.diagonal(self.factor, axis1=-2, axis2=-1)), (-1, -2))


def eliminate(blocks: Float[np.ndarray, "k b s s"], chain: Float[np.ndarray, "k b s s"] | None) -> Locals:
    """Factor the precision of the locals, in a chain from its last block to its first."""
    if chain is None:
        return Locals(_covariance_factor(blocks), None)
    size = blocks.shape[-1]
    factor = np.empty_like(blocks)
    for point, band in enumerate(_to_band(blocks, np.swapaxes(chain[:, 1:], -1, -2))):
        lower, info = lapack.dpbtrf(band, lower=1)
        if info == 0:
            # With rows and columns reversed, the inverse of a triangular factor is one of the inverse.
            panel = np.tril(_from_band(lower, size))[::-1, ::-1, ::-1]
            factor[point] = np.tril(np.swapaxes(np.linalg.inv(panel), -1, -2))
        else:
            factor[point] = _raised_factor(blocks[point], chain[point])
    return Locals(factor, chain)


def _raised_factor(blocks: Float[np.ndarray, "b s s"], chain: Float[np.ndarray, "b s s"]) -> Float[np.ndarray, "b s s"]:
    """Factor block after block, and raise the diagonals of those that are not positive."""
    factor, precision = np.empty_like(blocks), np.array(blocks)
    for b in reversed(range(len(blocks))):
        factor[b] = _covariance_factor(precision[b])
        if b:
            half = factor[b].T @ chain[b]
            precision[b - 1] -= half.T @ half
    return factor


def _to_band(blocks: Float[np.ndarray, "k b s s"], above: Float[np.ndarray, "k b-1 s s"]) -> Float[np.ndarray, "k w n"]:
    """Return the lower band of matrices with the order of rows and columns reversed, as LAPACK stores it.

    Args:
        blocks: on the diagonal.
        above: of block b - 1 with block b, from the second block on.
    """
    num, many, size = blocks.shape[:3]
    panel = np.zeros((num, many, 2 * size, size))
    panel[:, :, :size] = blocks[:, ::-1, ::-1, ::-1]
    panel[:, :-1, size:] = above[:, ::-1, ::-1, ::-1]
    diagonal, column = np.indices((2 * size, size))
    inside = diagonal + column < 2 * size
    band = panel[:, :, np.where(inside, diagonal + column, 0), column] * inside
    return np.moveaxis(band, 1, 2).reshape(num, 2 * size, many * size)


def _from_band(band: Float[np.ndarray, "w n"], size: int) -> Float[np.ndarray, "b s s"]:
    """Return the lower triangles of the blocks on the diagonal of a reversed band matrix."""
    row, column = np.indices((size, size))
    columns = band.reshape(2 * size, -1, size)
    return np.moveaxis(columns[np.maximum(row - column, 0), :, column], -1, 0)


def _covariance_factor(precision: Float[np.ndarray, "*k s s"]) -> Float[np.ndarray, "*k s s"]:
    """Return a lower triangular factor of the inverse; where that is not positive, the diagonal is raised until it is.

    With rows and columns reversed, the inverse of a triangular factor is one of the inverse.
    """
    if precision.shape[-1] == 1:
        return 1.0 / np.sqrt(np.maximum(np.abs(precision), 1e-12))
    reverse = precision[..., ::-1, ::-1]
    try:
        lower = np.linalg.cholesky(reverse)
    except np.linalg.LinAlgError:
        shape = reverse.shape
        lower = np.stack([_raised_cholesky(one) for one in reverse.reshape(-1, *shape[-2:])]).reshape(shape)
    return np.tril(np.swapaxes(np.linalg.inv(lower[..., ::-1, ::-1]), -1, -2))


def _raised_cholesky(matrix: Float[np.ndarray, "s s"]) -> Float[np.ndarray, "s s"]:
    """Return the Cholesky factor of a matrix whose diagonal is raised by as little as it takes."""
    unit = np.sqrt(np.maximum(np.abs(np.diagonal(matrix)), 1e-12))
    scaled = matrix / unit[:, None] / unit[None, :]
    # A row of absolute values bounds the eigenvalues.
    for raised in (0.0, *RAISED, 1.0 + np.abs(scaled).sum(1).max()):
        try:
            return unit[:, None] * np.linalg.cholesky(scaled + raised * np.eye(len(unit)))
        except np.linalg.LinAlgError:
            continue
    raise AssertionError("a diagonally dominant matrix is positive")
