"""A model of BridgeStan, written out in NumPy: y ~ Normal(mu, tau), mu ~ Normal(0, 1), tau ~ Exponential(1)."""

import copy
import gc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError, ModelError
from bernflow.models.stan import bridge
from bernflow.precision import use_precision
from bernflow.preflight import starting_points, usable_starts
from bernflow.target import Target


class Bridge:
    """The methods that bernflow asks of a bridgestan.StanModel."""

    def __init__(self, y, wall=np.inf):
        self.y, self.wall = np.asarray(y), wall

    def param_names(self, include_tp=False, include_gq=False):
        return ["mu", "tau"] + ["m.1.1", "m.2.1", "m.1.2", "m.2.2"] * include_tp + ["y_rep"] * include_gq

    def param_unc_names(self):
        return ["mu", "tau"]

    def param_unc_num(self):
        return 2

    def log_density(self, x, propto=True, jacobian=True):
        return self.log_density_gradient(x, propto=propto, jacobian=jacobian)[0]

    def log_density_gradient(self, x, propto=True, jacobian=True):
        assert not propto  # the constants belong to the evidence
        (mu, log_tau), tau = x, np.exp(x[1])
        if mu > self.wall:
            raise RuntimeError("mu hit the wall")
        z = (self.y - mu) / tau
        constants = -0.5 * (len(z) + 1) * np.log(2 * np.pi)
        value = constants - 0.5 * np.sum(z**2) - len(z) * log_tau - 0.5 * mu**2 - tau + jacobian * log_tau
        return value, np.array([np.sum(z) / tau - mu, np.sum(z**2) - len(z) - tau + jacobian])

    def param_constrain(self, x, include_tp=False, include_gq=False, rng=None):
        theta = [x[0], np.exp(x[1])]
        return np.array(theta + [11.0, 21.0, 12.0, 22.0] * include_tp + ([rng.normal()] if include_gq else []))

    def param_unconstrain(self, theta):
        if theta[1] <= 0:
            raise RuntimeError("tau is not positive")
        return np.array([theta[0], np.log(theta[1])])

    def new_rng(self, seed):
        return np.random.default_rng(seed)


Y = np.array([0.3, 1.2, -0.4])
X = np.array([0.2, -0.3])


def exact(x):
    tau = jnp.exp(x[1])
    normal = jax.scipy.stats.norm.logpdf
    return jnp.sum(normal(Y, x[0], tau)) + normal(x[0]) - tau + x[1]


@pytest.fixture(scope="module")
def model():
    return bf.from_stan(Bridge(Y))


def test_sites_and_scales(model):
    assert [(site.name, site.shape) for site in model.sites] == [("mu", ()), ("tau", ())]
    assert model.scales() == (False, True)
    assert model.unconstrained_sizes() == (1, 1)
    assert Target(model).layout.names == ("mu", "tau")


def test_a_batch_is_one_call(model, monkeypatch):
    calls, evaluate = [], bridge.ENGINE.evaluate

    def counted(operation, handles, rows, keys, num_out):
        calls.append((operation, rows.shape))
        return evaluate(operation, handles, rows, keys, num_out)

    monkeypatch.setattr(bridge.ENGINE, "evaluate", counted)
    x = jnp.asarray(np.tile(X, (4, 3, 1)))
    f = eqx.filter_jit(lambda m, x: jax.vmap(jax.vmap(jax.value_and_grad(m.log_density_on_reals)))(x))
    assert f(model, x)[1].shape == (4, 3, 2)
    assert calls == [(1, (12, 2))]  # value and gradient together


def test_density_and_derivatives(model):
    with use_precision("float64"):
        x = jnp.asarray(np.stack([X, X + 1.0, X - 1.0]))
        f = eqx.filter_jit(lambda m, x: jax.vmap(jax.value_and_grad(m.log_density_on_reals))(x))
        values, gradients = f(model, x)
        np.testing.assert_allclose(values, jax.vmap(exact)(x), rtol=1e-12)
        np.testing.assert_allclose(gradients, jax.vmap(jax.grad(exact))(x), rtol=1e-12)
        hessian = jax.jit(jax.hessian(lambda x: model.log_density_on_reals(x)))(x[0])
        np.testing.assert_allclose(hessian, jax.hessian(exact)(x[0]), rtol=1e-9)
        np.testing.assert_allclose(jax.jacrev(jax.grad(model.log_density_on_reals))(x[0]), hessian, rtol=1e-14)


def test_maps_and_their_derivatives(model):
    with use_precision("float64"):
        theta, log_jacobian = model.constrain(jnp.asarray(X))
        np.testing.assert_allclose([theta["mu"], theta["tau"], log_jacobian], [X[0], np.exp(X[1]), X[1]], rtol=1e-12)
        np.testing.assert_allclose(model.unconstrain(theta), X, rtol=1e-12)
        assert np.isnan(model.unconstrain({"mu": jnp.zeros(()), "tau": -jnp.ones(())})).all()
        slopes = jax.jacobian(lambda x: model.constrain(x)[0]["tau"])(jnp.asarray(X))
        np.testing.assert_allclose(slopes, [0.0, np.exp(X[1])], rtol=1e-10)
        np.testing.assert_allclose(jax.grad(lambda x: model.constrain(x)[1])(jnp.asarray(X)), [0.0, 1.0], rtol=1e-10)


def test_derived_quantities_are_a_pure_function(model):
    with use_precision("float64"):
        theta = model.constrain(jnp.asarray(X))[0]
        derived = model.deterministic(theta)
        np.testing.assert_array_equal(derived["m"], [[11.0, 12.0], [21.0, 22.0]])
        assert derived["y_rep"] == model.deterministic(theta)["y_rep"]
        first, second = (model.predict(jax.random.key(seed), theta) for seed in (0, 1))
        assert list(first) == ["y_rep"]
        assert first["y_rep"] != second["y_rep"]
        assert first["y_rep"] == model.predict(jax.random.key(0), theta)["y_rep"]
        assert model.log_likelihood(theta) == {}
    assert model.observed() == {}
    with pytest.raises(ModelError, match=r"for new data, make a model with bf.from_stan\(program, data=new_data\)"):
        model.predict(jax.random.key(0), theta, Y)


def test_a_point_where_the_program_throws_has_density_zero():
    model = bf.from_stan(Bridge(Y, wall=0.0))
    value, gradient = jax.value_and_grad(model.log_density_on_reals)(jnp.array([1.0, 0.0]))
    assert np.isneginf(value)
    np.testing.assert_array_equal(gradient, 0.0)


def test_single_precision_rounds_only_what_goes_in_and_out(model):
    with use_precision("float32"):
        value, gradient = jax.jit(jax.value_and_grad(lambda x: model.log_density_on_reals(x)))(jnp.asarray(X))
    assert value.dtype == gradient.dtype == jnp.float32
    x = X.astype(np.float32).astype(float)
    np.testing.assert_allclose([value, *gradient], [exact(x), *jax.grad(exact)(jnp.asarray(x))], rtol=1e-6)


def test_other_data_compile_nothing_anew(model):
    traced = []

    @eqx.filter_jit
    def density(model, x):
        traced.append(1)
        return model.log_density_on_reals(x)

    other = bf.from_stan(Bridge(Y + 1.0))
    with use_precision("float64"):
        assert density(model, jnp.asarray(X)) != density(other, jnp.asarray(X))
    assert len(traced) == 1


def test_a_copy_shares_the_data(model):
    clone = copy.deepcopy(model)
    assert clone.instance is model.instance
    assert clone.handle == model.handle


def test_a_freed_model_is_missed_and_not_taken_for_another(model):
    other = bf.from_stan(Bridge(Y + 1.0))
    handle = other.handle
    del other
    gc.collect()
    orphan = eqx.tree_at(lambda m: m.handle, model, handle)
    with pytest.raises(Exception, match="Stan model was freed together with its Python object"):
        np.asarray(eqx.filter_jit(lambda m, x: m.log_density_on_reals(x))(orphan, jnp.asarray(X)))


def test_a_program_that_always_throws_says_why():
    with pytest.raises(ModelError, match=r"(?s)cannot be evaluated at any of 100 points.*mu hit the wall.*bounds"):
        bf.from_stan(Bridge(Y, wall=-np.inf))


class NearZero(Bridge):
    """A density that is finite near the origin only."""

    def log_density_gradient(self, x, propto=True, jacobian=True):
        if np.sum(np.square(x)) > 0.05**2:
            raise RuntimeError("the solver failed")
        return super().log_density_gradient(x, propto, jacobian)


def test_a_program_that_is_finite_near_zero_only_is_accepted_and_started_there():
    model = bf.from_stan(NearZero(Y))
    with use_precision("float64"):
        target = Target(model)
        found = usable_starts(target, starting_points(target, jax.random.key(0), 8), jax.random.key(0))
    assert found.shape == (8, 2)
    assert np.all(np.sum(found**2, axis=1) <= 0.05**2)


def test_a_density_that_is_always_zero():
    with pytest.raises(ModelError, match=r"(?s)any of 100 points.*It is zero or not a number at all of them"):
        bf.from_stan(Bridge([np.inf]))


def test_data_belong_into_the_model():
    with pytest.raises(ArgumentError, match=r"a bridgestan.StanModel was given with data: expected none"):
        bf.from_stan(Bridge(Y), data={"y": Y})


def test_its_class_is_no_model():
    assert not bridge.is_bridgestan(Bridge)
    with pytest.raises(ArgumentError, match=r"expected the path of a .stan file"):
        bf.from_stan(Bridge)


@pytest.mark.parametrize("unit", [1e-5, 1.0, 1e5])
def test_steps_follow_the_units(unit):
    """Curvatures of a logistic log density in units that differ by ten orders."""

    def gradient(x):
        return -np.tanh(x / (2 * unit)) / unit

    x = np.array([0.7, -1.3]) * unit
    expected = -0.5 / np.cosh(x / (2 * unit)) ** 2 / unit**2
    np.testing.assert_allclose(np.diagonal(bridge.difference_hessian(gradient, x)), expected, rtol=1e-8)
