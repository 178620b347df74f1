import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from bernflow import preflight as preflight_module
from bernflow.errors import ModelError
from bernflow.models import Model, from_log_density
from bernflow.precision import use_precision
from bernflow.preflight import check_output, preflight, starting_points, usable_starts
from bernflow.target import Target

KEY = jax.random.key(0)


def make(y=(1.0, 2.0), prior=None, likelihood=None):
    prior = prior or {"m": dist.Normal(0, 1), "s": dist.HalfNormal(1)}
    likelihood = likelihood or (lambda th: dist.Normal(th["m"], th["s"]))
    return Target(Model(prior=prior, likelihood=likelihood, y=np.array(y)))


def test_starts_mix_uniform_and_prior():
    target = make(prior={"m": dist.Normal(100, 1), "s": dist.HalfNormal(1)})
    starts = starting_points(target, KEY, 7)
    assert starts.shape == (7, 2)
    assert np.all(np.abs(starts[:4]) < 2)
    np.testing.assert_array_equal(starts[1::2][:2], -starts[:4:2])  # in mirrored pairs
    assert np.all(starts[4:, 1] > 90)
    assert starting_points(target, KEY, 1).shape == (1, 2)
    np.testing.assert_array_equal(starts, starting_points(target, KEY, 7))


def test_prior_draws_that_overflow_are_replaced():
    target = make(prior={"m": dist.Normal(0, 1), "s": dist.Gamma(1e-6, 1.0)})
    starts = starting_points(target, KEY, 20)
    assert np.all(np.isfinite(starts))


def test_starts_follow_the_precision():
    with jax.enable_x64(True):
        assert starting_points(make(), KEY, 4).dtype == jnp.float64


def test_usable_starts_are_kept():
    target = Target(from_log_density(lambda x: jnp.where(x > 0, -x, -jnp.inf), 1.0))
    usable = preflight(target, jnp.array([[1.0], [-1.0], [2.0]]))
    np.testing.assert_array_equal(usable, [[1.0], [2.0]])


def in_a_ball(dim=5, radius=0.2):
    """Return a density that is finite in a small ball only."""

    def log_density(x):
        square = jnp.sum(x**2)
        return jnp.where(square < radius**2, -square, -jnp.inf)

    return Target(from_log_density(log_density, np.ones(dim)))


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("num", [2, 8])
def test_if_no_start_is_usable_others_closer_to_zero_are_tried(precision, num):
    with use_precision(precision):
        target = in_a_ball()
        starts = starting_points(target, KEY, num)
        with pytest.raises(ModelError, match=f"not finite at any of {num} starting points"):
            preflight(target, starts)
        found = usable_starts(target, starts, KEY)
        assert found.shape == (num, 5)
        assert found.dtype == precision
        assert np.all(np.sum(found**2, axis=1) < 0.2**2)
        np.testing.assert_array_equal(found, usable_starts(target, starts, KEY))


def test_the_origin_is_tried_last():
    target = in_a_ball(radius=1e-3)
    np.testing.assert_array_equal(usable_starts(target, starting_points(target, KEY, 8), KEY), np.zeros((8, 5)))


def test_usable_starts_come_first_and_replace_the_others(monkeypatch):
    calls = []
    real = preflight_module._values_and_gradients
    monkeypatch.setattr(preflight_module, "_values_and_gradients", lambda *a: calls.append(1) or real(*a))
    target = Target(from_log_density(lambda x: jnp.where(x > 0, -x, -jnp.inf), 1.0))
    found = usable_starts(target, jnp.array([[-3.0], [1.0], [-1.0], [2.0], [-2.0]]), KEY)
    np.testing.assert_array_equal(found, [[1.0], [2.0], [1.0], [2.0], [1.0]])
    assert len(calls) == 1  # no other points are evaluated
    found = usable_starts(target, jnp.array([[3.0], [1.0]]), KEY)
    np.testing.assert_array_equal(found, [[3.0], [1.0]])


def test_a_model_is_refused_after_so_many_points():
    target = make(y=[1.0, 0.0], likelihood=lambda th: dist.LogNormal(th["m"], th["s"]))
    with pytest.raises(ModelError, match=r"any of 104 starting points: the term of 'y' is (nan|-inf) at 104 of 104"):
        usable_starts(target, starting_points(target, KEY, 8), KEY)

    def logp(theta):
        return -jnp.sqrt(jnp.sum(theta["b"] * 0)) - theta["a"] ** 2

    target = Target(from_log_density(logp, {"a": 0.0, "b": np.zeros(2)}))
    with pytest.raises(ModelError, match=r"gradient is not finite at any of 104 starting points, in the direction of"):
        usable_starts(target, starting_points(target, KEY, 8), KEY)


def test_start_on_the_edge():
    target = Target(from_log_density(lambda x: -x, 0.0, constraints.nonnegative))
    with pytest.raises(ModelError, match="lies on the boundary of a support"):
        starting_points(target, KEY, 2)


@pytest.mark.parametrize(
    ("target", "match"),
    [
        (
            make(y=[1.0, 0.0], likelihood=lambda th: dist.LogNormal(th["m"], th["s"])),
            "not finite at any of 6 starting points: the term of 'y' is (nan|-inf) at 6 of 6. Check that the observed",
        ),
        (
            make(prior={"m": lambda th: dist.Normal(0, -th["s"]), "s": dist.HalfNormal(1)}),
            "the term of 'm' is nan at 6 of 6",
        ),
        (
            Target(from_log_density(lambda x: jnp.sum(x) * 0 - jnp.inf, np.ones(2))),
            "the term of 'log_density' is -inf at 6 of 6",
        ),
    ],
)
def test_the_term_at_fault_is_named(target, match):
    with pytest.raises(ModelError, match=match):
        preflight(target, starting_points(target, KEY, 6))


def test_overflow_of_the_transform_and_of_the_sum_are_named():
    flat = Target(from_log_density(lambda x: 0.0 * jnp.exp(-x), 1.0, constraints.positive))
    with pytest.raises(ModelError, match="the map from the unconstrained scale overflows"):
        preflight(flat, jnp.array([[jnp.inf]]))
    big = make(
        prior={"m": dist.Delta(0.0, log_density=3e38), "s": dist.Delta(0.0, log_density=3e38)},
        likelihood=lambda th: dist.Normal(th["m"] * 0, 1),
    )
    with pytest.raises(ModelError, match="every term is finite, but their sum overflows"):
        preflight(big, jnp.zeros((1, 2)))


def test_parameters_with_bad_gradient_are_named():
    def logp(theta):
        return -jnp.sqrt(jnp.sum(theta["b"] * 0)) - theta["a"] ** 2

    target = Target(from_log_density(logp, {"a": 0.0, "b": np.zeros(12)}))
    with pytest.raises(ModelError, match=r"in the direction of 'b\[0\]', 'b\[1\]'.*'b\[7\]' and 4 more. The usual"):
        preflight(target, starting_points(target, KEY, 4))


class NotScalar(type(from_log_density(lambda x: x, 0.0))):
    def log_density(self, theta):
        return jnp.ones(2)


def test_density_must_be_one_float():
    model = from_log_density(lambda x: -(x**2), 0.0)
    target = Target(NotScalar(model.sites, model.start, model.logp, True, None))
    with pytest.raises(ModelError, match=r"log density has shape \(2,\) and dtype float32: expected one float"):
        check_output(target)


def test_error_that_only_appears_now_is_wrapped():
    calls = []

    def moody(x):
        calls.append(x)
        if len(calls) > 1:
            raise RuntimeError("second time")
        return -(x**2)

    with pytest.raises(ModelError, match="The model's log density failed with RuntimeError: second time"):
        check_output(Target(from_log_density(moody, 0.0)))
