import jax
import numpy as np
import pytest

from bernflow.models.host import host_call

RESULTS = [jax.ShapeDtypeStruct((2,), np.float64), jax.ShapeDtypeStruct((), np.int64)]


def divide(a, b):
    return [a / b, a.size]


@jax.jit
def one_many_grid(a, b, pair):
    one = host_call(divide, RESULTS, a[0], b)
    many = jax.vmap(lambda a: host_call(divide, RESULTS, a, b)[0])(a)
    grid = jax.vmap(lambda b: jax.vmap(lambda a: host_call(divide, RESULTS, a, b)[0])(a))(pair)
    return one, many, grid


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_arrive_and_return_as_they_are(dtype):
    # Many rows: a long call does not run in the thread that asked for it, so that its precision does not hold there.
    a = np.arange(1.0, 20_001.0).reshape(-1, 2).astype(dtype)
    b = np.array([3.0, 7.0], dtype)
    with jax.enable_x64(dtype == "float64"):
        (one, size), many, grid = jax.tree.map(np.asarray, one_many_grid(a, b, np.stack([b, 2 * b])))
    assert one.dtype == many.dtype == grid.dtype == dtype
    assert size == 2
    assert np.array_equal(one, a[0] / b)
    assert np.array_equal(many, a / b)
    assert np.array_equal(grid, np.stack([a / b, a / (2 * b)]))
