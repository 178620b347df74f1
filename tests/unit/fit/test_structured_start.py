"""When a fit is split into globals and locals, and when it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.fit import structured_start as structured_start_module
from bernflow.fit.differences import DifferencedTarget
from bernflow.fit.settings import resolve_settings
from bernflow.fit.structured_start import structured_start
from bernflow.keys import as_key
from bernflow.precision import use_precision
from bernflow.target import Target

SETTINGS = resolve_settings()


@pytest.fixture(autouse=True)
def _double_precision():
    with use_precision("float64"):
        yield


def start_of(log_density, dim=40):
    return structured_start(Target(bf.from_log_density(log_density, init=jnp.zeros(dim))), SETTINGS, as_key(0))


def groups(x):
    return -0.5 * jnp.sum(x[:2] ** 2) - 0.5 * jnp.sum(((x[2:] - x[1]) / jnp.exp(x[0])) ** 2) - 38 * x[0]


def test_groups_are_split_and_the_start_is_a_stack_of_one_flow():
    flow = start_of(groups)
    assert flow.structure.leaders == (0, 1)
    assert flow.locals.drift.shift.shape == (1, 38)


def test_independent_parameters_are_not_split():
    assert start_of(lambda x: -0.5 * jnp.sum(x**2)) is None


def test_a_dense_posterior_of_few_dimensions_is_not_split():
    assert start_of(lambda x: -0.5 * jnp.sum(x**2) - jnp.sum(x) ** 4) is None


@jax.custom_vjp
def once(x):
    """The density of `groups` with a gradient that JAX cannot differentiate."""
    return groups(x)


once.defvjp(lambda x: (once(x), x), lambda x, bar: (bar * jax.grad(groups)(x),))


def test_structure_is_seen_by_differences_where_there_are_no_second_derivatives():
    target = Target(bf.from_log_density(once, init=jnp.zeros(40)))
    with pytest.raises(TypeError, match="custom_vjp"):
        structured_start(target, SETTINGS, as_key(0))
    differenced = DifferencedTarget(target.model)
    assert structured_start(differenced, SETTINGS, as_key(0)).structure == start_of(groups).structure
    x, v = np.random.default_rng(0).normal(size=(2, 40))
    exact = jax.jvp(jax.grad(groups), (x,), (v,))
    found = jax.jit(lambda x, v: jax.jvp(jax.grad(differenced.log_density), (x,), (v,)))(x, v)
    np.testing.assert_allclose(found[0], exact[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], exact[1], atol=1e-8 * np.abs(exact[1]).max())


def test_a_structure_that_cannot_be_seen_is_said(monkeypatch):
    def fails(*args):
        raise RuntimeError("no luck")

    monkeypatch.setattr(structured_start_module, "see_structure", fails)
    target = DifferencedTarget(bf.from_log_density(groups, init=jnp.zeros(40)))
    with pytest.warns(UserWarning, match=r"all 40 parameters are fitted together: .*RuntimeError: no luck"):
        assert structured_start(target, SETTINGS, as_key(0)) is None


def latent_process(num):
    """A Gaussian process with an unknown length scale, as the first dimension."""
    points = np.linspace(0.0, 1.0, num)

    def log_density(x):
        kernel = jnp.exp(-((points[:, None] - points) ** 2) / jnp.exp(x[0])) + 0.1 * jnp.eye(num)
        whitened = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(kernel), x[1:], lower=True)
        return -0.5 * x[0] ** 2 - 0.5 * jnp.sum(whitened**2) - jnp.sum(jnp.exp(x[1:]))

    return log_density


def test_a_latent_gaussian_process_is_split_into_its_kernel_and_one_dense_block():
    flow = start_of(latent_process(70), dim=71)
    assert flow.structure.leaders == (0,)
    assert flow.structure.size == 70


def test_a_density_that_factors_very_large_matrices_is_not_split():
    assert start_of(latent_process(600), dim=601) is None
