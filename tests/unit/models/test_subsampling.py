import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from bernflow.errors import ModelError
from bernflow.models import as_model
from bernflow.models.base import AbstractJointModel
from bernflow.models.numpyro import NumPyroModel
from bernflow.models.subsampling import SubsampledModel
from bernflow.target import Target

KEY = jax.random.key(3)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 2))
Y = RNG.normal(size=10)
THETA = {"scale": jnp.array(0.7)}


@pytest.fixture(scope="module")
def flax():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("flax")
        pytest.importorskip("flax.linen")
        pytest.importorskip("flax.nnx")
    return module


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def regression(x, y=None, batch_size=None):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    slope = numpyro.sample("slope", dist.Normal(0, scale).expand([2]).to_event(1))
    offset = numpyro.param("offset", 0.5)
    numpyro.factor("penalty", -jnp.sum(slope**2))
    numpyro.sample("total", dist.Normal(slope[0], 1.0), obs=0.3)
    with numpyro.plate("rows", x.shape[0], subsample_size=batch_size) as index, handlers.scale(scale=2.0):
        mean = numpyro.deterministic("mean", x[index] @ slope + offset)
        numpyro.sample("y", dist.Normal(mean, scale), obs=None if y is None else y[index])


REGRESSION = {"scale": np.array(0.7), "slope": np.array([0.4, -1.1])}


def whole(theta, offset):
    """Return the log density of the same model without subsampling and without a trained parameter."""
    fixed = handlers.substitute(regression, data={"offset": offset})
    seeded = handlers.seed(fixed, KEY)
    terms, _ = numpyro.infer.util.compute_log_probs(seeded, (X, Y), {}, theta)
    return sum(terms.values())


def batches(model, size):
    (name, rows), *_ = model.rows().items()
    order = np.random.default_rng(1).permutation(rows)
    return [{name: order[start : start + size]} for start in range(0, len(rows), size)]


def test_plain_models_stay_as_they_are():
    def plain(y):
        with numpyro.plate("rows", 10, subsample_size=10):
            numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1), obs=y)

    model = as_model(plain, (Y,))
    assert isinstance(model, NumPyroModel)
    assert not isinstance(model, AbstractJointModel)


@pytest.mark.usefixtures("double")
def test_an_epoch_of_batches_is_the_whole_density():
    model = as_model(regression, (X, Y), {"batch_size": 5})
    assert isinstance(model, SubsampledModel)
    assert (model.batch_size, model.num_rows()) == (5, 10)
    np.testing.assert_array_equal(model.rows()["rows"], np.arange(10))
    assert [site.name for site in model.sites] == ["scale", "slope"]
    weights, state = model.trained()
    assert state is None
    assert weights == {"offset": 0.5}

    def epoch(theta, weights):
        parts = [model.log_density_of_batch(theta, weights, None, batch, KEY)[0] for batch in batches(model, 5)]
        return sum(parts) / len(parts)

    theta = jax.tree.map(jnp.asarray, REGRESSION)
    values, (by_theta, by_weights) = jax.jit(jax.value_and_grad(epoch, argnums=(0, 1)))(theta, weights)
    expected, (want_theta, want_offset) = jax.value_and_grad(whole, argnums=(0, 1))(theta, weights["offset"])
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    np.testing.assert_allclose(by_weights["offset"], want_offset, rtol=1e-10)
    for name in theta:
        np.testing.assert_allclose(by_theta[name], want_theta[name], rtol=1e-10)
    # Any number of rows counts right: all of them at once are the density itself.
    full, _ = model.log_density_of_batch(theta, weights, None, model.rows(), KEY)
    np.testing.assert_allclose(full, expected, rtol=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("size", [5, 4])
def test_frozen_is_the_model_without_subsampling(size):
    weights = {"offset": jnp.array(-0.8)}
    model = as_model(regression, (X, Y), {"batch_size": size}).frozen(weights, None)
    plain = NumPyroModel(handlers.substitute(handlers.block(regression, hide=["offset"]), data={}), (X, Y))
    assert [site.name for site in plain.sites] == [site.name for site in model.sites]
    theta = jax.tree.map(jnp.asarray, REGRESSION)
    value, gradient = eqx.filter_jit(lambda model, theta: jax.value_and_grad(model.log_density)(theta))(model, theta)
    expected, want = jax.value_and_grad(whole)(theta, -0.8)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient["slope"], want["slope"], rtol=1e-10)
    terms = model.log_terms(theta)
    assert set(terms) == {"scale", "slope", "penalty", "total", "y"}
    points = dist.Normal(X @ theta["slope"] - 0.8, theta["scale"]).log_prob(Y)
    likelihood = model.log_likelihood(theta)
    np.testing.assert_allclose(likelihood["y"], points, rtol=1e-10)
    assert likelihood["total"].shape == ()
    np.testing.assert_allclose(terms["y"], 2 * jnp.sum(points), rtol=1e-10)
    np.testing.assert_array_equal(model.observed()["y"], Y)
    np.testing.assert_allclose(model.deterministic(theta)["mean"], X @ theta["slope"] - 0.8, rtol=1e-10)
    sharp = {"scale": jnp.array(1e-6), "slope": theta["slope"]}
    drawn = model.predict(KEY, sharp)
    assert drawn["total"].shape == ()
    np.testing.assert_allclose(drawn["y"], X @ theta["slope"] - 0.8, atol=1e-4)
    for new in (X[:3], X, np.ones((23, 2))):
        np.testing.assert_allclose(
            model.predict(KEY, sharp, new, batch_size=size)["y"], new @ theta["slope"] - 0.8, atol=1e-4
        )


def test_noise_differs_between_blocks():
    model = as_model(regression, (X, Y), {"batch_size": 5})
    theta = {"scale": jnp.array(1.0), "slope": jnp.zeros(2)}
    drawn = jax.vmap(lambda key: model.predict(key, theta)["y"])(jax.random.split(KEY, 2))
    assert len(np.unique(np.round(drawn, 5))) == 20


def test_the_target_and_the_prior_work():
    model = as_model(regression, (X, Y), {"batch_size": 4})
    assert set(model.sample_prior(KEY)) == {"scale", "slope"}
    assert model.initial() is None
    target = Target(model)
    assert target.dim == 3
    assert np.isfinite(target.log_density(jnp.zeros(3)))


def test_support_that_depends_on_another_site_and_improper_prior():
    def function(y):
        upper = numpyro.sample("upper", dist.ImproperUniform(dist.constraints.positive, (), ()))
        u = numpyro.sample("u", dist.Uniform(0, upper))
        with numpyro.plate("rows", 10, subsample_size=5) as index:
            numpyro.sample("y", dist.Normal(u, 1.0), obs=y[index])

    model = as_model(function, (Y,))
    assert model.sample_prior(KEY) is None
    assert model.trained() == (None, None)
    assert float(model.support_of("u", {"upper": jnp.array(2.5)}).upper_bound) == 2.5


@pytest.mark.usefixtures("double")
def test_rows_that_are_not_the_last_axis():
    data = RNG.normal(size=(7, 3, 2))

    def function(y, size=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("columns", 3), numpyro.plate("rows", 7, subsample_size=size, dim=-2) as index:
            numpyro.sample("y", dist.Normal(mu, 1).expand([2]).to_event(1), obs=y[index])

    model = as_model(function, (data,), {"size": 3})
    theta = {"mu": jnp.array(0.3)}
    plain = NumPyroModel(function, (data,))
    np.testing.assert_allclose(model.log_density(theta), plain.log_density(theta), rtol=1e-12)
    np.testing.assert_allclose(model.log_likelihood(theta)["y"], plain.log_likelihood(theta)["y"], rtol=1e-12)
    np.testing.assert_array_equal(model.observed()["y"], data)
    assert model.predict(KEY, theta)["y"].shape == (7, 3, 2)


@pytest.mark.usefixtures("double")
def test_other_subsampled_plates_are_drawn_in_training_and_complete_otherwise():
    z = RNG.normal(size=6)

    def function(y, z, sizes=(None, None)):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", 10, subsample_size=sizes[0]) as index:
            numpyro.sample("y", dist.Normal(mu, 1), obs=y[index])
        with numpyro.plate("more", 6, subsample_size=sizes[1]) as index:
            numpyro.sample("z", dist.Normal(mu, 2), obs=z[index])

    model = as_model(function, (Y, z), {"sizes": (4, 2)})
    plain = NumPyroModel(function, (Y, z))
    theta = {"mu": jnp.array(0.3)}
    assert (model.num_rows(), model.batch_size) == (10, 4)
    np.testing.assert_allclose(model.log_density(theta), plain.log_density(theta), rtol=1e-12)
    assert model.log_likelihood(theta)["z"].shape == (6,)
    values = [model.log_density_of_batch(theta, None, None, model.rows(), key)[0] for key in jax.random.split(KEY, 3)]
    assert len({float(value) for value in values}) > 1


@pytest.mark.usefixtures("double")
def test_constrained_params_are_trained_unconstrained():
    def function(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        spread = numpyro.param("spread", 2.0, constraint=dist.constraints.positive)
        shift = numpyro.param("shift", np.zeros(10))
        numpyro.sample("y", dist.Normal(mu + shift, spread), obs=y)

    model = as_model(function, (Y,))
    weights, state = model.trained()
    assert state is None
    np.testing.assert_allclose(weights["spread"], np.log(2.0))
    assert weights["shift"].shape == (10,)
    # Without a subsampled plate, the one row stands for all data.
    assert (model.num_rows(), model.batch_size) == (1, None)
    theta = {"mu": jnp.array(0.3)}
    moved = {**weights, "spread": jnp.log(3.0)}
    expected = dist.Normal(0, 1).log_prob(0.3) + jnp.sum(dist.Normal(0.3, 3.0).log_prob(Y))
    value, _ = model.log_density_of_batch(theta, moved, None, model.rows(), KEY)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    frozen = model.frozen(moved, None)
    np.testing.assert_allclose(frozen.log_density(theta), expected, rtol=1e-12)
    assert frozen.log_likelihood(theta)["y"].shape == frozen.predict(KEY, theta)["y"].shape == (10,)


def test_params_per_row():
    def function(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", 10, subsample_size=5) as index:
            shift = numpyro.param("shift", jnp.arange(10.0), event_dim=0)
            numpyro.sample("y", dist.Normal(mu + shift, 1.0), obs=y[index])

    model = as_model(function, (Y,))
    assert model.trained()[0]["shift"].shape == (10,)
    points = model.log_likelihood({"mu": jnp.zeros(())})["y"]
    np.testing.assert_allclose(points, dist.Normal(np.arange(10.0), 1.0).log_prob(Y), rtol=1e-5)


def rows_of(x, y, mean):
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=4) as index:
        numpyro.sample("y", dist.Normal(mean(x[index]), scale), obs=None if y is None else y[index])


def step(model, weights, state, batch=None):
    """Return the density, its gradient by the weights and the new state, as the loop of a fit computes them."""
    batch = {"rows": np.array([7, 1, 9, 4])} if batch is None else batch
    many = {"scale": jnp.array([0.7, 1.3])}

    @jax.jit
    def run(weights, state):
        def mean(weights):
            one = lambda theta: model.log_density_of_batch(theta, weights, state, batch, KEY)  # noqa: E731
            values, states = jax.vmap(one)(many)
            return jnp.mean(values), jax.tree.map(lambda leaf: leaf[0], states)

        return jax.value_and_grad(mean, has_aux=True)(weights)

    (value, new), gradient = run(weights, state)
    assert np.isfinite(value)
    # A loop on the device needs a state of the same type after every step.
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert [jax.typeof(leaf) for leaf in jax.tree.leaves(new)] == [jax.typeof(leaf) for leaf in jax.tree.leaves(state)]
    return gradient, new


def test_equinox_module():
    net = eqx.nn.MLP(2, "scalar", 3, 1, key=KEY)

    def function(x, y=None):
        from numpyro.contrib.module import eqx_module

        rows_of(x, y, jax.vmap(eqx_module("net", net)))

    model = as_model(function, (X, Y))
    weights, state = model.trained()
    gradient, _ = step(model, weights, state)
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient))
    better = jax.tree.map(lambda w, g: w + 0.01 * g, weights, gradient)
    points = dist.Normal(jax.vmap(eqx.combine(better["net$params"], net))(X), 0.7).log_prob(Y)
    np.testing.assert_allclose(model.frozen(better, None).log_likelihood(THETA)["y"], points, rtol=1e-4)


class Layered(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        self.linear = eqx.nn.Linear(2, 1, key=key)
        self.norm = eqx.nn.BatchNorm(1, "batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x, state, key):
        h, state = self.norm(self.linear(x), state)
        return self.dropout(h, key=key)[0], state


def test_equinox_module_with_state_and_dropout():
    net, first = eqx.nn.make_with_state(Layered)(KEY)

    def function(x, y=None):
        from numpyro.contrib.module import eqx_module

        module, holder = eqx_module("net", net), numpyro.primitives.mutable("net$state", {"state": first})

        def mean(rows):
            keys = jax.random.split(numpyro.prng_key(), rows.shape[0])
            run = jax.vmap(module, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
            out, holder["state"] = run(rows, holder["state"], keys)
            return out

        rows_of(x, y, mean)

    model = as_model(function, (X, Y))
    weights, state = model.trained()
    _, state = step(model, weights, state)
    _, state = step(model, weights, state)
    frozen = model.frozen(weights, state)
    whole = eqx.nn.inference_mode(eqx.combine(weights["net$params"], net))
    mean, _ = jax.vmap(whole, in_axes=(0, None, None), out_axes=(0, None))(X, state["net$state"]["state"], KEY)
    points = dist.Normal(mean, 0.7).log_prob(Y)
    np.testing.assert_allclose(frozen.log_likelihood(THETA)["y"], points, rtol=1e-4)


@pytest.mark.parametrize("as_attribute", [True, False])
def test_linen_module_with_batch_norm_and_dropout(flax, as_attribute):
    nn = flax.linen

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            flag = {"use_running_average": False}
            h = nn.BatchNorm(**flag)(x) if as_attribute else nn.BatchNorm()(x, **flag)
            h = nn.Dropout(0.5, deterministic=False)(h) if as_attribute else nn.Dropout(0.5)(h, False)
            return nn.Dense(1)(h)[:, 0]

    def function(x, y=None):
        from numpyro.contrib.module import flax_module

        net = flax_module("net", Net(), jnp.ones((2, 2)), mutable=["batch_stats"], apply_rng=["dropout"])
        rows_of(x, y, lambda rows: net(rows, rngs={"dropout": numpyro.prng_key()}))

    model = as_model(function, (X, Y))
    weights, state = model.trained()
    gradient, new = step(model, weights, state)
    assert np.any(gradient["net$params"]["Dense_0"]["kernel"] != 0)
    stats = new["net$state"]["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(stats["mean"], 0.01 * X[[7, 1, 9, 4]].mean(axis=0), rtol=1e-4)
    frozen = model.frozen(weights, new)
    params = weights["net$params"]
    h = (X - stats["mean"]) / np.sqrt(stats["var"] + 1e-5)
    mean = (h @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])[:, 0]
    np.testing.assert_allclose(frozen.log_likelihood(THETA)["y"], dist.Normal(mean, 0.7).log_prob(Y), rtol=1e-3)
    drawn = frozen.predict(KEY, {"scale": jnp.array(1e-6)}, X[:3])["y"]
    np.testing.assert_allclose(drawn, mean[:3], atol=1e-4)


@pytest.mark.parametrize("reach", ["closure", "partial", "self"])
def test_nnx_module_with_batch_norm_and_dropout(flax, reach):
    nnx = flax.nnx
    rngs = nnx.Rngs(0)
    net = nnx.Sequential(nnx.BatchNorm(2, rngs=rngs), nnx.Dropout(0.5, rngs=rngs), nnx.Linear(2, 1, rngs=rngs))

    def given(module, x, y=None):
        from numpyro.contrib.module import nnx_module

        module = nnx_module("net", module)
        rows_of(x, y, lambda rows: module(rows)[:, 0])

    class Holder:
        def __init__(self):
            self.net = net

        def function(self, x, y=None):
            given(self.net, x, y)

    def closure(x, y=None):
        given(net, x, y)

    function = {"closure": closure, "partial": functools.partial(given, net), "self": Holder().function}[reach]
    model = as_model(function, (X, Y))
    weights, state = model.trained()
    _, new = step(model, weights, state)
    stats = new["net$state"]["state"]["layers"][0]
    np.testing.assert_allclose(stats["mean"], 0.01 * X[[7, 1, 9, 4]].mean(axis=0), rtol=1e-4)
    points = model.frozen(weights, new).log_likelihood(THETA)["y"]
    linear = weights["net$params"]["layers"][2]
    mean = ((X - stats["mean"]) / np.sqrt(stats["var"] + 1e-5) @ linear["kernel"] + linear["bias"])[:, 0]
    np.testing.assert_allclose(points, dist.Normal(mean, 0.7).log_prob(Y), rtol=1e-3)
    # The module of the user is as it was.
    assert (net.layers[0].use_running_average, net.layers[1].deterministic) == (False, False)
    np.testing.assert_array_equal(net.layers[0].mean[...], 0.0)


def test_function_with_a_training_argument():
    seen = []

    def function(y, train=False):
        seen.append(train)
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", 10, subsample_size=5) as index:
            numpyro.sample("y", dist.Normal(mu + (5.0 if train else 0.0), 1.0), obs=y[index])

    theta = {"mu": jnp.zeros(())}
    for kwargs in ({}, {"train": True}):
        model = as_model(function, (Y,), kwargs)
        seen.clear()
        model.log_density_of_batch(theta, None, None, {"rows": np.arange(5)}, KEY)
        assert seen == [True]
        seen.clear()
        np.testing.assert_allclose(model.log_likelihood(theta)["y"], dist.Normal(0, 1).log_prob(Y), rtol=1e-5)
        assert set(seen) == {False}
    model = as_model(function, (Y, False))
    seen.clear()
    model.log_density_of_batch(theta, None, None, {"rows": np.arange(5)}, KEY)
    assert seen == [False]


def test_random_weights_are_ordinary_parameters(flax):
    from numpyro.contrib.module import random_eqx_module, random_flax_module, random_nnx_module

    linear = eqx.nn.Linear(2, 1, key=KEY)
    layer = flax.nnx.Linear(2, 1, rngs=flax.nnx.Rngs(0))
    makers = {
        "linen": lambda: random_flax_module("net", flax.linen.Dense(1), dist.Normal(0, 1), input_shape=(2,)),
        "nnx": lambda: random_nnx_module("net", layer, dist.Normal(0, 1)),
        "equinox": lambda: jax.vmap(random_eqx_module("net", linear, dist.Normal(0, 1))),
    }
    for name, make in makers.items():

        def function(x, y, make=make, size=None):
            net = make()
            with numpyro.plate("rows", 10, subsample_size=size) as index:
                numpyro.sample("y", dist.Normal(net(x[index])[:, 0], 1.0), obs=y[index])

        plain, batched = as_model(function, (X, Y)), as_model(function, (X, Y), {"size": 4})
        assert isinstance(plain, NumPyroModel), name
        assert batched.trained() == (None, None), name
        assert {site.name for site in plain.sites} == {site.name for site in batched.sites}
        theta = plain.sample_prior(KEY)
        np.testing.assert_allclose(batched.log_density(theta), plain.log_density(theta), rtol=1e-4)


def test_some_random_weights(flax):
    from numpyro.contrib.module import random_flax_module

    def function(x, y):
        net = random_flax_module("net", flax.linen.Dense(1), {"bias": dist.Normal(0, 1)}, input_shape=(2,))
        numpyro.sample("y", dist.Normal(net(x)[:, 0], 1.0), obs=y)

    model = as_model(function, (X, Y))
    assert [site.name for site in model.sites] == ["net/bias"]
    weights, _ = model.trained()
    assert [leaf.shape for leaf in jax.tree.leaves(weights)] == [(2, 1)]
    theta = {"net/bias": jnp.ones(1)}
    mean = (X @ weights["net$params"]["kernel"] + 1.0)[:, 0]
    for _ in range(2):
        np.testing.assert_allclose(model.log_likelihood(theta)["y"], dist.Normal(mean, 1.0).log_prob(Y), rtol=1e-4)


def per_row(y):
    with numpyro.plate("rows", 10, subsample_size=5) as index:
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1.0), obs=y[index])


def too_many(y):
    with numpyro.plate("rows", 4, subsample_size=5) as index:
        numpyro.sample("y", dist.Normal(numpyro.param("mu", 0.0), 1.0), obs=y[index])


def on_the_edge():
    numpyro.sample("a", dist.Normal(0, 1))
    numpyro.param("scale", 0.0, constraint=dist.constraints.positive)


def moving_constraint():
    upper = numpyro.sample("upper", dist.HalfNormal(1))
    numpyro.param("p", 0.1, constraint=dist.constraints.interval(0, upper))


def on_the_sphere():
    numpyro.sample("a", dist.Normal(0, 1))
    numpyro.param("p", jnp.array([0.0, 1.0]), constraint=dist.constraints.sphere)


def counts(y):
    rate = numpyro.sample("rate", dist.HalfNormal(1))
    with numpyro.plate("rows", 10, subsample_size=5) as index:
        numpyro.sample("y", dist.Poisson(rate), obs=y[index])


def discrete(y):
    numpyro.param("p", 0.1)
    numpyro.sample("z", dist.Bernoulli(0.5))


def failing(y):
    numpyro.param("p", 0.1)
    with numpyro.plate("rows", 10, subsample_size=5) as index:
        numpyro.sample("y", dist.Normal(jnp.zeros(3), 1.0), obs=y[index])


@pytest.mark.parametrize(
    ("function", "args", "match"),
    [
        (
            per_row,
            (Y,),
            "'mu' is inside the plate 'rows', which takes 5 of 10 rows: minibatches cannot be used with a parameter",
        ),
        (too_many, (Y,), "The plate 'rows' takes 5 of 4 rows: expected a subsample_size between 1 and the size"),
        (on_the_edge, (), "site 'scale' starts at 0.0: expected a value in the interior of its constraint"),
        (moving_constraint, (), "The constraint of the numpyro.param site 'p' depends on parameters"),
        (on_the_sphere, (), r"site 'p' has the constraint .* for which no map from R\^n is known"),
        (counts, (np.array([1] * 8 + [-2, 1]),), r"'y' has 1 values outside the support .* at index \(8,\) \(-2\)"),
        (counts, (np.array([1] * 9 + [np.nan]),), r"args\[0\] has 1 NaN values"),
        (discrete, (Y,), "'z' is discrete .* expected continuous parameters only"),
        (failing, (Y,), "The model function 'failing' failed with ValueError"),
    ],
)
@pytest.mark.filterwarnings("ignore:subsample_size does not match")
def test_refused_models(function, args, match):
    with pytest.raises(ModelError, match=match):
        as_model(function, args)


def test_an_error_shows_itself_alone():
    with pytest.raises(ModelError, match="parameter per row") as caught:
        as_model(per_row, (Y,))
    assert caught.value.__context__ is None


def test_predict_errors():
    def optional(y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        if y is not None:
            with numpyro.plate("rows", 10, subsample_size=5) as index:
                numpyro.sample("y", dist.Normal(mu, 1), obs=jnp.asarray(y)[index])

    model = as_model(optional, (Y,))
    with pytest.raises(ModelError, match="Prediction needs the observed sites 'y'"):
        model.predict(KEY, {"mu": jnp.zeros(())}, y=None)
    with pytest.raises(ModelError, match="run to predict, failed with TypeError"):
        model.predict(KEY, {"mu": jnp.zeros(())}, nonsense=1)
