import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError
from bernflow.keys import as_key, spawn
from bernflow.plots import plot_posterior, plot_predictive
from bernflow.precision import float_dtype, resolve_precision, use_precision

STRICT = {
    "jax_transfer_guard": "disallow_explicit",
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_check_tracer_leaks": True,
    "jax_disable_jit": True,
}


@pytest.fixture
def strict():
    """Switch on, for the whole process, what JAX has to find errors in other code."""
    before = {name: getattr(jax.config, name) for name in STRICT}
    for name, value in STRICT.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ArgumentError, match="precision='half' is unknown"):
        resolve_precision("half")


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_computations_do_not_depend_on_the_settings_of_the_user(strict, precision):
    outside = {name: getattr(jax.config, name) for name in STRICT}
    with use_precision(precision):
        values = jnp.ones((2, 1)) + np.arange(3)
        assert values.dtype == float_dtype() == precision
        assert np.isnan(jax.jit(jnp.log)(np.float32(-1.0)))
    assert {name: getattr(jax.config, name) for name in STRICT} == outside


def test_keys_are_made_where_transfers_are_forbidden(strict):
    key = as_key(3)
    with use_precision("float64"):
        expected = [jax.random.key_data(key).tolist() for key in spawn(key, 2)]
    assert [np.asarray(jax.random.key_data(key)).tolist() for key in spawn(as_key(3), 2)] == expected


def declared():
    prior = {"b": dist.Normal(0.0, 1.0)}
    return bf.Model(prior=prior, likelihood=lambda th, x: dist.Normal(th["b"] * x, 1.0), x=np.arange(3.0), y=np.ones(3))


def density():
    return bf.from_log_density(lambda th: -0.5 * jnp.sum((th["b"] - np.arange(3.0)) ** 2), {"b": 0.0})


@pytest.mark.filterwarnings("ignore:bernflow:UserWarning")
@pytest.mark.parametrize("make", [declared, density])
def test_a_fit_under_strict_settings_is_that_without_them(request, make):
    def draws():
        post = bf.fit(make(), family="gaussian", steps=50, progress=False)
        if make is declared:
            plot_posterior(post)
            plot_predictive(post, num=5)
        return post.draws(5)["b"]

    expected = draws()
    request.getfixturevalue("strict")
    np.testing.assert_array_equal(draws(), expected)


def test_an_array_is_one_constant_in_each_precision():
    """JAX alone would give the constant of the first precision to functions that are traced in the second."""
    values = np.linspace(0.0, 1.0, 5)
    kept = []
    for precision in ("float32", "float64", "float32"):
        with use_precision(precision):
            function = jax.jit(lambda x: x * values)
            assert function(jnp.ones(())).dtype == precision
        kept.append(function)
    assert jax.jit(lambda x: x * values)(np.float32(1.0)).dtype == np.float32
