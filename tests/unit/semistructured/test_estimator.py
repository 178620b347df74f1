import importlib.util

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError, ModelError
from bernflow.semistructured import prediction
from bernflow.semistructured.members import NetworkSource, Prepared

from .conftest import AGE, MALE, Net, binary, make, predictor

QUICK = {"epochs": 2, "batch_size": 50, "progress": False}
# A Gaussian compiles faster than the default; `test_coverage_of_the_interval` uses that.
SMALL = {"family": "gaussian-fullrank"}


@pytest.fixture(scope="module")
def model():
    fitted = bf.SemiStructured(make, "1 + age + C(sex)", **SMALL)
    valid = binary(1, 200)
    return fitted.fit(*binary(), valid, epochs=12, batch_size=100, learning_rate=1e-2, progress=False)


def test_beta_is_recovered_and_its_sd_is_that_of_a_logistic_regression(model):
    table = model.coefficients()
    assert list(table.index) == ["Intercept", "age", "C(sex)[T.m]"]
    # Beyond 4 sd once in 15,000.
    assert abs(table.loc["age", "mean"] - AGE) < 4 * table.loc["age", "sd"]
    assert abs(table.loc["C(sex)[T.m]", "mean"] - MALE) < 4 * table.loc["C(sex)[T.m]", "sd"]
    np.testing.assert_allclose(table["odds_ratio"].iloc[1:], np.exp(table["50%"].iloc[1:]))
    np.testing.assert_allclose(table["odds_ratio_95%"].iloc[1:], np.exp(table["95%"].iloc[1:]))
    assert np.isnan(table.loc["Intercept", "odds_ratio"])
    # Fisher information at the estimate, given the network; the prior adds 1 / 2.5^2.
    data = binary()
    p = model.predict(*data[:2])
    X = np.column_stack([np.ones(1000), data[0]["age"], data[0]["sex"] == "m"])
    sd = np.sqrt(np.diag(np.linalg.inv((X.T * (p * (1 - p))) @ X + np.eye(3) / 2.5**2)))
    np.testing.assert_allclose(table["sd"], sd, rtol=0.1)


def test_predictions_average_over_draws(model, monkeypatch):
    table, images, y = binary(2, 60)
    p = model.predict(table, images, num=300)
    theta = model.posterior.draws(300, jax.random.split(bf.keys.as_key(2), 1)[0])
    eta = np.outer(theta["age"], table["age"]) + np.outer(theta["C(sex)[T.m]"], table["sex"] == "m")
    each = 1 / (1 + np.exp(-eta - theta["Intercept"][:, None] - np.asarray(model.networks[0](images))))
    np.testing.assert_allclose(p, each.mean(0), rtol=1e-5)
    np.testing.assert_array_equal(model.predict(table, images, num=300, kind="proba"), p)
    score = np.log(np.where(y == 1, each, 1 - each).mean(0)).mean()
    assert model.score(table, images, y, num=300) == pytest.approx(score, rel=1e-5)
    # 7 rows at a time: the last block is filled up, and nothing changes.
    monkeypatch.setattr(prediction, "MAX_ELEMENTS", 2100)
    np.testing.assert_allclose(model.predict(table, images, num=300), p, rtol=1e-12)
    draws = model.predict(table, images, num=300, kind="draws")
    assert draws.shape == (300, 60)
    assert np.abs(draws.mean(0) - p).max() < 5 * np.sqrt(0.25 / 300)


def test_curves_and_plot(model):
    history = model.histories[0]
    assert history["elbo"][-1] > history["elbo"][0]
    assert model.best_epochs == [int(np.argmax(history["valid_score"])) + 1]
    assert model.posterior.settings["joint_steps"] == 12 * 10
    figure = model.plot(num=200)
    assert [axes.get_ylabel() for axes in figure.axes[1:]] == ["ELBO", "validation log score"]
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == list(model.coefficients(num=10).index)
    assert "fitted" in repr(model)


def test_new_rows_that_do_not_fit(model):
    table, images, y = binary(2, 4)
    with pytest.raises(ArgumentError, match="category 'x'"):
        model.predict(table | {"sex": ["f", "m", "x", "f"]}, images)
    with pytest.raises(ArgumentError, match=r"table: 4, images: 3"):
        model.predict(table, images[:3])
    with pytest.raises(ArgumentError, match=r"table: 4, images: 4, y: 2"):
        model.score(table, images, y[:2])
    with pytest.raises(ArgumentError, match="kind='median' is unknown"):
        model.predict(table, images, kind="median")


def tiny(outcome):
    table, images, eta, rng = predictor(3, 150)
    if outcome == "poisson":
        return table, images, rng.poisson(np.exp(0.3 * eta))
    classes = np.digitize(eta + rng.logistic(size=150), [-1.0, 1.0])
    return table, images, classes


def nnx_network():
    from flax import nnx

    class Module(nnx.Module):
        def __init__(self, rngs):
            self.layer = nnx.Linear(64, 1, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x):
            return self.layer(self.dropout(x.reshape(len(x), -1)))

    return Module(nnx.Rngs(0))


@pytest.mark.parametrize("outcome", ["poisson", "ordinal", "categorical"])
def test_every_outcome(outcome, tmp_path):
    data = tiny(outcome)
    network = Net(jax.random.key(0), 2) if outcome == "categorical" else Net(jax.random.key(0))
    if outcome == "poisson" and importlib.util.find_spec("flax"):
        network = nnx_network()
    model = bf.SemiStructured(network, "age + C(sex)", outcome, prior={"age": dist.Normal(0, 1)}, **SMALL)
    model.fit(*data, **QUICK, checkpoint=tmp_path)
    table = model.coefficients(num=100)
    prediction = model.predict(*data[:2], num=50)
    assert np.isfinite(model.score(*data, num=50))
    assert model.predict(*data[:2], num=7, kind="draws").shape == (7, 150)
    if outcome in ("ordinal", "categorical"):
        assert prediction.shape == (150, 3)
        np.testing.assert_allclose(prediction.sum(1), 1.0, rtol=1e-6)
    else:
        assert prediction.shape == (150,)
        with pytest.raises(ArgumentError, match="has no probabilities"):
            model.predict(*data[:2], kind="proba")
    rows = [("age", 1), ("age", 2), ("C(sex)[T.m]", 1), ("C(sex)[T.m]", 2)]
    assert list(table.index) == (rows if outcome == "categorical" else ["age", "C(sex)[T.m]"])
    assert "rate_ratio" in table if outcome == "poisson" else "odds_ratio" in table
    assert ("cutpoints" in model.posterior.names) == (outcome == "ordinal")
    model.plot(num=100)


def test_an_orthogonal_network_leaves_beta_what_it_is_without_images():
    table, images, _, rng = predictor(4, 300)
    images = images.astype(np.float64)
    # The pictures show the age, and only they are in y: without the projection beta would be near zero.
    images[:, :2, :2] += table["age"][:, None, None]
    y = 2.0 * images[:, 0, 0] + images[:, 3, 3] + rng.normal(size=300)
    network = eqx.nn.Sequential([eqx.nn.Lambda(jnp.ravel), eqx.nn.Linear(64, "scalar", key=jax.random.key(0))])
    model = bf.SemiStructured(network, "1 + age", "gaussian", prior=dist.Normal(0, 100), orthogonalize=True, **SMALL)
    model.fit(table, images, y, epochs=20, batch_size=50, learning_rate=1e-2, progress=False)
    slope, level = np.polyfit(table["age"], y, 1)
    assert list(model.coefficients().columns) == ["mean", "sd", "5%", "50%", "95%"]
    row = model.coefficients().loc["age"]
    assert abs(row["mean"] - slope) < 0.1 * row["sd"]
    # New rows get the projection of the training, whatever rows come with them.
    together = model.predict(table, images, num=50)
    np.testing.assert_allclose(model.predict({"age": table["age"][:1]}, images[:1], num=50), together[:1], rtol=1e-5)
    residual = y - together
    assert model.posterior.draws(200)["sigma"].mean() == pytest.approx(residual.std(), rel=0.1)
    assert np.var(residual) < 0.5 * np.var(y - slope * table["age"] - level)


def test_an_ensemble_is_a_mixture():
    data = binary(5)
    model = bf.SemiStructured(make, "1 + age + C(sex)", ensemble=2, **SMALL)
    model.fit(*data, data, epochs=2, batch_size=100, progress=False, key=4)
    first, second = model.posteriors
    both = np.concatenate([post.draws(2000)["age"] for post in (first, second)])
    assert abs(model.coefficients().loc["age", "mean"] - both.mean()) < 5 * both.std() / np.sqrt(2000)
    outputs = [np.asarray(network(data[1])) for network in model.networks]
    assert np.abs(outputs[0] - outputs[1]).max() > 0.01
    assert model.predict(*data[:2], num=5, kind="draws").shape == (5, 1000)
    assert model.predict(*data[:2], num=5).shape == (1000,)
    assert np.isfinite(model.score(*data))
    with pytest.raises(ArgumentError, match="the ensemble has 2 of them"):
        _ = model.posterior


def test_networks_that_differ_in_weights_only_share_their_compilation():
    for function in (Net, lambda key: eqx.nn.make_with_state(Net)(key)):
        source = NetworkSource(function, 2, None)
        one, other = source(jax.random.key(0)), source(jax.random.key(1))
        assert one.apply == other.apply
        assert not eqx.tree_equal(one.weights, other.weights)
    widths = iter((3, 4))
    source = NetworkSource(lambda key: eqx.nn.MLP(2, "scalar", next(widths), 1, key=key), 2, None)
    assert source(jax.random.key(0)).apply != source(jax.random.key(0)).apply


def test_an_ensemble_needs_a_function(net):
    with pytest.raises(ArgumentError, match=r"ensemble=2 with a network of type Net: expected a function"):
        bf.SemiStructured(net, "age", ensemble=2)
    if importlib.util.find_spec("flax"):
        with pytest.raises(ArgumentError, match=r"type Module: expected a function"):
            bf.SemiStructured(nnx_network(), "age", ensemble=2)


def test_images_are_augmented_in_training_only():
    prepared = Prepared(lambda w, s, x, key, training: (x.sum(1), s), lambda key, x: x + 1.0)
    x = jnp.ones((3, 2))
    assert prepared(None, None, x, jax.random.key(0), True)[0].tolist() == [4.0] * 3
    assert prepared(None, None, x, jax.random.key(0), False)[0].tolist() == [2.0] * 3
    shorter = Prepared(prepared.apply, lambda key, x: x[1:])
    with pytest.raises(ModelError, match=r"augment\(key, images\) returned shape \(2, 2\)"):
        shorter(None, None, x, jax.random.key(0), True)
    with pytest.raises(ArgumentError, match="augment=1: expected a function"):
        NetworkSource(Net, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outcome": "binary"}, "outcome='binary' is unknown"),
        ({"formula": "age +"}, "cannot be read"),
        ({"formula": "1 + age", "outcome": "ordinal"}, "whose cutpoints are the intercepts"),
        ({"prior": 2.5}, "expected a NumPyro distribution"),
        ({"ensemble": 0}, "ensemble=0: expected a whole number"),
        ({"orthogonalize": "yes"}, "expected True or False"),
        ({"family": "cubist"}, "cubist"),
    ],
)
def test_wrong_arguments(net, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        bf.SemiStructured(net, **({"formula": "age"} | arguments))


def test_what_is_no_network():
    with pytest.raises(ModelError, match="expected an equinox module"):
        bf.SemiStructured(3, "age")


@pytest.mark.parametrize("what", ["predict", "score", "coefficients", "plot"])
def test_before_the_fit(net, what):
    model = bf.SemiStructured(net, "age")
    with pytest.raises(ArgumentError, match=r"before fit: call fit\(table, images, y\) first"):
        getattr(model, what)(*binary()[: {"predict": 2, "score": 3}.get(what, 0)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((3, 8, 8))}, r"table: 30, images: 3, y: 30"),
        ({"images": np.full((30, 8, 8), np.nan)}, "images has values that are not finite, the first in row 0"),
        ({"images": np.full(30, "a")}, "images has shape .* expected numbers"),
        ({"y": np.arange(30)}, "not 0 or 1"),
        ({"table": {"sex": ["f"] * 30}}, "asks for the column 'age'"),
        ({"valid": 3}, r"expected a tuple \(table, images, y\)"),
        ({"valid": ({"age": [1.0]}, np.zeros((1, 8, 8)), [2])}, "valid y has 1 values"),
        ({"patience": 2}, "patience=2 without valid"),
        ({"learning_rate": -1.0}, "expected a positive number"),
        ({"optimizer": "adam"}, "expected an optax optimizer"),
        ({"epochs": 0}, "epochs=0"),
    ],
)
def test_wrong_data(net, change, message):
    table, images, y = binary(0, 30)
    with pytest.raises(ArgumentError, match=message):
        bf.SemiStructured(net, "age").fit(**({"table": table, "images": images, "y": y} | change))


@pytest.mark.parametrize(("size", "message"), [(2, r"returns shape \(2,\) per row"), (None, "The network failed on")])
def test_networks_that_do_not_fit(size, message):
    network = eqx.nn.Linear(3, "scalar", key=jax.random.key(0)) if size is None else Net(jax.random.key(0), size)
    with pytest.raises(ModelError, match=message):
        bf.SemiStructured(network, "age").fit(*binary(0, 30))


@pytest.mark.slow
def test_coverage_of_the_interval(record_property):
    """Pictures and table are independent, so 90 % intervals hold the truth about 36 of 40 times (31 to 39: 98 %)."""
    # After 10 epochs the network explains too little, and beta comes out 7 % too small; 30 are enough.
    model = bf.SemiStructured(Net, "1 + age + C(sex)")
    hits = np.zeros(2)
    for seed in range(40):
        fitted = model.fit(
            *binary(100 + seed, 1000), epochs=30, batch_size=64, learning_rate=1e-2, key=seed, progress=False
        )
        low, high = fitted.coefficients()[["5%", "95%"]].to_numpy()[1:].T
        hits += (low <= [AGE, MALE]) & (high >= [AGE, MALE])
    record_property("coverage", (hits / 40).tolist())
    print(f"coverage of 90 % intervals over 40 repeats: age {hits[0] / 40:.3f}, C(sex) {hits[1] / 40:.3f}")
    assert np.all((hits / 40 > 0.77) & (hits / 40 < 0.99))
