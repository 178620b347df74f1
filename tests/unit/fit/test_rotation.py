"""The axes along which a covariance changes are found where scales could not follow it otherwise, and only there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import bernflow as bf
from bernflow.fit import engine
from bernflow.fit.rotation import find_rotation
from bernflow.fit.start import Gaussian
from bernflow.target import Target

NUM = 6
# How much the log precision along each axis changes with the leader.
RATES = np.array([1.5, -1.2, 0.9, -0.6, 0.3, 0.1])


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def random_axes(num, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(num, num)))[0]


def target_of(axes, rates):
    """A standard normal leader, and normal followers whose precision along each axis depends on it."""

    def log_density(theta):
        leader, followers = theta["x"][0], theta["x"][1:]
        log_precision = jnp.asarray(rates) * leader
        return -0.5 * leader**2 + jnp.sum(
            0.5 * log_precision - 0.5 * jnp.exp(log_precision) * (axes.T @ followers) ** 2
        )

    return Target(bf.from_log_density(log_density, init={"x": jnp.zeros(len(rates) + 1)}))


def standard(dim):
    return Gaussian(np.zeros(dim), np.eye(dim), np.zeros(()))


def test_axes_of_a_covariance_that_changes_are_found():
    axes = random_axes(NUM)
    found = find_rotation(target_of(axes, RATES), standard(NUM + 1), 1)
    np.testing.assert_allclose(found.T @ found, np.eye(NUM), atol=1e-10)
    # Up to order and sign.
    np.testing.assert_allclose(np.sort(np.max(np.abs(found.T @ axes), axis=0)), np.ones(NUM), atol=1e-4)


def test_axes_are_those_of_the_start_in_whatever_units():
    axes, scale = random_axes(NUM), np.array([1.0, 1e-3, 1e3, 1.0, 5.0, 0.1, 2.0])
    plain = target_of(axes, RATES)
    units = Target(bf.from_log_density(lambda theta: plain.log_density(theta["x"] / scale), init={"x": jnp.zeros(7)}))
    found = find_rotation(units, Gaussian(np.zeros(7), np.diag(scale), np.zeros(())), 1)
    np.testing.assert_allclose(np.sort(np.max(np.abs(found.T @ axes), axis=0)), np.ones(NUM), atol=1e-4)


@pytest.mark.parametrize(
    ("axes", "rates"),
    [
        (np.eye(NUM), RATES),
        (random_axes(NUM), 0.0 * RATES),
        (random_axes(NUM), 0.05 * RATES),
        (random_axes(NUM), np.ones(NUM)),
    ],
    ids=["axes are right", "nothing changes", "little changes", "all scales change alike"],
)
def test_no_rotation_where_none_is_needed(axes, rates):
    assert find_rotation(target_of(axes, rates), standard(NUM + 1), 1) is None


def test_no_rotation_where_there_is_no_density():
    def log_density(theta):
        return jnp.where(jnp.abs(theta["x"][0]) > 0.1, jnp.nan, -0.5 * jnp.sum(theta["x"] ** 2))

    assert find_rotation(Target(bf.from_log_density(log_density, init={"x": jnp.zeros(4)})), standard(4), 1) is None


@pytest.mark.filterwarnings("ignore:bernflow:UserWarning")
def test_a_flow_of_many_dimensions_gets_the_axes_and_is_kept_with_them(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "structured_start", lambda *args: None)  # as if no structure were seen
    num = 79
    axes, rates = random_axes(num), np.linspace(-1.0, 1.0, num)

    def log_density(theta):
        log_precision = jnp.asarray(rates) * jnp.log(theta["scale"])
        return (
            -0.5 * jnp.log(theta["scale"]) ** 2
            - jnp.log(theta["scale"])
            + jnp.sum(0.5 * log_precision - 0.5 * jnp.exp(log_precision) * (axes.T @ theta["x"]) ** 2)
        )

    model = bf.from_log_density(
        log_density, init={"scale": jnp.ones(()), "x": jnp.zeros(num)}, support={"scale": constraints.positive}
    )
    post = bf.fit(model, steps=50, progress=False)
    rotation = np.asarray(post.distribution.rotation)
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(len(rotation)), atol=1e-8)
    assert np.abs(rotation - np.eye(len(rotation))).max() > 0.1
    again = bf.load(post.save(tmp_path / "kept.bernflow"), model=model)
    np.testing.assert_array_equal(again.draws(5, key=1)["x"], post.draws(5, key=1)["x"])
