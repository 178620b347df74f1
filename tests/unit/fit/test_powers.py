"""Tails that fall like a power are told from all others, along the axes of a start and on either side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.fit import engine
from bernflow.fit.powers import find_powers
from bernflow.fit.start import Gaussian
from bernflow.flows.tails import POWER_UNIT
from bernflow.target import Target


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def student(x, degrees):
    return -0.5 * (degrees + 1.0) * jnp.log1p(x**2 / degrees)


TAILS = {
    "normal": (lambda x: -0.5 * x**2, (0.0, 0.0)),
    "logistic": (lambda x: -jnp.abs(x) - 2.0 * jnp.log1p(jnp.exp(-jnp.abs(x))), (0.0, 0.0)),
    "three degrees": (lambda x: student(x, 3.0), (1 / 3, 1 / 3)),
    "Cauchy": (lambda x: student(x, 1.0), (1.0, 1.0)),
    "thirty degrees": (lambda x: student(x, 30.0), (0.0, 0.0)),
    "one side": (lambda x: jnp.where(x > 0.0, student(x, 2.0), -0.5 * x**2), (0.0, 0.5)),
    "flat": (lambda x: 0.0 * x, (0.0, 0.0)),
    "not a number": (lambda x: jnp.where(jnp.abs(x) > 50.0, jnp.nan, student(x, 3.0)), (0.0, 0.0)),
    "falls slower than any power": (lambda x: -jnp.log1p(jnp.log1p(x**2)), (0.0, 0.0)),
}


def target_of(*names):
    def log_density(theta):
        return sum(TAILS[name][0](theta["x"][i]) for i, name in enumerate(names))

    return Target(bf.from_log_density(log_density, init={"x": jnp.zeros(len(names))}))


def powers_of(target, loc, scale):
    return find_powers(target, Gaussian(np.asarray([loc]), np.diag(scale)[None], np.zeros(1)))[0]


@pytest.mark.parametrize("name", TAILS)
def test_the_power_of_a_tail(name):
    np.testing.assert_allclose(powers_of(target_of(name), [0.3], [0.7]), [TAILS[name][1]], rtol=0.01)


def test_every_axis_and_side_has_its_own_whatever_the_units():
    names = ("normal", "three degrees", "one side", "logistic")
    found = powers_of(target_of(*names), [0.1, -0.5, 0.2, 0.0], [1.0, 0.1, 3.0, 2.0])
    np.testing.assert_allclose(found, [TAILS[name][1] for name in names], rtol=0.02)


def test_each_of_several_starts_is_looked_at():
    target = target_of("normal", "three degrees")
    # The axes of the second start are those of the first, exchanged.
    factors = np.stack([np.eye(2), np.eye(2)[::-1]])
    found = find_powers(target, Gaussian(np.zeros((2, 2)), factors, np.zeros(2)))
    np.testing.assert_allclose(found, [[[0, 0], [1 / 3, 1 / 3]], [[1 / 3, 1 / 3], [0, 0]]], rtol=0.01)


def test_a_density_that_has_fallen_is_not_followed():
    seen = []

    def log_density(theta):
        jax.debug.callback(lambda x: seen.append(np.max(np.abs(x))), theta["x"])
        return -0.5 * jnp.sum(theta["x"] ** 2)

    powers_of(Target(bf.from_log_density(log_density, init={"x": jnp.zeros(2)})), [0.0, 0.0], [1.0, 1.0])
    jax.effects_barrier()
    assert seen
    assert max(seen) < 100.0


@pytest.mark.filterwarnings("ignore:bernflow:UserWarning")
@pytest.mark.parametrize("dim", [2, pytest.param(80, marks=pytest.mark.slow)])
def test_flows_get_the_powers_and_other_flows_stay_what_they_are(dim):
    target = target_of(*["three degrees"] * dim)
    post = bf.fit(target.model, steps=1, progress=False)
    assert np.asarray(tails_of(post.distribution))[:, 2:].min() > 1.0
    mean_field = bf.fit(target.model, family="bernstein-meanfield", steps=1, progress=False)
    assert np.asarray(tails_of(mean_field.distribution))[:, 2:].min() > 1.0
    plain = bf.fit(target.model, family="gaussian", steps=1, progress=False)
    assert not hasattr(plain.distribution, "tails")
    logistic = bf.fit(target.model, training=bf.Training(base="logistic"), steps=1, progress=False)
    assert np.abs(np.asarray(tails_of(logistic.distribution))).max() < 0.1


@pytest.mark.filterwarnings("ignore:bernflow:UserWarning")
def test_very_many_dimensions_have_no_matrix_of_axes(monkeypatch):
    monkeypatch.setattr(engine, "find_powers", None)
    monkeypatch.setattr(engine, "is_dense", lambda dim: False)
    for family in ("bernstein", "bernstein-meanfield"):
        bf.fit(target_of("three degrees", "normal").model, family=family, steps=1, progress=False)


def tails_of(flow):
    return flow.tails if hasattr(flow, "tails") else jnp.concatenate([flow.leaders.tails, flow.followers.tails])


def test_heavy_tails_are_those_of_the_posterior():
    """Without a look at the far density h ends between 0.06 and 0.1, where 1/3 is right."""
    target = target_of(*["three degrees"] * 3)
    post = bf.fit(target.model, progress=False)
    assert POWER_UNIT * np.asarray(post.distribution.tails)[:, 2:].min() > 0.25
    assert post.diagnostics.khat < 0.5
    assert post.diagnostics.verdict == "good"
