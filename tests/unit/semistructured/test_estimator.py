import importlib.util

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.special import expit

import bernflow as bf
from bernflow.errors import ArgumentError, BernflowError, ModelError
from bernflow.semistructured import fitting, inference, prediction
from bernflow.semistructured.members import NetworkSource, Prepared

from .conftest import AGE, MALE, Net, binary, make, predictor

QUICK = {"epochs": 2, "batch_size": 50, "progress": False}
# A Gaussian compiles faster than the default; `test_coverage_of_the_interval` uses that.
SMALL = {"family": "gaussian-fullrank"}
# A table in the units of people: years, and a category.
YEARS = {"age": 60.0 + 15.0 * np.asarray(binary()[0]["age"]), "sex": binary()[0]["sex"]}
HOW = {"epochs": 12, "batch_size": 50, "optimizer": 1e-2, "progress": False}


@pytest.fixture(scope="module")
def model():
    return bf.SemiStructured(make, "age + C(sex)", **SMALL).fit(YEARS, *binary()[1:], **HOW)


def test_beta_is_recovered_in_the_units_of_the_table(model):
    table = model.coefficients()
    assert list(table.index) == ["Intercept", "age", "C(sex)[T.m]"]
    # Beyond 4 sd once in 15,000.
    for name, truth in (("age", AGE / 15), ("C(sex)[T.m]", MALE), ("Intercept", -0.5 - 4 * AGE)):
        assert abs(table.loc[name, "mean"] - truth) < 4 * table.loc[name, "sd"]
    np.testing.assert_allclose(table["odds_ratio"].iloc[1:], np.exp(table["50%"].iloc[1:]))
    assert np.isnan(table.loc["Intercept", "odds_ratio"])
    # Not narrower than the regression that knows what the network had to learn.
    table, _, eta, _ = predictor(0, 1000)
    p = expit(eta)
    X = np.column_stack([np.ones(1000), YEARS["age"], np.asarray(table["sex"]) == "m"])
    known = np.sqrt(np.diag(np.linalg.inv((X.T * (p * (1 - p))) @ X)))
    ratio = model.coefficients()["sd"].to_numpy() / known
    assert np.all((ratio > 0.9) & (ratio < 1.4))


def test_units_and_origins_change_nothing(model):
    other = {"age": 1000.0 - 365.25 * YEARS["age"], "sex": YEARS["sex"]}
    moved = bf.SemiStructured(make, "age + C(sex)", **SMALL).fit(other, *binary()[1:], **HOW)
    one, two = model.coefficients(), moved.coefficients()
    np.testing.assert_allclose(
        two.loc["age", ["mean", "sd"]] * [-365.25, 365.25], one.loc["age", ["mean", "sd"]], rtol=0.03
    )
    np.testing.assert_allclose(
        two.loc["C(sex)[T.m]", ["mean", "sd"]], one.loc["C(sex)[T.m]", ["mean", "sd"]], rtol=0.03
    )
    rows = slice(0, 20)
    first = model.predict({k: v[rows] for k, v in YEARS.items()}, binary()[1][rows])
    second = moved.predict({k: v[rows] for k, v in other.items()}, binary()[1][rows])
    np.testing.assert_allclose(first, second, atol=0.02)
    prior = model.priors()
    assert prior.loc["age", "standardized"] == "Normal(0, 2.5)"
    assert prior.loc["age", "prior"] == f"Normal(0, {2.5 / YEARS['age'].std():.4g})"


def test_predictions_average_over_draws_and_networks(model, monkeypatch):
    _, images, y = (part[:60] for part in (np.zeros(60), *binary()[1:]))
    table = {name: values[:60] for name, values in YEARS.items()}
    eta = model.predict(table, images, num=300, kind="linear")
    each, p = expit(eta), model.predict(table, images, num=300)
    np.testing.assert_allclose(p, each.mean(0), rtol=1e-5)
    np.testing.assert_array_equal(model.predict(table, images, num=300, kind="proba"), p)
    score = np.log(np.where(y == 1, each, 1 - each).mean(0)).mean()
    assert model.score(table, images, y, num=300) == pytest.approx(score, rel=1e-5)
    # What the images contribute is what is left of the linear predictor without the table.
    rest = eta - model.predict(table, images, num=300, kind="images")
    age = np.asarray(table["age"])
    slope = np.polyfit(age[table["sex"] == "f"], rest[:, table["sex"] == "f"].mean(0), 1)[0]
    assert slope == pytest.approx(model.coefficients().loc["age", "mean"], rel=0.05)
    alone = [model.predict(table, images, num=300, network=k) for k in (0, 1)]
    assert np.abs(np.mean(alone, 0) - p).max() < 0.1
    assert np.abs(alone[0] - alone[1]).max() > 1e-3
    # 7 rows at a time: the last block is filled up, and nothing changes.
    monkeypatch.setattr(prediction, "MAX_ELEMENTS", 2100)
    np.testing.assert_allclose(model.predict(table, images, num=300), p, rtol=1e-12)
    draws = model.predict(table, images, num=300, kind="draws")
    assert draws.shape == (300, 60)
    assert np.abs(draws.mean(0) - p).max() < 5 * np.sqrt(0.25 / 300)


def test_curves_figures_and_report(model, tmp_path):
    history = model.histories[0]
    assert history["loss"][-1] < history["loss"][0]
    assert model.best_epochs[0] == int(np.argmax(history["valid_score"])) + 1
    figure = model.plot()
    assert [axes.get_ylabel() for axes in figure.axes[1:]] == ["loss", "validation log score"]
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == list(model.coefficients().index)
    assert model.diagnostics.verdict in repr(model)
    assert (model.diagnostics.verdict == "good") == (not model.findings)
    assert "age" in model.report(tmp_path / "report.html").read_text()
    assert "Intercept" in str(model.summary())


def test_a_saved_model_comes_back(model, tmp_path):
    path = model.save(tmp_path / "model.bernflow")
    without = bf.load(path)
    pd.testing.assert_frame_equal(without.coefficients(), model.coefficients())
    pd.testing.assert_frame_equal(without.priors(), model.priors())
    assert without.findings == model.findings
    table = {"age": [40.0, 80.0], "sex": ["f", "m"]}
    with pytest.raises(ArgumentError, match=r"loaded without its network.*bernflow.load\(path, network\)"):
        without.predict(table, binary()[1][:2])
    again = bf.load(path, make)
    np.testing.assert_array_equal(again.predict(table, binary()[1][:2]), model.predict(table, binary()[1][:2]))
    again.plot()
    assert bf.load(model.posterior.save(tmp_path / "posterior")).layout.dim == model.posterior.layout.dim
    with pytest.raises(ArgumentError, match=r"the folder .* does not exist"):
        model.save(tmp_path / "no" / "model")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(bf.FileFormatError, match="damaged"):
        bf.load(path)


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
    with pytest.raises(ArgumentError, match="predict was called without images"):
        model.predict(table)


def tiny(outcome):
    table, images, eta, rng = predictor(3, 150)
    if outcome == "poisson":
        return table, images, rng.poisson(np.exp(0.3 * eta))
    if outcome == "gaussian":
        return table, images, 50 + 10 * (eta + rng.normal(size=150))
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


@pytest.mark.parametrize(
    "outcome",
    [
        "gaussian",
        pytest.param("poisson", marks=pytest.mark.slow),
        pytest.param("ordinal", marks=pytest.mark.slow),
        "categorical",
    ],
)
def test_every_outcome(outcome, tmp_path):
    data = tiny(outcome)
    network = Net(jax.random.key(0), 2) if outcome == "categorical" else Net(jax.random.key(0))
    if outcome == "poisson" and importlib.util.find_spec("flax"):
        network = nnx_network()
    model = bf.SemiStructured(network, "age + C(sex)", outcome, prior={"age": dist.Normal(0, 10)}, **SMALL)
    model.fit(*data, data, **QUICK)
    table = model.coefficients()
    mean = model.predict(*data[:2], num=50)
    assert np.isfinite(model.score(*data, num=50))
    assert model.predict(*data[:2], num=7, kind="draws").shape == (7, 150)
    if outcome in ("ordinal", "categorical"):
        assert mean.shape == (150, 3)
        np.testing.assert_allclose(mean.sum(1), 1.0, rtol=1e-6)
    else:
        assert np.corrcoef(mean, data[2])[0, 1] > 0.2
        with pytest.raises(ArgumentError, match="has no probabilities"):
            model.predict(*data[:2], kind="proba")
    if outcome == "gaussian":
        assert abs(table.loc["age", "mean"] - 8) < 4 * table.loc["age", "sd"]
        assert 8 < model.posterior.draws(200)["sigma"].mean() < 25
    sites = [("age", 1), ("age", 2), ("C(sex)[T.m]", 1), ("C(sex)[T.m]", 2)]
    rows = {"categorical": [("Intercept", 1), ("Intercept", 2), *sites], "ordinal": ["age", "C(sex)[T.m]"]}
    assert list(table.index) == rows.get(outcome, ["Intercept", "age", "C(sex)[T.m]"])
    assert ("rate_ratio" in table) == (outcome == "poisson")
    assert ("cutpoints" in model.posterior.names) == (outcome == "ordinal")
    back = bf.load(model.save(tmp_path / "model"), network)
    np.testing.assert_array_equal(back.predict(*data[:2], num=50), mean)
    model.plot()


def test_nothing_trained_is_lost_when_a_later_step_fails(model, monkeypatch):
    again = bf.SemiStructured(make, "age + C(sex)", **SMALL)
    calls = []
    train_all, fit = fitting.train_all, inference.fit
    monkeypatch.setattr(fitting, "train_all", lambda *args: calls.append(1) or train_all(*args))
    monkeypatch.setattr(inference, "fit", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(BernflowError, match=r"networks are trained, but .* call fit again with the same arguments"):
        again.fit(YEARS, *binary()[1:], **HOW)
    monkeypatch.setattr(inference, "fit", fit)
    again.fit(YEARS, *binary()[1:], **HOW)
    assert calls == [1]
    pd.testing.assert_frame_equal(again.coefficients(), model.coefficients())


def test_an_undertrained_network_is_told():
    table, images, y = binary()
    model = bf.SemiStructured(make, "age + C(sex)", **SMALL)
    model.fit(table, images, y, epochs=12, batch_size=50, optimizer=1e-3, progress=False)
    assert any("undertrained" in finding for finding in model.findings)
    assert model.diagnostics.verdict != "good"
    assert model.findings[0] in model.diagnostics.status


def test_images_in_a_column_of_the_table():
    table, images, y = tiny("gaussian")
    frame = pd.DataFrame(table | {"picture": list(images)})
    model = bf.SemiStructured(Net(jax.random.key(0)), "age + C(sex)", "gaussian", images="picture", **SMALL)
    model.fit(frame, y, **QUICK)
    plain = bf.SemiStructured(Net(jax.random.key(0)), "age + C(sex)", "gaussian", **SMALL).fit(
        table, images, y, **QUICK
    )
    np.testing.assert_array_equal(model.predict(frame), plain.predict(table, images))
    assert model.score(frame, y) == plain.score(table, images, y)
    with pytest.raises(ArgumentError, match="no column 'picture'"):
        model.predict(table)


def test_cross_validation_and_pipelines_of_scikit_learn():
    pytest.importorskip("sklearn")
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    table, images, y = tiny("gaussian")
    frame = pd.DataFrame(table | {"picture": list(images)})
    model = bf.SemiStructured(Net(jax.random.key(0)), "age + C(sex)", "gaussian", images="picture", **SMALL)
    assert clone(model).get_params()["formula"] == "age + C(sex)"
    scores = cross_val_score(model, frame, y, cv=2, params=QUICK)
    assert np.all(np.isfinite(scores))
    pipeline = make_pipeline(FunctionTransformer(lambda frame: frame.assign(age=frame["age"] * 2)), model)
    pipeline.fit(frame, y, **{f"semistructured__{name}": value for name, value in QUICK.items()})
    assert pipeline.predict(frame).shape == (150,)
    assert np.isfinite(pipeline.score(frame, y))


def test_arguments_are_parameters(net):
    model = bf.SemiStructured(net, "age")
    assert model.get_params()["network"] is net
    model.set_params(formula="age + C(sex)", networks=3)
    assert repr(model) == "SemiStructured('age + C(sex)', outcome='bernoulli', networks=3; not fitted)"
    with pytest.raises(ArgumentError, match="'formulas' is no argument"):
        model.set_params(formulas="age")


def test_networks_that_differ_in_weights_only_share_their_compilation():
    for function in (Net, lambda key: eqx.nn.make_with_state(Net)(key)):
        source = NetworkSource(function, None)
        one, other = source(jax.random.key(0)), source(jax.random.key(1))
        assert one.apply == other.apply
        assert not eqx.tree_equal(one.weights, other.weights)
    widths = iter((3, 4))
    source = NetworkSource(lambda key: eqx.nn.MLP(2, "scalar", next(widths), 1, key=key), None)
    assert source(jax.random.key(0)).apply != source(jax.random.key(0)).apply


def test_images_are_augmented_in_training_only():
    prepared = Prepared(lambda w, s, x, key, training: (x.sum(1), s), lambda key, x: x + 1.0)
    x = jnp.ones((3, 2))
    assert prepared(None, None, x, jax.random.key(0), True)[0].tolist() == [4.0] * 3
    assert prepared(None, None, x, jax.random.key(0), False)[0].tolist() == [2.0] * 3
    shorter = Prepared(prepared.apply, lambda key, x: x[1:])
    with pytest.raises(ModelError, match=r"augment\(key, images\) returned shape \(2, 2\)"):
        shorter(None, None, x, jax.random.key(0), True)
    with pytest.raises(ArgumentError, match="augment=1: expected a function"):
        NetworkSource(Net, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outcome": "binary"}, "outcome='binary' is unknown"),
        ({"formula": "age +"}, "cannot be read"),
        ({"prior": 2.5}, "expected a NumPyro distribution"),
        ({"networks": 1}, "networks=1: expected at least 2"),
        ({"networks": 0}, "networks=0: expected a whole number"),
        ({"family": "cubist"}, "cubist"),
    ],
)
def test_wrong_arguments(net, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        bf.SemiStructured(net, **({"formula": "age"} | arguments))


def test_what_is_no_network():
    with pytest.raises(ModelError, match="expected an equinox module"):
        bf.SemiStructured(3, "age")


@pytest.mark.parametrize("what", ["predict", "score", "coefficients", "plot", "summary", "report", "priors"])
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
        ({"y": None}, "fit was called without images or y"),
        ({"table": {"sex": ["f"] * 30}}, "asks for the column 'age'"),
        ({"table": {"age": [61.0] * 30}}, "has the same value 61 in every row"),
        ({"valid": 3}, r"expected a tuple \(table, images, y\)"),
        ({"valid": ({"age": [1.0]}, np.zeros((1, 8, 8)), [2])}, "valid y has 1 values"),
        ({"groups": [1, 2]}, r"groups has shape \(2,\)"),
        ({"groups": [1] * 30}, "groups has fewer than networks=2 groups"),
        ({"optimizer": -1.0}, "expected a positive learning rate or an optax optimizer"),
        ({"learning_rate": 0.1}, r"fit no longer takes 'learning_rate': write optimizer=0\.1"),
        ({"optimizer": "adam"}, "expected a positive learning rate or an optax optimizer"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
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
    model = bf.SemiStructured(Net, "age + C(sex)")
    hits = np.zeros(2)
    for seed in range(40):
        fitted = model.fit(*binary(100 + seed, 1000), epochs=30, optimizer=1e-2, key=seed, progress=False)
        low, high = fitted.coefficients()[["5%", "95%"]].to_numpy()[1:].T
        hits += (low <= [AGE, MALE]) & (high >= [AGE, MALE])
    record_property("coverage", (hits / 40).tolist())
    print(f"coverage of 90 % intervals over 40 repeats: age {hits[0] / 40:.3f}, C(sex) {hits[1] / 40:.3f}")
    assert np.all((hits / 40 > 0.77) & (hits / 40 < 0.99))
