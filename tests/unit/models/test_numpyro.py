import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import log_density

from bernflow.errors import ModelError
from bernflow.models.inputs import Opaque
from bernflow.models.numpyro import NumPyroModel
from bernflow.target import Target

KEY = jax.random.key(3)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@eqx.filter_jit
def density(target, x):
    return target.log_density(x)


def regression(x, y=None, offset=0.0):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    slope = numpyro.sample("slope", dist.Normal(0, scale).expand([2]).to_event(1))
    mean = numpyro.deterministic("mean", x @ slope + offset)
    numpyro.factor("penalty", -jnp.sum(slope**2))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def data(n=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.normal(size=n)


def sites(model):
    return {site.name: site for site in model.sites}


def test_sites_terms_and_density_agree_with_numpyro():
    x, y = data()
    model = NumPyroModel(regression, (x,), {"y": y, "offset": 0.5})
    assert [site.name for site in model.sites] == ["scale", "slope"]
    assert sites(model)["slope"].shape == (2,)
    assert model.observed_names == ("y",)
    theta = model.sample_prior(KEY)
    assert set(theta) == {"scale", "slope"}
    terms = model.log_terms(theta)
    assert set(terms) == {"scale", "slope", "penalty", "y"}
    expected, _ = log_density(regression, (x,), {"y": y, "offset": 0.5}, theta)
    np.testing.assert_allclose(model.log_density(theta), expected, rtol=1e-12)
    np.testing.assert_allclose(model.deterministic(theta)["mean"], x @ theta["slope"] + 0.5, rtol=1e-12)
    pointwise = model.log_likelihood(theta)["y"]
    assert pointwise.shape == (5,)
    np.testing.assert_allclose(pointwise.sum(), terms["y"], rtol=1e-12)
    np.testing.assert_array_equal(model.observed()["y"], y)
    assert model.initial() is None


def test_same_shape_does_not_compile_again():
    count = 0

    @eqx.filter_jit
    def counted(target, x):
        nonlocal count
        count += 1
        return target.log_density(x)

    values = []
    for seed in (0, 1):
        x, y = data(seed=seed)
        target = Target(NumPyroModel(regression, (x, y), {"offset": 1.0}))
        values.append(float(counted(target, jnp.ones(3))))
    assert count == 1
    assert values[0] != values[1]
    counted(Target(NumPyroModel(regression, data(6), {"offset": 1.0})), jnp.ones(3))
    assert count == 2


def test_data_follow_the_precision_of_the_computation():
    x, y = data()
    with jax.enable_x64(False):
        model = NumPyroModel(regression, (x, y))
        assert model.log_density(model.sample_prior(KEY)).dtype == jnp.float32
    theta = {"scale": jnp.ones(()), "slope": jnp.ones(2)}
    assert model.log_density(theta).dtype == jnp.float64
    np.testing.assert_array_equal(model.observed()["y"], y)


def test_support_that_depends_on_another_site():
    def model_fn(bound):
        numpyro.sample("fixed", dist.Uniform(0, jnp.max(bound)))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        numpyro.sample("u", dist.Uniform(0, sigma))

    model = NumPyroModel(model_fn, (np.array([1.0, 4.0]),))
    assert float(sites(model)["fixed"].support.upper_bound) == 4.0
    assert sites(model)["u"].support is None
    support = model.support_of("u", {"sigma": jnp.array(2.5)})
    assert float(support.upper_bound) == 2.5
    target = Target(model)
    x = jnp.array([0.3, -0.4, 1.2])
    theta, _ = target.layout.constrain(x)
    assert 0 < theta["u"] < theta["sigma"]
    np.testing.assert_allclose(target.layout.unconstrain(theta)[0], x, rtol=1e-10)
    assert np.isfinite(density(target, x))


def test_improper_prior_cannot_be_sampled():
    def model_fn(y):
        mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.positive, (), (2,)))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    model = NumPyroModel(model_fn, (np.zeros(2),))
    assert model.sites[0].shape == (2,)
    assert model.sample_prior(KEY) is None
    np.testing.assert_allclose(model.log_terms({"mu": jnp.ones(2)})["mu"], 0.0)


def test_scale_and_mask_count_in_the_density():
    def model_fn(y, weight, keep):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with handlers.scale(scale=weight), handlers.mask(mask=keep):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    keep = np.array([True, False, True])
    y = np.array([0.1, 50.0, -0.4])
    model = NumPyroModel(model_fn, (y, 3.0, keep))
    theta = {"mu": jnp.array(0.2)}
    expected = dist.Normal(0.2, 1).log_prob(y)
    np.testing.assert_allclose(model.log_terms(theta)["y"], 3 * np.sum(expected[keep]), rtol=1e-12)
    np.testing.assert_allclose(model.log_likelihood(theta)["y"], np.where(keep, expected, 0.0), rtol=1e-12)


def test_predict_for_stored_and_new_arguments():
    x, y = data()
    model = NumPyroModel(regression, (x, y))
    theta = {"scale": jnp.array(1e-6), "slope": jnp.array([1.0, -2.0])}
    drawn = model.predict(KEY, theta)
    assert set(drawn) == {"y"}
    np.testing.assert_allclose(drawn["y"], x @ theta["slope"], atol=1e-4)
    new = np.ones((3, 2))
    np.testing.assert_allclose(model.predict(KEY, theta, new)["y"], -1.0, atol=1e-4)
    np.testing.assert_allclose(model.predict(KEY, theta, x=new, offset=5.0)["y"], 4.0, atol=1e-4)
    assert jax.vmap(lambda k: model.predict(k, theta)["y"])(jax.random.split(KEY, 4)).shape == (4, 5)


def test_predict_without_plate_has_the_shape_of_the_data():
    def coin(y):
        numpyro.sample("y", dist.Bernoulli(numpyro.sample("p", dist.Beta(1, 1))), obs=y)

    model = NumPyroModel(coin, (np.array([1, 0, 1, 1]),))
    drawn = model.predict(KEY, {"p": jnp.array(0.5)})["y"]
    assert drawn.shape == (4,)
    assert set(np.unique(drawn)) <= {0, 1}


def test_plates_scan_and_conditioned_models():
    def walk(y):
        with numpyro.plate("groups", 2):
            weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))

        def step(level, observed):
            level = numpyro.sample("level", dist.Normal(level, 1.0))
            numpyro.sample("y", dist.Normal(level, 1.0), obs=observed)
            return level, None

        scan(step, weights[0, 0], y)

    model = NumPyroModel(walk, (np.zeros(4),))
    assert {name: site.shape for name, site in sites(model).items()} == {"weights": (2, 3), "level": (4,)}
    assert Target(model).dim == 8
    assert np.isfinite(density(Target(model), jnp.ones(8)))
    conditioned = NumPyroModel(handlers.condition(regression, {"slope": jnp.ones(2)}), data())
    assert [site.name for site in conditioned.sites] == ["scale"]


def test_observed_value_computed_from_parameters_is_not_data():
    def model_fn(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("residual", dist.Normal(0, 1), obs=y - mu)

    model = NumPyroModel(model_fn, (np.ones(3),))
    assert model.observed() == {}
    assert set(model.log_terms({"mu": jnp.zeros(())})) == {"mu", "residual"}


def test_function_that_looks_at_its_data_gets_them_concrete():
    def grouped(group, y):
        with numpyro.plate("groups", len(np.unique(group))):
            a = numpyro.sample("a", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(a[group], 1), obs=y)

    group = np.array([0, 1, 2, 1])
    model = NumPyroModel(grouped, (group, np.zeros(4)))
    assert model.args[0] == Opaque(group)
    assert eqx.filter_jit(lambda m, t: m.log_density(t))(model, {"a": jnp.zeros(3)}).shape == ()


def test_objects_that_cannot_be_hashed_are_static():
    class Frame:
        __hash__ = None

        def __init__(self, y):
            self.y = y

    def model_fn(frame, name, missing=None):
        assert name == "n"
        assert missing is None
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1), obs=frame.y)

    model = NumPyroModel(model_fn, (Frame(np.zeros(3)), "n"))
    assert eqx.filter_jit(lambda m, t: m.log_density(t))(model, {"mu": jnp.zeros(())}).shape == ()


def discrete():
    numpyro.sample("z", dist.Bernoulli(0.5))


def with_param():
    numpyro.sample("a", dist.Normal(numpyro.param("loc", 0.0), 1))


def subsampled(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", 4, subsample_size=2) as index:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[index])


def on_the_sphere():
    numpyro.sample("d", dist.ProjectedNormal(jnp.ones(3)))


def broken(y):
    raise TypeError("of the user")


def twice():
    numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("a", dist.Normal(0, 1))


def branching():
    if numpyro.sample("a", dist.Normal(0, 1)) > 0:
        numpyro.sample("b", dist.Normal(0, 1))


def simple(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1), obs=y)


def waiting(y):
    numpyro.sample("y", dist.Exponential(numpyro.sample("rate", dist.HalfNormal(1))), obs=y)


def observed_nan(n):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1), obs=jnp.array([1.0, jnp.inf]))


@pytest.mark.parametrize(
    ("function", "args", "match"),
    [
        (discrete, (), "'z' is discrete .* expected continuous parameters only. Marginalize it out"),
        (
            with_param,
            (),
            "NumPyroModel: 'loc' comes from numpyro.param and changes in training. Pass the function to bernflow.fit",
        ),
        (
            subsampled,
            (np.zeros(4),),
            "NumPyroModel: the plate 'rows' takes 2 of 4 rows. Pass the function to bernflow.fit",
        ),
        (on_the_sphere, (), r"'d' .* has the support .* no map from R\^n is known"),
        (broken, (np.zeros(2),), "The model function 'broken' failed with TypeError: of the user"),
        (twice, (), "The model function 'twice' failed with AssertionError"),
        (branching, (), "The model function 'branching' failed with TracerBoolConversionError"),
        (simple, (np.array([0.0, np.nan]),), r"args\[0\] has 1 NaN values, the first at index \(1,\)"),
        (waiting, (np.array([1.0, -1.0]),), "The observed site 'y' has 1 values outside the support"),
        (observed_nan, (2,), "The observed site 'y' has 1 NaN or infinite values"),
    ],
)
def test_refused_models(function, args, match):
    with pytest.raises(ModelError, match=match):
        NumPyroModel(function, args)


def test_nan_in_a_keyword_argument():
    with pytest.raises(ModelError, match=r"model_kwargs\['y'\] has 1 NaN"):
        NumPyroModel(simple, (), {"y": np.array([np.nan])})


def test_broadcast_data_warn():
    def column(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu * np.ones((3, 1)), 1), obs=y)

    with pytest.warns(UserWarning, match=r"'y' has data of shape \(3,\) and a distribution of batch shape \(3, 1\)"):
        NumPyroModel(column, (np.zeros(3),))


def test_predict_errors():
    def optional(x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        if y is not None:
            numpyro.sample("y", dist.Normal(mu * x, 1), obs=y)

    theta = {"mu": jnp.zeros(())}
    model = NumPyroModel(optional, (np.ones(2), np.ones(2)))
    with pytest.raises(ModelError, match="Prediction needs the observed sites 'y'"):
        model.predict(KEY, theta, np.ones(2))
    with pytest.raises(ModelError, match="run to predict, failed with TypeError"):
        model.predict(KEY, theta, nonsense=1)


def test_axes_are_named_after_plates():
    def model(y):
        with numpyro.plate("row", 3):
            scale = numpyro.sample("scale", dist.HalfNormal(1.0))
            numpyro.sample("pair", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            numpyro.sample("y", dist.Normal(0.0, scale), obs=y)
        with numpyro.plate("draw", 2):
            numpyro.sample("taken", dist.Normal(0.0, 1.0))
        numpyro.sample("alone", dist.Normal(0.0, 1.0).expand([4]))

    assert NumPyroModel(model, (np.zeros(3),)).dims() == {"scale": ("row",), "pair": ("row", None), "y": ("row",)}
