"""Densities with a gradient that JAX cannot differentiate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf


@jax.custom_vjp
def gradient(x):
    return -(x - 1.0) / 4.0


gradient.defvjp(lambda x: (gradient(x), None), lambda _, bar: (-bar / 4.0,))


@jax.custom_vjp
def log_density(x):
    return -0.5 * jnp.sum(((x - 1.0) / 2.0) ** 2)


log_density.defvjp(lambda x: (log_density(x), x), lambda x, bar: (bar * gradient(x),))


def test_they_are_fitted_by_differences_of_gradients_which_is_said():
    model = bf.from_log_density(log_density, init=jnp.zeros(2))
    with pytest.warns(UserWarning, match=r"cannot be differentiated \(.*custom_vjp.*Differences of gradients take"):
        post = bf.fit(model, progress=False)
    assert post.diagnostics.verdict == "good"
    # Exact for a Gaussian, whose third derivatives are zero.
    assert post.diagnostics.log_evidence == pytest.approx(np.log(2 * np.pi * 4.0), abs=1e-4)
