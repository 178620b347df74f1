"""The locals of a hierarchical posterior given its globals, as Gaussians in blocks or in a chain of them.

All on the host: blocks are small, and NumPy needs no compilation. Arrays may have leading axes, one entry per point.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

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
    numbers = np.arange(len(structure.blocks))
    # Entry [b, i, j]: row of member i, direction of member j of the same group as block b.
    blocks = np.stack([np.moveaxis(from_local[:, b % num_groups][:, :, members[b]], 1, -1) for b in numbers], 1)
    blocks = np.where(both, 0.5 * (blocks + np.swapaxes(blocks, -1, -2)), np.eye(structure.size))
    chain = None
    if structure.chained:
        chain = np.zeros_like(blocks)
        for b in numbers[1:]:
            chain[:, b] = np.moveaxis(from_local[:, (b - 1) % num_groups][:, :, members[b]], 1, -1)
            chain[:, b] *= inside[b][:, None] & inside[b - 1][None, :]
    return Curvature(blocks, chain)


class Locals(NamedTuple):
    """The locals of a Gaussian given its globals, block after block.

        l_b - m_b = carry_b (l_{b-1} - m_{b-1}) + factor_b z_b

    Attributes:
        factor: lower triangular.
        carry: None without a chain.
        chain: curvature of a block with the one before it; None without a chain.
    """

    factor: Float[np.ndarray, "*k b s s"]
    carry: Float[np.ndarray, "*k b s s"] | None
    chain: Float[np.ndarray, "*k b s s"] | None

    def at(self, which: Any) -> "Locals":
        """Return those of some points."""
        carry, chain = (None if part is None else part[which] for part in (self.carry, self.chain))
        return Locals(self.factor[which], carry, chain)

    def solve(self, rhs: Float[np.ndarray, "*k b s r"]) -> Float[np.ndarray, "*k b s r"]:
        """Solve Q x = rhs, Q the precision of all locals."""
        if self.chain is None:
            return self._divided(rhs)
        rhs = np.array(rhs)
        for b in reversed(range(rhs.shape[-3] - 1)):
            later = self._divided(rhs, b + 1)
            rhs[..., b, :, :] -= np.swapaxes(self.chain[..., b + 1, :, :], -1, -2) @ later
        solved = np.empty_like(rhs)
        solved[..., 0, :, :] = self._divided(rhs, 0)
        for b in range(1, rhs.shape[-3]):
            rhs[..., b, :, :] -= self.chain[..., b, :, :] @ solved[..., b - 1, :, :]
            solved[..., b, :, :] = self._divided(rhs, b)
        return solved

    def _divided(self, rhs: np.ndarray, block: int | None = None) -> np.ndarray:
        """Return factor factor^T rhs, for all blocks or one."""
        factor = self.factor if block is None else self.factor[..., block, :, :]
        return factor @ (np.swapaxes(factor, -1, -2) @ (rhs if block is None else rhs[..., block, :, :]))

    def color(self, z: Float[np.ndarray, "*k b s"]) -> Float[np.ndarray, "*k b s"]:
        """Map noise to deviations from the conditional mean."""
        x = (self.factor @ z[..., None])[..., 0]
        if self.carry is not None:
            for b in range(1, x.shape[-2]):
                x[..., b, :] += (self.carry[..., b, :, :] @ x[..., b - 1, :, None])[..., 0]
        return x

    def log_det(self) -> Float[np.ndarray, "*k"]:
        """Return the log determinant of the factor of the covariance."""
        return np.sum(np.log(np.diagonal(self.factor, axis1=-2, axis2=-1)), (-1, -2))


def eliminate(blocks: Float[np.ndarray, "*k b s s"], chain: Float[np.ndarray, "*k b s s"] | None) -> Locals:
    """Factor the precision of the locals, in a chain from its last block to its first."""
    if chain is None:
        return Locals(_covariance_factor(blocks), None, None)
    factor, precision = np.empty_like(blocks), np.array(blocks)
    for b in reversed(range(blocks.shape[-3])):
        factor[..., b, :, :] = _covariance_factor(precision[..., b, :, :])
        if b:
            half = np.swapaxes(factor[..., b, :, :], -1, -2) @ chain[..., b, :, :]
            precision[..., b - 1, :, :] -= np.swapaxes(half, -1, -2) @ half
    carry = -factor @ (np.swapaxes(factor, -1, -2) @ chain)
    return Locals(factor, carry, chain)


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
