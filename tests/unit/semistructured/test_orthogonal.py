import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow.semistructured.orthogonal import find_basis, find_projection, residual


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def columns(seed, num=50):
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 15, num)
    dummies = np.eye(3)[rng.integers(0, 3, num)]
    # All levels of a category and a copy of a column: with the constant the rank is 3, not 5.
    return np.column_stack([age, dummies, 2 * age]), rng


@pytest.mark.parametrize("tail", [(), (2,)])
def test_nothing_linear_is_left(tail):
    matrix, rng = columns(0)
    z = find_basis(matrix)(matrix)
    assert z.shape == (50, 3)
    np.testing.assert_allclose(z.T @ z / 50, np.eye(3), atol=1e-10)
    h = 3.0 + matrix[:, :1] / 10 + rng.normal(size=(50, *(tail or (1,))))
    h = h if tail else h[:, 0]
    rest = np.asarray(residual(jnp.asarray(h), jnp.asarray(z), keep_level=True))
    np.testing.assert_allclose(rest.mean(0), h.mean(0))
    np.testing.assert_allclose((matrix - matrix.mean(0)).T @ rest, 0.0, atol=1e-9)
    without = residual(jnp.asarray(h), jnp.asarray(z), keep_level=False)
    np.testing.assert_allclose(without, rest - h.mean(0), atol=1e-12)
    # What is not linear in the table passes through.
    np.testing.assert_allclose(residual(jnp.asarray(rest), jnp.asarray(z), keep_level=True), rest, atol=1e-10)


@pytest.mark.parametrize("keep_level", [True, False])
def test_new_rows_lose_what_the_training_rows_would(keep_level):
    matrix, rng = columns(0)
    basis = find_basis(matrix)
    z, h = basis(matrix), rng.normal(size=50) + matrix[:, 0] / 7
    projection = find_projection(h, z)
    expected = residual(jnp.asarray(h), jnp.asarray(z), keep_level)
    np.testing.assert_allclose(projection.residual(h, z, keep_level), expected, atol=1e-10)
    # One row alone, which no batch projection could serve.
    one = projection.residual(h[3:4], basis(matrix[3:4]), keep_level)
    np.testing.assert_allclose(one, expected[3:4], atol=1e-10)


def test_an_intercept_alone_takes_out_the_level():
    basis = find_basis(np.zeros((4, 0)))
    h, z = np.arange(4.0), basis(np.zeros((4, 0)))
    np.testing.assert_allclose(residual(jnp.asarray(h), jnp.asarray(z), keep_level=False), h - 1.5)
    np.testing.assert_allclose(find_projection(h, z).residual(h[:1], z[:1], keep_level=False), [-1.5])


def test_a_batch_without_a_category_is_no_problem():
    matrix, rng = columns(0, 200)
    z = find_basis(matrix)(matrix)
    batch = np.flatnonzero(matrix[:, 1] == 0)[:40]
    h = jnp.asarray(rng.normal(size=40))
    rest = residual(h, jnp.asarray(z[batch]), keep_level=True)
    part = matrix[batch] - matrix[batch].mean(0)
    np.testing.assert_allclose(part.T @ rest, 0.0, atol=1e-8)
    gradient = jax.grad(lambda h: jnp.sum(residual(h, jnp.asarray(z[batch]), keep_level=True) ** 2))(h)
    assert np.all(np.isfinite(gradient))
