import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from bernflow.errors import ModelError
from bernflow.models.supports import check_observed, describe, is_factor, probe, start_value, unwrap


def test_probe_traces_only_what_depends_on_the_key():
    seen = {}

    def visit(key):
        value = jax.random.normal(key)
        seen["dependent"] = describe("u", (), dist.Uniform(0, jnp.exp(value)).support)
        seen["fixed"] = describe("v", (2,), dist.Uniform(0, jnp.max(jnp.array([1.0, 3.0]))).support)

    probe(visit)
    assert seen["dependent"].support is None
    assert isinstance(seen["fixed"].support.upper_bound, np.ndarray)
    assert seen["fixed"].support.upper_bound == 3.0


def test_start_value_lies_inside():
    fn = dist.ImproperUniform(constraints.ordered_vector, (2,), (3,))
    value = start_value(jax.random.key(0), "v", fn)
    assert value.shape == (2, 3)
    assert np.all(np.diff(value) > 0)
    assert start_value(jax.random.key(0), "v", dist.HalfNormal(1), (4,)).shape == (4,)


def test_wrapped_factor_is_recognized():
    unit = dist.Unit(jnp.zeros(3))
    assert is_factor(unit.mask(True))
    assert is_factor(unit.expand([2, 3]))
    assert not is_factor(dist.Normal(0, 1).expand([2]).to_event(1))
    assert isinstance(unwrap(dist.Normal(0, 1).expand([2]).to_event(1)), dist.Normal)


@pytest.mark.parametrize(
    ("fn", "value"),
    [
        (dist.Exponential(1.0), [0.0, 2.0]),
        (dist.Beta(2.0, 2.0), [0.0, 1.0]),
        (dist.Uniform(0.0, 0.3), [0.3]),
        (dist.Bernoulli(0.3), [0, 1]),
        (dist.Poisson(3.0), [0, 100]),
        (dist.VonMises(0.0, 1.0), [6.0]),
        (dist.Exponential(1.0).mask(np.array([True, False])), [1.0, -1.0]),
        (dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)), [[1.0, -1.0]]),
        (dist.Dirichlet(jnp.ones(2)), [[0.5, 0.5]]),
    ],
)
def test_data_inside_pass(fn, value):
    check_observed("y", fn, np.array(value))


@pytest.mark.parametrize(
    ("fn", "value", "match"),
    [
        (
            dist.Exponential(1.0),
            [1.0, -1.0, -2.0],
            r"y has 2 values outside .*Exponential\), the first at index \(1,\) \(-1.0\)",
        ),
        (dist.Beta(2.0, 2.0), [0.5, 1.5], r"1 values outside the support .* index \(1,\)"),
        (dist.Bernoulli(0.3), [1, 2], r"the first at index \(1,\) \(2\)"),
        (dist.Poisson(3.0), [0.5], "1 values outside"),
        (dist.Binomial(np.array([3, 5]), 0.5), [4, 4], r"the first at index \(0,\)"),
        (
            dist.HalfNormal(1.0).expand([2]).to_event(1),
            [[1.0, 2.0], [3.0, -1.0]],
            r"HalfNormal\), .* \(1, 1\)",
        ),
        (dist.TruncatedNormal(0.0, 1.0, high=2.0), [3.0], "1 values outside"),
    ],
)
def test_data_outside_are_refused(fn, value, match):
    with pytest.raises(ModelError, match=match):
        check_observed("y", fn, np.array(value))


def test_bound_that_depends_on_parameters_is_not_judged():
    probe(lambda key: check_observed("y", dist.Uniform(0, jax.random.uniform(key)), np.array([3.0])))
