import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

from bernflow.errors import ModelError
from bernflow.models import from_log_density
from bernflow.preflight import starting_points
from bernflow.target import Target


def gamma(theta):
    return 2 * jnp.log(theta["s"]) - theta["s"]


def test_named_parameters():
    with jax.enable_x64(True):
        model = from_log_density(gamma, {"s": 1}, {"s": constraints.positive})
        assert model.sites[0].shape == ()
        theta = {"s": jnp.array(2.0)}
        np.testing.assert_allclose(model.log_density(theta), 2 * np.log(2) - 2)
        assert set(model.log_terms(theta)) == {"log_density"}
        assert model.sample_prior(jax.random.key(0)) is None
        assert model.observed() == model.log_likelihood(theta) == model.deterministic(theta) == {}
        assert model.support_of("s", {}) is constraints.positive
        x = jnp.array([np.log(2.0)])
        np.testing.assert_allclose(Target(model).log_density(x), 3 * np.log(2) - 2)


def test_bare_array_and_start():
    model = from_log_density(lambda x: -jnp.sum(x**2), np.array([1.0, 2.0, 3.0]))
    assert [site.name for site in model.sites] == ["x"]
    starts = starting_points(Target(model), jax.random.key(0), 3)
    np.testing.assert_allclose(starts[0], [1.0, 2.0, 3.0])
    positive = from_log_density(lambda x: -jnp.sum(x), np.ones(2), constraints.positive)
    np.testing.assert_allclose(starting_points(Target(positive), jax.random.key(0), 1), [[0.0, 0.0]])


def test_predict_is_refused():
    model = from_log_density(gamma, {"s": 1.0}, {"s": constraints.positive})
    with pytest.raises(ModelError, match="cannot predict, because it does not define how to simulate data"):
        model.predict(jax.random.key(0), {"s": jnp.ones(())})


def fails(theta):
    raise RuntimeError("inside")


@pytest.mark.parametrize(
    ("logp", "init", "support", "match"),
    [
        (3, {"s": 1.0}, None, "logp is a int: expected a function"),
        (
            gamma,
            {"s": 1.0},
            {"t": constraints.positive},
            "support names 't', which init does not have.* among 's'",
        ),
        (gamma, {"s": 1.0}, constraints.positive, "support is one constraint, but init is a dict"),
        (gamma, {"s": 1.0}, {"s": "positive"}, r"support\['s'\] is a str: expected a constraint"),
        (gamma, {"s": 1.0}, {"s": constraints.boolean}, "'s' is discrete"),
        (gamma, {"s": -1.0}, {"s": constraints.positive}, r"init\['s'\] = -1. lies outside its support"),
        (gamma, {"s": np.nan}, None, r"init\['s'\] has 1 NaN"),
        (gamma, {"s": "a"}, None, r"init\['s'\] has dtype <U1: expected real numbers"),
        (gamma, {"s": 1.0 + 1j}, None, r"init\['s'\] has dtype complex128: expected real numbers"),
        (
            gamma,
            {"s": np.ones(3)},
            {"s": constraints.positive},
            r"returned an array of shape \(3,\).* expected one float",
        ),
        (lambda th: jnp.array(1), {"s": 1.0}, None, "dtype int32: expected one float"),
        (lambda th: None, {"s": 1.0}, None, "returned a NoneType: expected one float"),
        (fails, {"s": 1.0}, None, "The log density 'fails' failed with RuntimeError: inside"),
        (
            gamma,
            {"s": np.float64(1.0)},
            {"s": constraints.corr_cholesky},
            r"check of init\['s'\] against .* failed",
        ),
    ],
)
def test_refused(logp, init, support, match):
    with pytest.raises(ModelError, match=match):
        from_log_density(logp, init, support)
