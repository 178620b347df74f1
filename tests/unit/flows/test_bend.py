"""Quadratic dependence of noise on earlier noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow.flows.base import trained
from bernflow.flows.bend import CLIP_AT, Bend
from bernflow.precision import use_precision


@pytest.fixture(autouse=True)
def _double_precision():
    with use_precision("float64"):
        yield


def bend_of(*terms, num_terms=4):
    """Terms (i, j, k, coefficient)."""
    rows = np.array(terms)
    return Bend(num_terms).adding((rows[:, :3].T.astype(int), rows[:, 3]))


def test_products_and_squares_are_added():
    z = jnp.array([0.5, -2.0, 3.0])
    found = bend_of((1, 0, 0, 0.4), (2, 0, 1, 0.1))(z)
    np.testing.assert_allclose(found, [0.5, -2.0 + 0.4 * (0.25 - 1.0), 3.0 + 0.1 * 0.5 * -2.0], rtol=1e-12)


def test_the_inverse_leads_back_from_anywhere_and_the_map_is_linear_far_out():
    bend = bend_of((1, 0, 0, 0.4), (2, 0, 1, 0.1), (2, 1, 1, -0.3))
    z = jnp.array([3.0 * CLIP_AT, -2.0 * CLIP_AT, 1.0])
    np.testing.assert_allclose(bend.invert(bend(z)), z, atol=1e-12)
    np.testing.assert_allclose(bend(2.0 * z) - 2.0 * z, bend(z) - z, atol=1e-12)


def test_gradients_are_pulled_back_by_the_jacobian():
    bend = bend_of((1, 0, 0, 0.4), (2, 0, 1, 0.1), (2, 1, 1, -0.3))
    for z in (jnp.array([0.3, -1.2, 0.4]), jnp.array([5.0, 0.7, -0.2])):
        covector = jnp.array([0.2, -0.4, 1.3])
        jacobian = jax.jacobian(bend)(z)
        assert np.linalg.det(jacobian) == pytest.approx(1.0)
        np.testing.assert_allclose(bend.pull_back(z, covector), jnp.linalg.solve(jacobian.T, covector), atol=1e-12)


def test_coefficients_of_the_same_term_add_up_and_the_largest_terms_are_kept():
    bend = bend_of((1, 0, 0, 0.4), (2, 0, 1, 0.1), num_terms=2)
    more = bend.adding((np.array([[1, 2], [0, 1], [0, 1]]), np.array([-0.1, 0.2])))
    kept = dict(zip(map(tuple, np.asarray(more.terms.value).T), np.asarray(more.coefficients.value), strict=True))
    assert kept == pytest.approx({(1, 0, 0): 0.3, (2, 1, 1): 0.2})


def test_nothing_of_it_is_trained():
    assert not jax.tree.leaves(eqx.filter(trained(bend_of((1, 0, 0, 0.4)))[0], eqx.is_inexact_array))
