"""Locals in a chain of blocks, against the dense matrix of their precision."""

import numpy as np
import pytest

from bernflow.fit.arrow import eliminate


def chain_of(num, many, size, seed=0):
    """Positive precisions in blocks with links, and the same as dense matrices."""
    rng = np.random.default_rng(seed)
    lower = np.zeros((num, many * size, many * size))
    for b in range(many):
        own = slice(b * size, (b + 1) * size)
        lower[:, own, own] = rng.normal(size=(num, size, size)) + 3.0 * np.eye(size)
        if b:
            lower[:, own, slice((b - 1) * size, b * size)] = rng.normal(size=(num, size, size))
    dense = lower @ np.swapaxes(lower, -1, -2)
    parts = dense.reshape(num, many, size, many, size)
    blocks = np.stack([parts[:, b, :, b] for b in range(many)], 1)
    link = np.stack([parts[:, b, :, max(b - 1, 0)] * (b > 0) for b in range(many)], 1)
    return blocks, link, dense


@pytest.mark.parametrize(("many", "size"), [(6, 1), (4, 3)])
def test_a_chain_is_the_gaussian_of_its_precision(many, size):
    blocks, link, dense = chain_of(2, many, size)
    found = eliminate(blocks, link)
    np.testing.assert_allclose(found.log_det(), -0.5 * np.linalg.slogdet(dense)[1])
    rhs = np.random.default_rng(1).normal(size=(2, many, size, 2))
    expected = np.linalg.solve(dense, rhs.reshape(2, many * size, 2))
    np.testing.assert_allclose(found.solve(rhs).reshape(expected.shape), expected)
    units = np.eye(many * size).reshape(-1, many, size)
    color = np.stack([found.color(np.stack([unit, unit])).reshape(2, -1) for unit in units], -1)
    np.testing.assert_allclose(color @ np.swapaxes(color, -1, -2), np.linalg.inv(dense), atol=1e-12)
    # Columns of a lower triangular factor: blocks follow from those before them.
    np.testing.assert_allclose(np.triu(color, 1), 0.0, atol=1e-12)


def test_one_point_serves_right_hand_sides_of_several():
    blocks, link, dense = chain_of(1, 4, 2)
    rhs = np.random.default_rng(1).normal(size=(3, 4, 2, 1))
    found = eliminate(blocks, link).solve(rhs)
    np.testing.assert_allclose(found.reshape(3, 8), np.linalg.solve(dense[0], rhs.reshape(3, 8).T).T)


def test_a_chain_that_is_not_positive_is_raised_where_it_is_not():
    blocks, link, _ = chain_of(2, 4, 2)
    before = eliminate(blocks, link)
    blocks[0, 2] *= -1.0
    found = eliminate(blocks, link)
    assert np.isfinite(found.factor).all()
    np.testing.assert_allclose(found.factor[1], before.factor[1])
    assert np.all(np.diagonal(found.factor, axis1=-2, axis2=-1) > 0.0)
