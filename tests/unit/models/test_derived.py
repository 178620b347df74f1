import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from bernflow.errors import ModelError
from bernflow.models import Model, from_log_density

PRIOR = {"a": dist.Normal(0, 1), "b": dist.HalfNormal(1)}


def make(derived):
    return Model(
        prior=PRIOR,
        likelihood=lambda th, x: dist.Normal(th["a"] * x, th["b"]),
        y=np.ones(3),
        x=np.arange(3.0),
        derived=derived,
    )


def test_a_model_derives_quantities_also_of_its_data():
    theta = {"a": jnp.array(2.0), "b": jnp.array(4.0)}
    found = make(lambda th, x: {"ratio": th["a"] / th["b"], "mean": th["a"] * x}).deterministic(theta)
    assert float(found["ratio"]) == 0.5
    np.testing.assert_array_equal(found["mean"], [0.0, 2.0, 4.0])
    assert make(None).deterministic(theta) == {}
    density = from_log_density(lambda th: -(th["a"] ** 2) / 2, {"a": 1.0}, derived=lambda th: {"square": th["a"] ** 2})
    assert float(density.deterministic(theta)["square"]) == 4.0
    bare = from_log_density(lambda x: -(x**2).sum() / 2, np.zeros(2), derived=lambda x: {"norm": jnp.linalg.norm(x)})
    assert float(bare.deterministic({"x": jnp.array([3.0, 4.0])})["norm"]) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("derived", "message"),
    [
        ({"ratio": 1.0}, "derived is a dict: expected a function of the parameters that returns a dict"),
        (lambda th: th["a"], "given as derived did not return a dict: expected quantities by name"),
        (lambda th: {"a": th["a"]}, "derived returned 'a', which the model already defines"),
        (lambda th: {"y": th["a"]}, "derived returned 'y', which the model already defines"),
        (lambda th: {"r": th["c"]}, "given as derived failed with KeyError"),
    ],
)
def test_what_is_no_function_of_the_parameters_is_refused(derived, message):
    with pytest.raises(ModelError, match=message):
        make(derived)
