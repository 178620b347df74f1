import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError, ModelError
from bernflow.fit.batches.rows import Batches
from bernflow.fit.batches.stage import BatchStage, NetworkTraining
from bernflow.fit.run import Run
from bernflow.fit.settings import FULL_RATE_DIM, resolve_settings
from bernflow.fit.train.objective import BatchDensity, find_anchor
from bernflow.fit.train.progress import Recorder
from bernflow.fit.train.recipe import Recipe
from bernflow.keys import as_key
from bernflow.models.network import as_network, evaluate
from bernflow.target import Target

N = 60


def regression(num=N, seed=0, slope=0.7):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=num)
    y = 0.3 + slope * x + 0.5 * rng.normal(size=num)
    return bf.Model(
        prior={"a": dist.Normal(0.0, 2.0), "b": dist.Normal(0.0, 2.0)},
        likelihood=lambda theta, x: dist.Normal(theta["a"] + theta["b"] * x, 0.5),
        y=y,
        x=x,
    )


def exact(model):
    """Mean and covariance of the conjugate posterior."""
    design = np.column_stack([np.ones(len(model.y)), model.x])
    precision = design.T @ design / 0.25 + np.eye(2) / 4.0
    covariance = np.linalg.inv(precision)
    return covariance @ design.T @ model.y / 0.25, covariance


def batch_density(model, batch):
    return BatchDensity(Target(model).layout, model.without_rows(), *model.trained(), jax.tree.map(jnp.asarray, batch))


def batch_of(model, rows):
    return jax.tree.map(lambda leaf: leaf[rows], model.rows())


def test_the_mean_over_the_batches_is_the_full_density_and_gradient():
    # The likelihood of a batch counts N / B times, exactly once: for disjoint batches the mean is exact.
    model = regression()
    with jax.enable_x64(True):
        x = jnp.array([0.2, -0.4])
        parts = [batch_density(model, batch_of(model, rows)) for rows in Batches({}, N, 10, seed=0).in_order()]
        values, gradients = zip(*(jax.value_and_grad(part.log_density)(x) for part in parts), strict=True)
        value, gradient = jax.value_and_grad(Target(model).log_density)(x)
        np.testing.assert_allclose(np.mean(values), value, rtol=1e-12)
        np.testing.assert_allclose(np.mean(gradients, 0), gradient, rtol=1e-12)


def test_the_anchor_is_the_full_density_also_where_batches_do_not_divide_the_rows():
    model = regression()
    with jax.enable_x64(True):
        x = jnp.array([0.2, -0.4])
        anchor = find_anchor(
            batch_density(model, batch_of(model, np.arange(7))), Batches(model.rows(), N, 7, seed=0), x
        )
        value, gradient = jax.value_and_grad(Target(model).log_density)(x)
        np.testing.assert_allclose(anchor.value, value, rtol=1e-12)
        np.testing.assert_allclose(anchor.gradient, gradient, rtol=1e-12)


def test_a_posterior_from_batches_is_the_exact_one():
    model = regression(num=2000)
    posterior = bf.fit(model, batch_size=50, steps=1500, progress=False)
    mean, covariance = exact(model)
    draws = posterior.draws(20_000)
    assert posterior.diagnostics.verdict == "good"
    assert posterior.settings["batch_size"] == 50
    for i, name in enumerate(("a", "b")):
        sd = np.sqrt(covariance[i, i])
        # 20,000 draws: Monte Carlo errors of 0.007 sd in the mean and 0.5 % in the sd.
        assert abs(draws[name].mean() - mean[i]) < 0.05 * sd
        assert draws[name].std() == pytest.approx(sd, rel=0.03)


def test_a_batch_without_rows_is_refused():
    model = bf.Model(prior={"a": dist.Normal(0.0, 1.0)}, likelihood=lambda theta: dist.Normal(theta["a"], 1.0), y=0.3)
    with pytest.raises(ModelError, match="Batches need one row per observation"):
        bf.fit(model, batch_size=1, progress=False)
    with pytest.raises(ArgumentError, match="batch_size=0: expected a whole number of at least 1"):
        bf.fit(regression(), batch_size=0, progress=False)
    density = bf.from_log_density(lambda x: -(x**2), init=0.0)
    with pytest.raises(ArgumentError, match="batch_size=4: a LogDensityModel is not made of rows"):
        bf.fit(density, batch_size=4, progress=False)


def test_a_parameter_per_row_is_refused_in_batches():
    y = np.linspace(-1.0, 1.0, 12)
    model = bf.Model(
        prior={"u": dist.Normal(0.0, 1.0).expand([12]).to_event(1)},
        likelihood=lambda theta: dist.Normal(theta["u"], 1.0),
        y=y,
    )
    with pytest.raises(ModelError, match="log density of a batch of rows failed"):
        bf.fit(model, batch_size=4, progress=False)


def pictured(**more):
    images, x, y = pictures(40)
    return bf.Model(
        prior={"beta": dist.Normal(0.0, 1.0)},
        likelihood=lambda theta, x, h: dist.Normal(h + theta["beta"] * x, 0.5),
        y=y,
        x=x,
        network=eqx.nn.Linear(4, "scalar", key=jax.random.key(0)),
        images=images,
        **more,
    )


def subsampled(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 40, subsample_size=10):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=numpyro.subsample(y, event_dim=0))


# How each path to a posterior is called.
PATHS = {
    "all rows": lambda **how: bf.fit(regression(), **how),
    "batches": lambda **how: bf.fit(regression(), batch_size=20, **how),
    "own batches": lambda **how: bf.fit(subsampled, np.linspace(-1.0, 1.0, 40), **how),
    "network": lambda **how: bf.fit(pictured(), batch_size=20, **how),
}
SEVERAL = "a fit on batches of rows has one start and one flow. Leave it out, or fit all rows"
STEPS = "trained on for a number of steps. Leave it out, or give steps"
# What the paths cannot honor. Everything else of this list they do.
REFUSED = {
    ("batches", "restarts"): SEVERAL,
    ("batches", "components"): SEVERAL,
    ("batches", "tolerance"): STEPS,
    ("own batches", "restarts"): SEVERAL,
    ("own batches", "components"): SEVERAL,
    ("own batches", "tolerance"): STEPS,
    ("network", "tolerance"): STEPS,
}
ARGUMENTS = {
    "restarts": {"restarts": 2, "steps": 30},
    "components": {"components": 2, "steps": 30},
    "tolerance": {"tolerance": 0.1},
    "time_limit": {"time_limit": 1e-3},
    "optimizer": {"training": bf.Training(optimizer=0.0123), "steps": 30},
}


@pytest.mark.filterwarnings("ignore:bernflow. Poor")  # which 30 steps are
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("path", PATHS)
def test_an_argument_is_honored_or_refused_on_every_path(path, argument, monkeypatch):
    how = {"family": "gaussian", "progress": False, **ARGUMENTS[argument]}
    if (path, argument) in REFUSED:
        with pytest.raises(ArgumentError, match=f"^{argument}={how[argument]}: .*{REFUSED[path, argument]}"):
            PATHS[path](**how)
        return
    rates, call = [], Recipe.rates
    monkeypatch.setattr(Recipe, "rates", lambda self, *args: [call(self, *args), rates.append(self.learning_rate)][0])
    posterior = PATHS[path](**how)
    settings, diagnostics = posterior.settings, posterior.diagnostics
    if argument == "optimizer":
        assert settings["learning_rate"] == 0.0123
        assert set(rates) == {0.0123}
    elif argument == "time_limit":
        assert settings["time_limit"] == 1e-3
        assert settings["out_of_time"] == (path != "all rows")  # whose start is good enough, without a step
        assert ("Stopped by time_limit=0.001 s" in diagnostics.status) == settings["out_of_time"]
    elif argument == "tolerance":
        assert settings["tolerance"] == 0.1
        assert diagnostics.verdict == "good"
    else:  # other fits tell what the best one misses, or are parts of a mixture with it
        assert settings["restarts"] == (2 if argument == "restarts" else 8)
        assert diagnostics.missing_mass is not None or argument == "components"


@pytest.mark.parametrize("path", ["batches", "own batches", "network"])
@pytest.mark.filterwarnings("ignore:bernflow. Poor")  # which one chunk of steps is
def test_an_interruption_keeps_the_fit_on_every_path(path, monkeypatch):
    call, seen = Recorder.__call__, []

    def report(self, done, planned, trace):
        call(self, done, planned, trace)
        seen.append(done)
        if done >= 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "__call__", report)
    with pytest.warns(UserWarning, match=r"interrupted after \d+ steps.*judged and returned"):
        posterior = PATHS[path](family="gaussian", steps=4000, progress=False)
    assert posterior.settings["interrupted"]
    assert posterior.settings["joint_steps"] == seen[-1] < 4000
    assert np.isfinite(posterior.diagnostics.elbo)
    # The posterior is that of all rows, given the network as far as it was trained.
    assert posterior.log_weights(100).shape == (100,)


def test_in_many_dimensions_batches_take_shorter_steps():
    num = 2 * FULL_RATE_DIM
    model = bf.Model(
        prior={"b": dist.Normal(0.0, 1.0).expand([num]).to_event(1)},
        likelihood=lambda theta, x: dist.Normal(x @ theta["b"], 1.0),
        y=np.zeros(50),
        x=np.ones((50, num)),
    )
    settings = resolve_settings(family="gaussian")
    stage = BatchStage(model, settings, Run(), NetworkTraining(), 10, as_key(0))
    assert stage._recipe().learning_rate == settings.rate_in(num) == settings.learning_rate / 2


class Linear(eqx.Module):
    layer: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        self.layer = eqx.nn.Linear(4, "scalar", key=key)
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, image, *, key=None):
        return self.layer(self.dropout(image, key=key))


class Normalised(eqx.Module):
    norm: eqx.nn.BatchNorm
    layer: eqx.nn.Linear

    def __init__(self, key):
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")
        self.layer = eqx.nn.Linear(4, "scalar", key=key)

    def __call__(self, image, state):
        out, state = self.norm(image, state)
        return self.layer(out), state


def nnx_network():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(4, momentum=0.5, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.layer = nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, images):
            return self.layer(self.dropout(self.norm(images)))[:, 0]

    return Net(nnx.Rngs(0))


def networks():
    key = jax.random.key(0)
    return {
        "equinox": lambda: Linear(key),
        "equinox with state": lambda: eqx.nn.make_with_state(Normalised)(key),
        "nnx": nnx_network,
    }


@pytest.mark.parametrize("name", networks())
def test_every_kind_of_network(name):
    network = as_network(networks()[name]())
    images = np.random.default_rng(0).normal(2.0, 3.0, size=(10, 4)).astype(np.float32)
    key = jax.random.key(1)
    out, state = network.apply(network.weights, network.state, jnp.asarray(images), key, True)
    assert out.shape == (10,)
    frozen = evaluate(network.with_weights(network.weights, state), images, block=4)
    np.testing.assert_allclose(
        frozen, evaluate(network.with_weights(network.weights, state), images, block=3), rtol=1e-4
    )
    if name != "equinox with state":  # dropout: training is random, prediction is not
        other, _ = network.apply(network.weights, network.state, jnp.asarray(images), jax.random.key(2), True)
        assert not np.allclose(out, other)
    if name != "equinox":  # batch normalisation: running statistics have moved, and prediction uses them
        assert not np.allclose(frozen, evaluate(network, images))


def pictures(num=400, seed=0, beta=0.8):
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(num, 4)).astype(np.float32)
    x = rng.normal(size=num)
    y = images @ np.array([1.0, -1.0, 0.5, 0.0]) + beta * x + 0.5 * rng.normal(size=num)
    return images, x, y


def test_a_network_is_trained_beside_the_posterior(tmp_path):
    images, x, y = pictures()
    model = bf.Model(
        prior={"beta": dist.Normal(0.0, 1.0)},
        likelihood=lambda theta, x, h: dist.Normal(h + theta["beta"] * x, 0.5),
        y=y,
        x=x,
        network=eqx.nn.Linear(4, "scalar", key=jax.random.key(0)),
        images=images,
    )
    posterior = bf.fit(model, batch_size=50, steps=2000, progress=False)
    assert posterior.diagnostics.verdict == "good"
    weights = posterior.model.network.weights.weight
    np.testing.assert_allclose(np.ravel(weights), [1.0, -1.0, 0.5, 0.0], atol=0.15)
    # Given the network the posterior is Gaussian.
    residual = y - posterior.model.features
    variance = 1.0 / (x @ x / 0.25 + 1.0)
    draws = posterior.draws(20_000)["beta"]
    assert draws.mean() == pytest.approx(variance * (x @ residual) / 0.25, abs=0.05 * np.sqrt(variance))
    assert draws.std() == pytest.approx(np.sqrt(variance), rel=0.03)
    assert len(posterior.history["joint_step"]) > 2
    fresh_images, fresh_x, fresh_y = pictures(seed=1)
    predicted = posterior.predict(fresh_x, images=fresh_images, num=200)["y"]
    assert predicted.shape == (200, 400)
    assert np.std(predicted.mean(0) - fresh_y) < 0.65
    average = posterior.predict(fresh_x, images=fresh_images, num=1500, average=True)["y"]
    features = evaluate(posterior.model.network, fresh_images)
    beta = posterior.draws(1500, key=2)["beta"].mean()
    np.testing.assert_allclose(average, features + beta * fresh_x, atol=1e-5)
    # The file brings the trained weights back into the model as it was built.
    path = posterior.save(tmp_path / "posterior.bf")
    again = bf.load(path, model)
    np.testing.assert_array_equal(
        again.predict(fresh_x, images=fresh_images, num=5)["y"],
        posterior.predict(fresh_x, images=fresh_images, num=5)["y"],
    )
    plain = bf.Model(prior=model.prior, likelihood=lambda t, x: dist.Normal(t["beta"] * x, 0.5), y=y, x=x)
    with pytest.raises(ArgumentError, match="contains network weights, but the model has no network"):
        bf.load(path, plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": None}, "images= without network="),
        ({"images": None}, "network= without images="),
        ({"images": np.zeros((7, 4))}, "images has 7 rows and y has 400"),
        ({"images": np.full((400, 4), "a")}, "expected numbers, one row per observation"),
        ({"images": np.zeros((400, 3), np.float32)}, "The network failed on a batch of shape \\(2, 3\\)"),
        ({"network": "resnet"}, "expected an equinox module"),
    ],
)
def test_wrong_networks_and_images_are_refused(changes, message):
    images, x, y = pictures()
    arguments = {"network": eqx.nn.Linear(4, "scalar", key=jax.random.key(0)), "images": images} | changes
    with pytest.raises(ModelError, match=message):
        bf.Model(
            prior={"beta": dist.Normal(0.0, 1.0)},
            likelihood=lambda theta, x, h: dist.Normal(h + theta["beta"] * x, 0.5),
            y=y,
            x=x,
            **arguments,
        )
