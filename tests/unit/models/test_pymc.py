import gc
import subprocess
import sys
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import pytest
import scipy.stats
from pymc.distributions import transforms
from pytensor.compile.mode import Mode

from bernflow.errors import ArgumentError, ModelError
from bernflow.models import AbstractModel, from_pymc
from bernflow.models.pymc.convert import MinibatchPyMCModel
from bernflow.target import Target

# What PyTensor says when the tests themselves compile with it.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS installation")

KEY = jax.random.key(3)
PYTHON = Mode(linker="py", optimizer="fast_compile")
Y = np.array([0.3, -1.2, 2.1, 0.4])


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def hierarchy():
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        x = pm.Data("x", np.array([0.5, -1.0, 2.0, 0.0]), dims="row")
        scale = pm.HalfNormal("scale", 2.0)
        effect = pm.Normal("effect", 0.0, scale, dims="group")
        share = pm.Uniform("share", 0.0, scale)
        mu = pm.Deterministic("mu", effect[0] + effect[1] * x, dims="row")
        pm.Potential("belief", -(share**2))
        pm.Normal("y", mu, scale, observed=Y, dims="row")
    return model


def supports():
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.array([1.0, 2.0, 3.0]))
        cuts = pm.Normal("cuts", 0.0, 2.0, shape=2, transform=transforms.ordered, initval=np.array([-1.0, 1.0]))
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
        pm.ZeroSumNormal("contrast", 1.0, shape=3)
        pm.Categorical("k", p=weights, observed=[0, 2, 2])
        pm.OrderedLogistic("grade", eta=0.0, cutpoints=cuts, observed=[0, 1, 2])
        pm.MvNormal("pair", np.zeros(2), chol=chol, observed=np.array([[0.3, 1.0], [-0.5, 0.2]]))
    return model


def incomplete():
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC says that it imputes
        rate = pm.Exponential("rate", 1.0)
        pm.Beta("y", rate, 1.0, observed=np.ma.masked_invalid([0.3, np.nan, 0.7]))
    return model


def with_series():
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        walk = pm.GaussianRandomWalk("walk", sigma=sigma, init_dist=pm.Normal.dist(0.0, 1.0), steps=3)
        pm.Censored("y", pm.Normal.dist(walk, 1.0), lower=None, upper=2.0, observed=np.minimum(Y, 2.0))
    return model


def regression(container=True, follow=False):
    with pm.Model() as model:
        x = pm.Data("x", np.array([0.5, -1.0, 2.0, 0.0]))
        mu = pm.Normal("slope", 0.0, 1.0) * x
        observed = pm.Data("outcome", Y) if container else Y
        pm.Normal("y", mu, 0.1, observed=observed, shape=mu.shape if follow else None)
    return model


@eqx.filter_jit
def at(model, x):
    theta, log_jacobian = model.constrain(x)
    return model.log_density_on_reals(x), log_jacobian, model.unconstrain(theta), model.log_density(theta)


@pytest.mark.parametrize("build", [hierarchy, supports, incomplete, with_series], ids=lambda f: f.__name__)
def test_density_is_that_of_pymc(build):
    own = build()
    model = from_pymc(own)
    own_density = pytensor.function(
        own.value_vars, [own.logp(jacobian=True), own.logp(jacobian=False)], mode=PYTHON, on_unused_input="ignore"
    )
    rng = np.random.default_rng(1)
    for _ in range(3):
        x = rng.normal(size=sum(model.unconstrained_sizes()))
        pieces = np.split(x, np.cumsum(model.unconstrained_sizes())[:-1])
        expected = own_density(*(p.reshape(s) for p, s in zip(pieces, model.shapes.x, strict=True)))
        on_reals, log_jacobian, again, density = map(np.asarray, at(model, x))
        # PyTensor keeps some constants in single precision, and JAX would compute with it from there on.
        assert np.allclose([on_reals, density], expected, rtol=1e-12, atol=0)
        assert np.isclose(log_jacobian, expected[0] - expected[1], atol=1e-10)
        assert np.allclose(again, x, atol=1e-10)


def test_densities_over_supports_are_normalized():
    with pm.Model() as own:
        pm.Dirichlet("weights", np.array([1.0, 2.0, 3.0]))
        pm.ZeroSumNormal("contrast", 1.0, shape=3)
        pm.VonMises("angle", 0.5, 2.0)
        pm.Uniform("part", 0.0, pm.Exponential("whole", 1.0))
    model = from_pymc(own)
    num, dim = 40_000, sum(model.unconstrained_sizes())
    # Logistic noise: its tails are not lighter than those of log scales.
    noise = scipy.stats.logistic(scale=0.8)
    x = noise.rvs((num, dim), random_state=np.random.default_rng(2))
    log_density = np.asarray(jax.jit(jax.vmap(model.log_density_on_reals))(jnp.asarray(x)))
    weights = np.exp(log_density - noise.logpdf(x).sum(axis=1))
    assert abs(weights.mean() - 1.0) < 4 * weights.std() / np.sqrt(num)


def test_names_shapes_and_scales():
    model = from_pymc(hierarchy())
    assert isinstance(model, AbstractModel)
    assert [(site.name, site.shape) for site in model.sites] == [("scale", ()), ("effect", (3,)), ("share", ())]
    assert model.scales() == (True, False, False)
    assert Target(model).layout.labels() == ["scale", "effect[0]", "effect[1]", "effect[2]", "share"]
    assert set(model.log_terms(model.sample_prior(KEY))) == {"scale", "effect", "share", "y", "belief"}
    with pm.Model() as own:
        pm.LogNormal("above", 0.0, 1.0)
        pm.TruncatedNormal("above_one", 0.0, 1.0, lower=1.0)
        pm.TruncatedNormal("below", 0.0, 1.0, upper=1.0)
        pm.Gamma("soft", 1.0, 1.0, transform=transforms.log_exp_m1, default_transform=None)
    assert from_pymc(own).scales() == (True, True, False, True)


def test_outside_of_a_support():
    model = from_pymc(supports())
    inside, _ = model.constrain(jnp.zeros(sum(model.unconstrained_sizes())))
    unconstrain = eqx.filter_jit(model.unconstrain)
    assert np.isfinite(unconstrain(inside)).all()
    outside = [
        ("weights", [0.5, 0.6, -0.1]),
        ("weights", [0.5, 0.2, 0.2]),
        ("cuts", [1.0, -1.0]),
        ("chol", [-1.0, 0.0, 1.0]),
        ("contrast", [1.0, 1.0, 1.0]),
    ]
    for name, value in outside:
        assert not np.isfinite(unconstrain({**inside, name: jnp.asarray(value)})).all(), name


def test_all_of_r_is_used():
    with pm.Model() as own:
        pm.VonMises("angle", 0.5, 2.0)
        pm.HalfNormal("scale", 1.0, default_transform=None)
    model = from_pymc(own)
    theta, _ = model.constrain(jnp.array([30.0, -2.0]))
    assert 3.0 < theta["angle"] <= np.pi
    assert np.isclose(theta["scale"], np.exp(-2.0))
    expected = scipy.stats.vonmises(2.0, 0.5).logpdf(theta["angle"]) + scipy.stats.halfnorm().logpdf(theta["scale"])
    assert np.isclose(model.log_density(theta), expected)


def test_derived_observed_and_labels():
    model = from_pymc(hierarchy())
    theta = {"scale": jnp.array(2.0), "effect": jnp.array([1.0, 0.5, 0.0]), "share": jnp.array(1.0)}
    mu = 1.0 + 0.5 * np.array([0.5, -1.0, 2.0, 0.0])
    assert np.allclose(model.deterministic(theta)["mu"], mu)
    assert np.allclose(model.mean(theta)["y"], mu)
    assert np.allclose(model.log_likelihood(theta)["y"], scipy.stats.norm(mu, 2.0).logpdf(Y))
    assert np.allclose(model.observed()["y"], Y)
    assert set(model.constants()) == {"x"}
    assert model.dims() == {"x": ("row",), "effect": ("group",), "mu": ("row",), "y": ("row",)}
    assert list(model.coords()) == ["group"]
    assert list(model.coords()["group"]) == ["a", "b", "c"]
    # The values observed are constants, too, where they give a variable its shape; so says PyMC.
    assert set(from_pymc(regression()).constants()) == {"x", "outcome"}
    assert set(from_pymc(regression(follow=True)).constants()) == {"x"}


def test_missing_values_are_parameters():
    model = from_pymc(incomplete())
    assert [(site.name, site.shape) for site in model.sites] == [("rate", ()), ("y_unobserved", (1,))]
    theta = {"rate": jnp.array(2.0), "y_unobserved": jnp.array([0.5])}
    assert np.allclose(model.deterministic(theta)["y"], [0.3, 0.5, 0.7])
    assert model.log_likelihood(theta)["y_observed"].shape == (2,)


def test_variables_with_dims_of_their_own():
    dims = pytest.importorskip("pymc.dims")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC calls them experimental
        with pm.Model(coords={"group": ["a", "b"], "row": range(3)}) as own:
            effect = dims.Normal("effect", 0.0, 1.0, dims="group")
            x = dims.Data("x", np.arange(3.0), dims="row")
            y = dims.as_xtensor(np.ones(3), dims=("row",))
            dims.Normal("y", effect.isel(group=1) * x, 1.0, observed=y)
        model = from_pymc(own)
    theta = {"effect": jnp.array([0.2, 0.7])}
    expected = scipy.stats.norm().logpdf([0.2, 0.7]).sum() + scipy.stats.norm(0.7 * np.arange(3), 1.0).logpdf(1.0).sum()
    assert np.isclose(model.log_density(theta), expected)
    assert model.predict(KEY, theta)["y"].shape == (3,)


def draws(model, num, theta, *args):
    keys = jax.random.split(KEY, num)
    return jax.jit(jax.vmap(lambda key: model.predict(key, theta, *args)))(keys)


def test_predictions_are_draws_of_pymc():
    with pm.Model() as own:
        p = pm.Dirichlet("p", np.ones(3))
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Categorical("k", p=p, observed=[0, 1])
        pm.NegativeBinomial("n", mu=pm.math.exp(mu), alpha=2.0, observed=[0, 1])
    model = from_pymc(own)
    num = 2000
    drawn = draws(model, num, {"p": jnp.array([0.5, 0.3, 0.2]), "mu": jnp.array(1.0)})
    assert drawn["k"].shape == drawn["n"].shape == (num, 2)
    assert jnp.issubdtype(drawn["n"].dtype, jnp.integer)
    share = np.bincount(np.ravel(drawn["k"]), minlength=3) / (2 * num)
    assert np.all(np.abs(share - [0.5, 0.3, 0.2]) < 4 * np.sqrt(0.25 / (2 * num)))
    variance = np.e + np.e**2 / 2
    assert abs(drawn["n"].mean() - np.e) < 4 * np.sqrt(variance / (2 * num))
    # Neither are draws repeated, nor do they depend on what was drawn before.
    assert len(np.unique(drawn["n"], axis=0)) > 50
    assert np.array_equal(drawn["n"][:10], draws(model, 10, {"p": jnp.ones(3) / 3, "mu": jnp.array(1.0)})["n"])


def test_prior_draws():
    model = from_pymc(hierarchy())
    drawn = jax.jit(jax.vmap(model.sample_prior))(jax.random.split(KEY, 500))
    assert {name: value.shape[1:] for name, value in drawn.items()} == {"scale": (), "effect": (3,), "share": ()}
    assert np.all((drawn["share"] > 0) & (drawn["share"] < drawn["scale"]))
    assert abs(drawn["scale"].mean() - 2 * np.sqrt(2 / np.pi)) < 4 * drawn["scale"].std() / np.sqrt(500)
    with pm.Model() as own:
        pm.Normal("y", pm.Flat("mu"), 1.0, observed=Y)
    assert from_pymc(own).sample_prior(KEY) is None
    with pm.Model() as own:
        pm.Normal("effect", 0.0, pm.Normal("scale", 0.5, 1.0))
    drawn = jax.jit(jax.vmap(from_pymc(own).sample_prior))(jax.random.split(KEY, 50))
    assert 0 < np.isnan(drawn["effect"]).sum() < 40  # where the scale is negative, which is three times in ten


@pytest.mark.parametrize(
    "build",
    [regression, partial(regression, container=False, follow=True), hierarchy],
    ids=["shape of the outcome", "shape of the mean", "dims"],
)
def test_predictions_for_new_data(build):
    model = from_pymc(build())
    theta, _ = model.constrain(jnp.zeros(sum(model.unconstrained_sizes())))
    args, kwargs = model.prepare((), {"x": np.array([10.0, 20.0])})
    assert kwargs == {}
    assert draws(model, 3, theta, *args)["y"].shape == (3, 2)
    assert model.mean(theta, *args)["y"].shape == (2,)
    assert np.allclose(model.mean(theta, x=np.array([1.0]))["y"], 0.0)


def test_dims_follow_the_new_data():
    with pm.Model(coords={"row": range(4)}) as own:
        x = pm.Data("x", np.arange(4.0), dims="row")
        pm.Normal("y", pm.Normal("slope", 0.0, 1.0) * x, 0.1, observed=Y, dims="row")
    model = from_pymc(own)
    assert model.predict(KEY, {"slope": jnp.array(1.0)}, x=np.array([100.0]))["y"].shape == (1,)
    assert model.predict(KEY, {"slope": jnp.array(1.0)})["y"].shape == (4,)


@pytest.mark.parametrize(
    ("args", "kwargs", "match"),
    [
        ((np.zeros(2),), {}, r"got 1 positional arguments: expected new data by the names of their pm.Data"),
        ((), {"z": 1.0}, r"predict\(z=...\): the PyMC model has no pm.Data of this name: expected one of x, outcome"),
        ((), {"x": np.zeros((2, 2))}, r"got an array of shape \(2, 2\).* with 1 axes, .* the shape was \(4,\)"),
        ((), {"x": ["a"]}, r"dtype <U1; expected numbers"),
        ((), {"x": [np.nan]}, r"predict\(x=...\) has 1 NaN values"),
        ((), {"x": np.zeros(2), "outcome": np.zeros(3)}, r"cannot draw observations for x of shape \(2,\), outcome"),
    ],
)
def test_new_data_that_do_not_fit(args, kwargs, match):
    with pytest.raises((ArgumentError, ModelError), match=match):
        from_pymc(regression()).prepare(args, kwargs)


def test_shapes_that_cannot_follow_the_data():
    with pytest.raises(ArgumentError, match=r"cannot draw observations for x of shape \(2,\) .* with shape=mu.shape"):
        from_pymc(regression(container=False)).prepare((), {"x": np.zeros(2)})
    with pm.Model() as own:
        pm.Normal("y", pm.Normal("mu", 0.0, 1.0), 1.0, observed=Y)
    with pytest.raises(ArgumentError, match=r"expected one, and it has none. Put the data that change into pm.Data"):
        from_pymc(own).prepare((), {"x": 1.0})
    with pm.Model() as own:
        a, b = (pm.Data(name, np.zeros(4), dims="row") for name in "ab")
        pm.Normal("y", pm.Normal("mu", 0.0, 1.0) + a + b, 1.0, observed=Y, dims="row")
    with pytest.raises(ArgumentError, match="give the dim 'row' the lengths 2 and 3"):
        from_pymc(own).prepare((), {"a": np.zeros(2), "b": np.zeros(3)})


def test_data_changed_after_the_conversion():
    own = regression()
    model = from_pymc(own)
    model.prepare((), {})
    pm.set_data({"x": np.zeros(4)}, model=own)
    with pytest.warns(UserWarning, match=r"data 'x' of the PyMC model were changed after the fit.*predict\(x=...\)"):
        model.prepare((), {})
    assert np.allclose(model.constants()["x"], [0.5, -1.0, 2.0, 0.0])
    assert np.allclose(from_pymc(own).constants()["x"], 0.0)


def test_what_cannot_be_predicted():
    with pm.Model() as own:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.CustomDist("y", mu, logp=lambda value, mu: -((value - mu) ** 2), observed=Y)
    model = from_pymc(own)
    theta = {"mu": jnp.array(0.0)}
    assert np.isclose(model.log_likelihood(theta)["y"].sum(), -np.sum(Y**2))
    with pytest.raises(ModelError, match=r"cannot draw observations .*NotImplementedError"):
        model.predict(KEY, theta)
    with pytest.raises(ModelError, match=r"does not know the mean of an observed variable .* average its draws"):
        model.mean(theta)


def test_new_data_find_the_same_program():
    own = regression()
    program = from_pymc(own).program
    pm.set_data({"x": np.ones(4)}, model=own)
    assert from_pymc(own).program is program
    with own:
        pm.Normal("more", 0.0, 1.0)
    assert from_pymc(own).program is not program
    assert [site.name for site in from_pymc(own).sites] == ["slope", "more"]


def test_a_program_does_not_keep_the_model_alive():
    own = hierarchy()
    model = from_pymc(own)
    model.predict(KEY, model.sample_prior(KEY))
    origin = weakref.ref(own)
    del own
    gc.collect()
    assert origin() is None
    model.prepare((), {})  # there is nothing left that could have changed


def test_data_whose_values_give_shapes():
    with pm.Model() as own:
        n, x = pm.Data("n", 4), pm.Data("x", np.ones(4))
        pm.Normal("y", pm.Normal("slope", 0.0, 1.0) * x * pytensor.tensor.arange(n), 1.0, observed=Y)
    model = from_pymc(own)
    assert not isinstance(model.inputs.data["n"], np.ndarray)
    assert isinstance(model.inputs.data["x"], np.ndarray)
    expected = scipy.stats.norm().logpdf(0.5) + scipy.stats.norm(0.5 * np.arange(4)).logpdf(Y).sum()
    assert np.isclose(model.log_density({"slope": jnp.array(0.5)}), expected)
    assert np.allclose(model.mean({"slope": jnp.array(0.5)})["y"], 0.5 * np.arange(4))


def test_initial_values():
    assert from_pymc(hierarchy()).initial() is None
    start = from_pymc(supports()).initial()
    assert np.allclose(start["cuts"], [-1.0, 1.0])
    assert np.allclose(start["weights"].sum(), 1.0)


def test_single_precision():
    with pm.Model() as own:
        pm.ZeroSumNormal("contrast", 1.0, shape=3)
        pm.Normal("y", pm.Exponential("rate", 3.0), 0.1, observed=Y)
    model = from_pymc(own)
    x = np.array([0.3, -0.2, 0.7])
    double = np.asarray(at(model, jnp.asarray(x))[0])
    with jax.enable_x64(False):
        single, _, again, _ = at(model, jnp.asarray(x))
        assert single.dtype == jnp.float32
        assert np.allclose(again, x, atol=1e-5)
        theta = {"contrast": jnp.zeros(3), "rate": jnp.array(1.0)}
        assert model.predict(KEY, theta)["y"].dtype == jnp.float32
    assert np.isclose(single, double, rtol=1e-5)
    jax.clear_caches()
    assert np.asarray(at(model, jnp.asarray(x))[0]) == double


@pytest.mark.slow
def test_settings_of_jax_stay_as_they_are():
    code = """
import os
import jax
from bernflow.precision import use_precision
import pymc as pm
from bernflow import from_pymc
with pm.Model() as model:
    pm.Normal("y", pm.HalfNormal("scale", 1.0), 1.0, observed=[0.1])
with use_precision("float64"):
    from_pymc(model)
assert not jax.config.jax_enable_x64
assert "XLA_FLAGS" not in os.environ
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_double_precision_is_not_switched_on():
    from_pymc(hierarchy())
    assert "pymc.sampling.jax" not in sys.modules  # which asks for a hundred devices
    # Another thread sees the global setting, not the one of this test.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: jnp.zeros(()).dtype).result() == jnp.float32


def test_pymcs_own_samplers_switch_it_on_as_without_us():
    code = """
import jax, pymc as pm
from bernflow import from_pymc
from bernflow.models.pymc.dispatch import jax_dispatch
with pm.Model() as model:
    pm.Normal("y", pm.HalfNormal("scale", 1.0), 1.0, observed=[0.1])
from_pymc(model)
with jax_dispatch() as ours, jax_dispatch() as again:
    assert ours is again
assert not jax.config.jax_enable_x64
import pytensor.link.jax.dispatch as users
assert jax.config.jax_enable_x64
assert users is not ours
from_pymc(model)
with jax_dispatch() as now:
    assert now is users
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_a_conversion_that_is_registered_after_the_first_attempt_is_used():
    import pytensor.tensor as pt
    from pytensor.graph.basic import Apply
    from pytensor.graph.op import Op

    class Twice(Op):
        def make_node(self, x):
            x = pt.as_tensor_variable(x)
            return Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = 2 * inputs[0]

    with pm.Model() as model:
        pm.Potential("twice", -Twice()(pm.Normal("x") ** 2))
    with pytest.raises(ModelError, match="cannot be run in JAX"):
        from_pymc(model)
    from pytensor.link.jax.dispatch import jax_funcify

    jax.config.update("jax_enable_x64", False)  # globally, where the import may have switched it on
    jax_funcify.register(Twice)(lambda op, **kwargs: lambda x: 2 * x)
    assert from_pymc(model).log_density({"x": 1.0}) == pytest.approx(-0.5 * np.log(2 * np.pi) - 2.5)


def batches(total_size=8, per_row=False, other=False):
    rows = np.linspace(-1.0, 1.0, 8)
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC misses total_size
        x, y = pm.Minibatch(pm.Data("x", rows), rows**2, batch_size=4)
        slope = pm.Normal("slope", 0.0, 1.0, shape=x.shape[0] if per_row else None)
        pm.Normal("y", slope * x, 0.5, observed=y, total_size=total_size)
        if other:
            pm.Normal("z", 0.0, 1.0, observed=pm.Minibatch(np.zeros(other), batch_size=2), total_size=other)
    return model


def test_batches():
    model = from_pymc(batches())
    assert isinstance(model, MinibatchPyMCModel)
    assert (model.num_rows(), model.batch_size, set(model.rows())) == (8, 4, {"x", "y"})
    theta = {"slope": jnp.array(0.3)}
    rows = np.linspace(-1.0, 1.0, 8)
    expected = scipy.stats.norm().logpdf(0.3) + scipy.stats.norm(0.3 * rows, 0.5).logpdf(rows**2).sum()
    assert np.isclose(model.log_density(theta), expected)
    light = model.without_rows()
    parts = [{name: v[part] for name, v in model.rows().items()} for part in (slice(0, 4), slice(4, 8))]
    estimates = [light.log_density_of_batch(theta, None, None, batch, KEY)[0] for batch in parts]
    assert not np.isclose(estimates[0], expected)
    assert np.isclose(np.mean(estimates), expected)
    assert model.trained() == (None, None)
    assert model.frozen(None, None) is model
    assert model.predict(KEY, theta)["y"].shape == (8,)
    assert model.predict(KEY, theta, x=np.zeros(3))["y"].shape == (3,)
    assert np.allclose(model.mean(theta)["y"], 0.3 * rows)


def with_spline():
    with pm.Model() as model:
        pm.Interpolated("curve", np.linspace(0, 1, 5), np.array([0.0, 1.0, 2.0, 1.0, 0.0]))
    return model


def with_simulator():
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC uses what PyTensor deprecates
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Simulator("y", lambda rng, mu, size: rng.normal(mu, 1, size=size), mu, observed=Y)
    return model


def inner():
    with pm.Model(), pm.Model("inner") as model:
        pm.Normal("mu", 0.0, 1.0)
    return model


def observed(*values):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0.0, 1.0), 1.0, observed=values)
    return model


def without_parameters():
    with pm.Model() as model:
        pm.Normal("y", 0.0, 1.0, observed=Y)
    return model


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: 3, "from_pymc: got a int: expected a pymc.Model"),
        (without_parameters, "the model has no free variables to infer"),
        (partial(observed, 1.0, np.inf), r"the observed variable 'y' has 1 NaN or infinite values"),
        (inner, "the model 'inner' is part of another one: pass the outermost"),
        (with_spline, r"(?s)cannot be run in JAX: .*SplineWrapper.*jax_funcify.register"),
        (with_simulator, "log density of the PyMC model is itself random"),
        (partial(batches, total_size=None), "'y' is observed in batches of pm.Minibatch without total_size"),
        (partial(batches, per_row=True), "the parameter 'slope' has one value per row"),
        (partial(batches, other=6), "takes rows of data of several lengths"),
        (partial(batches, other=8), r"takes batches of sizes \[2, 4\]: expected one size"),
    ],
)
def test_refused(build, match):
    with pytest.raises(ModelError, match=match):
        from_pymc(build())


def test_discrete_parameters_are_refused():
    with pm.Model() as own:
        pm.Poisson("count", 3.0)
        pm.Bernoulli("flag", 0.5)
        pm.Normal("mu", 0.0, 1.0)
    with pytest.raises(ModelError, match=r"the free variables 'count', 'flag' are discrete.*pm.Mixture"):
        from_pymc(own)
