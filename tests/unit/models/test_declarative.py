import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from bernflow.errors import ModelError
from bernflow.models import Model
from bernflow.target import Target

KEY = jax.random.key(0)
PRIOR = {"b": dist.Normal(0, 1).expand([2]).to_event(1), "s": dist.HalfNormal(1.0)}


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def normal(theta, x):
    return dist.Normal(x @ theta["b"], theta["s"])


def data(seed=0, n=4):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(n, 2)), "y": rng.normal(size=n)}


def test_density_terms_and_pointwise():
    d = data()
    model = Model(prior=PRIOR, likelihood=normal, **d)
    theta = model.sample_prior(KEY)
    terms = model.log_terms(theta)
    assert set(terms) == {"b", "s", "y"}
    points = dist.Normal(d["x"] @ theta["b"], theta["s"]).log_prob(d["y"])
    np.testing.assert_allclose(model.log_likelihood(theta)["y"], points, rtol=1e-12)
    prior = PRIOR["b"].log_prob(theta["b"]) + PRIOR["s"].log_prob(theta["s"])
    np.testing.assert_allclose(model.log_density(theta), points.sum() + prior, rtol=1e-12)
    np.testing.assert_array_equal(model.observed()["y"], d["y"])
    assert model.deterministic(theta) == {}
    assert model.initial() is None


def test_same_shape_does_not_compile_again():
    count = 0

    @eqx.filter_jit
    def density(target, x):
        nonlocal count
        count += 1
        return target.log_density(x)

    for seed in (0, 1):
        prior = {"b": dist.Normal(0, 1).expand([2]).to_event(1), "s": dist.Uniform(0.0, np.array(2.0 + seed))}
        density(Target(Model(prior=prior, likelihood=normal, **data(seed))), jnp.ones(3))
    assert count == 1


def test_priors_in_any_order():
    model = Model(
        prior={
            "u": lambda th: dist.Uniform(0, th["s"]),
            "v": lambda th: dist.Normal(th["u"], 1),
            "s": lambda th: dist.HalfNormal(th["t"]),
            "t": dist.LogNormal(0, 1),
        },
        likelihood=lambda th: dist.Normal(th["v"], 1),
        y=np.zeros(3),
    )
    assert [site.name for site in model.sites] == ["t", "s", "u", "v"]
    supports = {site.name: site.support for site in model.sites}
    assert supports["u"] is None
    assert supports["s"] is not None
    assert float(model.support_of("u", {"s": jnp.array(3.0)}).upper_bound) == 3.0
    target = Target(model)
    theta = model.sample_prior(KEY)
    x, log_jacobian = target.layout.unconstrain(theta)
    back, log_jacobian_again = target.layout.constrain(x)
    np.testing.assert_allclose(back["u"], theta["u"], rtol=1e-10)
    np.testing.assert_allclose(log_jacobian, log_jacobian_again, rtol=1e-8)


def test_x_may_be_any_pytree():
    x = {"a": [1, 2, 3], "idx": np.array([0, 1, 0]), "label": "text", "n": 2}

    def likelihood(theta, x):
        assert x["label"] == "text"
        return dist.Normal(theta["b"][x["idx"]] * x["a"], 1)

    model = Model(prior={"b": dist.Normal(0, 1).expand([x["n"]])}, likelihood=likelihood, y=[1.0, 2.0, 3.0], x=x)
    assert model.log_likelihood({"b": jnp.zeros(2)})["y"].shape == (3,)


def test_log_likelihood_function():
    d = data()
    reference = Model(prior=PRIOR, likelihood=normal, **d)
    model = Model(prior=PRIOR, log_likelihood=lambda th, y, x: normal(th, x).log_prob(y), **d)
    theta = model.sample_prior(KEY)
    np.testing.assert_allclose(model.log_density(theta), reference.log_density(theta))
    with pytest.raises(ModelError, match="Prediction needs likelihood="):
        model.predict(KEY, theta)
    closed = Model(prior=PRIOR, log_likelihood=lambda th: normal(th, d["x"]).log_prob(d["y"]))
    np.testing.assert_allclose(closed.log_density(theta), reference.log_density(theta))
    assert closed.observed() == {}


def test_predict():
    d = data()
    model = Model(prior=PRIOR, likelihood=normal, **d)
    theta = {"b": jnp.array([1.0, 2.0]), "s": jnp.array(1e-6)}
    np.testing.assert_allclose(model.predict(KEY, theta)["y"], d["x"] @ theta["b"], atol=1e-4)
    np.testing.assert_allclose(model.predict(KEY, theta, x=np.ones((2, 2)))["y"], 3.0, atol=1e-4)
    iid = Model(prior={"p": dist.Beta(1, 1)}, likelihood=lambda th: dist.Bernoulli(th["p"]), y=[True, False, True])
    assert iid.predict(KEY, {"p": jnp.array(0.5)})["y"].shape == (3,)
    with pytest.raises(ModelError, match="run to predict, failed with TypeError"):
        model.predict(KEY, theta, x=np.ones((2, 3)))
    with pytest.raises(ModelError, match="Model: x has 1 NaN"):
        model.predict(KEY, theta, x=np.array([np.nan]))


def test_event_dimensions_of_the_outcome():
    model = Model(
        prior={"mu": dist.Normal(0, 1).expand([2])},
        likelihood=lambda th: dist.MultivariateNormal(th["mu"], jnp.eye(2)),
        y=np.zeros((5, 2)),
    )
    assert model.log_likelihood({"mu": jnp.zeros(2)})["y"].shape == (5,)


def test_improper_prior_cannot_be_sampled():
    prior = {"s": dist.ImproperUniform(constraints.positive, (), ())}
    model = Model(prior=prior, likelihood=lambda th: dist.Normal(0, th["s"]), y=np.ones(2))
    assert model.sample_prior(KEY) is None


def test_data_keep_their_precision():
    y = np.array([0.1, 0.2])
    with jax.enable_x64(False):
        model = Model(prior={"m": dist.Normal(0, 0.1)}, likelihood=lambda th: dist.Normal(th["m"], 1), y=y)
    np.testing.assert_array_equal(model.observed()["y"], y)


Y = np.zeros(3)
MU = {"m": dist.Normal(0, 1)}


def around(theta):
    return dist.Normal(theta["m"], 1)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"prior": MU, "y": Y}, "neither of likelihood= and log_likelihood="),
        ({"prior": MU, "y": Y, "likelihood": around, "log_likelihood": around}, "both of likelihood="),
        ({"prior": MU, "likelihood": around}, "likelihood= without y="),
        (
            {"prior": MU, "y": Y, "likelihood": dist.Normal(0, 1)},
            "likelihood is a Normal: expected a function of theta",
        ),
        ({"prior": MU, "y": Y, "likelihood": 3}, "likelihood is a int: expected a function of theta"),
        ({"prior": MU, "y": Y, "log_likelihood": 3}, "log_likelihood is a int: expected a function of theta"),
        ({"prior": {}, "y": Y, "likelihood": around}, "expected a dict with at least one distribution"),
        ({"prior": [1], "y": Y, "likelihood": around}, "expected a dict with at least one distribution"),
        (
            {"prior": {1: dist.Normal(0, 1)}, "y": Y, "likelihood": around},
            "name 1 of type int: expected a string",
        ),
        (
            {"prior": {"y": dist.Normal(0, 1)}, "y": Y, "likelihood": around},
            "the name of the observed data. Rename",
        ),
        (
            {"prior": {"m": 3.0}, "y": Y, "likelihood": around},
            r"prior\['m'\] is 3.0: expected a NumPyro distribution",
        ),
        (
            {"prior": {"m": dist.Normal}, "y": Y, "likelihood": around},
            "expected a NumPyro distribution or a function",
        ),
        ({"prior": {"m": lambda th: 3.0}, "y": Y, "likelihood": around}, "The prior of 'm' returned a float"),
        (
            {"prior": {"m": lambda th: 1 / 0}, "y": Y, "likelihood": around},
            "prior of 'm' failed with ZeroDivision",
        ),
        (
            {"prior": {"m": lambda th: dist.Normal(th["q"], 1)}, "y": Y, "likelihood": around},
            "The prior of 'm' uses 'q', which is not a parameter",
        ),
        (
            {
                "prior": {"m": lambda th: dist.Normal(th["k"], 1), "k": lambda th: dist.Normal(th["m"], 1)},
                "y": Y,
                "likelihood": around,
            },
            "depend on each other in a circle: 'm' needs 'k', 'k' needs 'm'",
        ),
        ({"prior": {"m": dist.Poisson(3)}, "y": Y, "likelihood": around}, "'m' is discrete"),
        ({"prior": MU, "y": Y, "likelihood": lambda th: th["m"]}, "The likelihood returned a .*Tracer"),
        (
            {"prior": MU, "y": Y, "likelihood": lambda th: th["q"]},
            r"likelihood \(parameters: m\) failed with KeyError",
        ),
        (
            {
                "prior": MU,
                "y": Y,
                "x": np.ones((3, 1)),
                "likelihood": lambda th, x: dist.Normal(x * th["m"], 1),
            },
            r"y has shape \(3,\), the likelihood has batch_shape \(3, 1\) .* broadcast to \(3, 3\): expected",
        ),
        (
            {"prior": MU, "y": Y, "x": np.ones(4), "likelihood": lambda th, x: dist.Normal(x * th["m"], 1)},
            "which cannot be broadcast: expected one log probability per data point",
        ),
        (
            {"prior": MU, "y": Y, "likelihood": lambda th: dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2))},
            r"expected the shape of y to end in the event_shape \(2,\)",
        ),
        (
            {"prior": MU, "y": Y, "log_likelihood": lambda th, y: jnp.sum(y) * th["m"]},
            r"log_likelihood returned shape \(\) for y of shape \(3,\): expected one value per data point",
        ),
        (
            {"prior": MU, "y": np.array([0, np.nan]), "likelihood": around},
            r"Model: y has 1 NaN .* index \(1,\)",
        ),
        (
            {"prior": MU, "y": np.ma.masked_equal([1, 2], 2), "likelihood": around},
            "y is a masked array with 1",
        ),
        ({"prior": MU, "y": ["a", "b"], "likelihood": around}, "y has dtype <U1: expected numbers"),
        (
            {"prior": MU, "y": Y, "x": {"a": np.array([0, np.inf, 1])}, "likelihood": around},
            r"Model: x\['a'\] has 1 NaN or infinite values",
        ),
        ({"prior": MU, "y": Y, "x": [1.0, np.nan, 2.0], "likelihood": around}, r"Model: x has 1 NaN"),
        (
            {
                "prior": MU,
                "y": [3, 9],
                "x": [5, 5],
                "likelihood": lambda th, x: dist.Binomial(x, logits=th["m"]),
            },
            "Model: y has 1 values outside the support",
        ),
        ({"prior": MU, "y": [1.0, np.nan], "likelihood": around}, r"Model: y has 1 NaN"),
    ],
)
def test_refused(kwargs, match):
    with pytest.raises(ModelError, match=match):
        Model(**kwargs)
