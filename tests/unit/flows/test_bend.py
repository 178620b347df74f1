"""Noise that depends on earlier noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow.flows.base import trained
from bernflow.flows.bend import CLIP_AT, MAX_LOG_SCALE, Bend, Coefficients
from bernflow.precision import use_precision

POINTS = [np.array(values) for values in ((0.3, -1.2, 0.4), (5.0, 0.7, -0.2), (-0.1, -2.0 * CLIP_AT, 2.0))]


@pytest.fixture(autouse=True)
def _double_precision():
    with use_precision("float64"):
        yield


def coefficients(*terms, dim=3):
    """Terms (i, j, k, coefficient), where k is i for a scale."""
    neighbors = np.array([np.resize(np.arange(max(i, 1)), dim - 1) for i in range(dim)])
    quadratic, scale = np.zeros((dim, dim - 1, dim - 1)), np.zeros((dim, dim - 1))
    for i, j, k, value in terms:
        if k == i:
            scale[i, j] += value
        else:
            quadratic[i, max(j, k), min(j, k)] += value
    return Coefficients(neighbors, quadratic, scale)


def bend_of(*terms, num_neighbors=2):
    return Bend(3, num_neighbors).adding(coefficients(*terms))


BEND = bend_of((1, 0, 0, 0.4), (2, 0, 1, 0.1), (2, 1, 1, -0.3), (2, 1, 2, 0.2), (1, 0, 1, -0.1))


def test_products_squares_and_scales_are_added():
    z = jnp.array([0.5, -2.0, 3.0])
    w, log_det = bend_of((1, 0, 0, 0.4), (2, 0, 1, 0.1), (2, 1, 2, 0.2))(z)
    scale = np.exp(MAX_LOG_SCALE * np.tanh(0.2 * -2.0 / MAX_LOG_SCALE))
    np.testing.assert_allclose(w, [0.5, -2.0 + 0.4 * (0.25 - 1.0), 3.0 * scale + 0.1 * 0.5 * -2.0], rtol=1e-12)
    assert log_det == pytest.approx(np.log(scale))


def test_the_inverse_leads_back_from_anywhere_and_the_map_is_linear_far_out():
    for z in POINTS:
        np.testing.assert_allclose(BEND.invert(BEND(z)[0]), z, atol=1e-12)
    z = jnp.array([3.0 * CLIP_AT, -2.0 * CLIP_AT, 1.0])
    near, far = (BEND(z.at[2].set(value))[0] for value in (1.0, 2.0))
    np.testing.assert_allclose(BEND(z.at[2].set(3.0))[0] - far, far - near, atol=1e-12)


@pytest.mark.parametrize("z", POINTS)
def test_volume_and_gradients_are_those_of_the_jacobian(z):
    jacobian = jax.jacobian(lambda z: BEND(z)[0])(z)
    assert BEND(z)[1] == pytest.approx(np.linalg.slogdet(jacobian)[1])
    score = jnp.array([0.2, -0.4, 1.3])
    expected = jnp.linalg.solve(jacobian.T, score - jax.grad(lambda z: BEND(z)[1])(z))
    np.testing.assert_allclose(BEND.pull_back(z, score), expected, atol=1e-12)


def test_coefficients_of_the_same_term_add_up_and_the_largest_neighbors_are_kept():
    bend = bend_of((1, 0, 0, 0.4), (2, 0, 0, 0.1), (2, 1, 2, 0.05), num_neighbors=1)
    more = bend.adding(coefficients((1, 0, 0, -0.1), (2, 1, 1, 0.3)))
    assert np.asarray(more.neighbors.value)[:, 0].tolist() == [0, 0, 1]
    np.testing.assert_allclose(np.asarray(more.quadratic.value)[:, 0, 0], [0.0, 0.3, 0.3])
    np.testing.assert_allclose(np.asarray(more.scale.value)[:, 0], 0.0, atol=1e-15)


def test_nothing_of_it_is_trained():
    assert not jax.tree.leaves(eqx.filter(trained(BEND)[0], eqx.is_inexact_array))
