import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.calibrate import blocks, ranking
from bernflow.calibrate.result import Calibration, deviation, p_values_of
from bernflow.errors import ArgumentError, ModelError
from bernflow.models.numpyro import NumPyroModel

QUICK = {"num_simulations": 20, "num_draws": 100, "steps": 250, "family": "gaussian", "progress": False}


def ranks_of(calibration, **replaced):
    """Return a calibration with other ranks."""
    ranks = {**calibration.ranks, **replaced}
    return dataclasses.replace(calibration, ranks=ranks, p_values=p_values_of(ranks, calibration.num_draws))


def test_shapes_and_names(calibration):
    shapes = {name: value.shape for name, value in calibration.ranks.items()}
    assert list(shapes.items()) == [("s", (65,)), ("b", (65, 2)), ("log_joint", (65,))]
    assert set(calibration.z_scores) == set(calibration.contraction) == {"s", "b"}
    assert {name: value.shape for name, value in calibration.p_values.items()} == {"s": (), "b": (2,), "log_joint": ()}
    assert len(calibration.fits) == calibration.num_simulations == 65
    assert all(value.min() >= 0 and value.max() <= 200 for value in calibration.ranks.values())
    assert list(calibration.table().index) == ["s", "b[0]", "b[1]", "log_joint"]


def test_a_right_model_is_not_called_poor(calibration):
    assert calibration.verdict != "poor"
    assert calibration.num_poor == 0
    # z-scores have the sd 1 on average over prior and data; 65 of them know it to 9 %.
    assert calibration.table()["z_sd"].loc["b[0]"] == pytest.approx(1.0, abs=0.36)
    assert 0.3 < calibration.contraction["b"].mean() < 1.0


def test_other_keys_are_other_data_and_compile_nothing():
    traced = []

    def likelihood(theta):
        traced.append(isinstance(theta["m"], jax.core.Tracer))
        return dist.Normal(theta["m"], 1.0)

    model = bf.Model(prior={"m": dist.Normal(0.0, 1.0)}, likelihood=likelihood, y=np.zeros(4))
    first = bf.calibrate(model, **QUICK)
    assert sum(traced) > 1
    traced.clear()
    second = bf.calibrate(model, **{**QUICK, "key": 1})
    assert sum(traced) <= 1  # the preflight looks at shapes every time
    assert not np.array_equal(first.ranks["m"], second.ranks["m"])
    assert len(np.unique(first.ranks["m"])) > 10
    assert np.array_equal(first.ranks["m"], bf.calibrate(model, **QUICK).ranks["m"])
    weighted = bf.calibrate(model, weighted=True, **QUICK)
    assert weighted.settings["weighted"]
    # The fit is exact, so that weights change nothing but the noise of 100 draws: sd 5 each, less at the ends.
    assert np.abs(weighted.ranks["m"] - first.ranks["m"]).max() < 5 * np.sqrt(2) * 5


def test_without_steps_every_fit_stops_at_the_tolerance():
    model = bf.Model(prior={"m": dist.Normal(0.0, 1.0)}, likelihood=lambda th: dist.Normal(th["m"], 1.0), y=np.zeros(4))
    found = bf.calibrate(model, **{**QUICK, "steps": None, "tolerance": 0.02})
    assert found.settings["steps"] is None
    assert found.settings["tolerance"] == 0.02
    assert found.num_poor == 0
    assert found.verdict != "poor"


def test_text_and_html(calibration):
    text = repr(calibration)
    head = "Calibration (65 simulations, 200 draws each, bernstein, 500 steps)"
    assert " ".join(text.split()).startswith(f"{head} {calibration.status}")
    assert "b[1]" in text
    assert "fits called poor 0" in text
    html = calibration._repr_html_()
    assert "<b>Calibration</b>" in html
    assert "log_joint" in html


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda u: 0.7 * u, "the posterior lies too high"),
        (lambda u: 1 - 0.7 * u, "the posterior lies too low"),
        (lambda u: 0.5 + 0.5 * (u - 0.5), "the posterior is too wide"),
        (lambda u: 0.5 + 0.499 * np.sign(u - 0.5) * np.abs(2 * u - 1) ** 0.2, "the posterior is too narrow"),
    ],
)
def test_words_of_a_poor_calibration(calibration, spoil, words):
    u = (np.arange(65) + 0.5) / 65
    wrong = ranks_of(calibration, s=np.floor(spoil(u) * 201).astype(int))
    assert wrong.verdict in ("usable", "poor")
    assert f"s: {words}" in wrong.status
    assert deviation(wrong.ranks["s"], 200) == words


def test_verdicts_follow_the_p_value(calibration):
    for p, verdict, words in [
        (0.2, "good", "as uniform"),
        (0.01, "usable", "doubtful"),
        (1e-6, "poor", "belong together"),
    ]:
        p_values = {**calibration.p_values, "s": np.array(p / 4), "b": np.ones(2), "log_joint": np.array(1.0)}
        found = dataclasses.replace(calibration, p_values=p_values)
        assert found.p_value == pytest.approx(p)
        assert found.verdict == verdict
        assert words in found.status


def test_poor_fits_are_mentioned(calibration):
    found = dataclasses.replace(calibration, fits=("poor",) * 3 + calibration.fits[3:])
    assert found.num_poor == 3
    assert "3 of 65 fits are poor" in found.status


def test_many_components_show_the_worst(calibration):
    rng = np.random.default_rng(0)
    many = Calibration(
        ranks={"a": rng.integers(0, 201, (65, 30))} | {"w": np.zeros(65, int)},
        z_scores={},
        contraction={},
        p_values=p_values_of({"a": rng.integers(0, 201, (65, 30)), "w": np.zeros(65, int)}, 200),
        fits=calibration.fits,
        num_draws=200,
        settings=calibration.settings,
    )
    assert "... and 11 more, of larger p-values" in " ".join(repr(many).split())
    assert "\n  w " in repr(many)


def test_ties_are_broken_at_random():
    ranks = ranking._ranks(np.ones(2000), np.ones((2000, 3)), np.random.default_rng(0))
    # Each of four ranks comes 500 times, with a standard error of 19.
    assert np.all(np.abs(np.bincount(ranks) - 500) < 80)


def test_ranks_z_scores_and_contraction():
    draws = np.array([[1.0, 2.0, 3.0, 6.0]])
    sample = blocks.Sample(np.array([-1.0]), {"x": draws}, np.array([[-3.0, 0.0, -2.0, -1.5]]), np.zeros((1, 4)))
    found = ranking.collect(("x",), [{"x": np.array([2.5])}], [sample], ["good"], {"x": np.array(14.0)}, 4, 0, {})
    assert found.ranks["x"] == 2
    assert found.ranks["log_joint"] == 3
    # Mean 3 and variance 14 / 4.
    np.testing.assert_allclose(found.z_scores["x"], (3.0 - 2.5) / np.sqrt(3.5))
    np.testing.assert_allclose(found.contraction["x"], 1 - 3.5 / 14)


def test_software_with_its_own_map_is_refused():
    pymc = pytest.importorskip("pymc")
    with pymc.Model() as foreign:
        pymc.Normal("y", pymc.Normal("m"), observed=np.zeros(3))
    with pytest.raises(ModelError, match="runs in software of its own, one data set at a time"):
        bf.calibrate(foreign, **QUICK)


def numpyro_model(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Poisson(jnp.exp(b * x)), obs=y)


def lagged(y):
    phi = numpyro.sample("phi", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(phi * jnp.concatenate([jnp.zeros(1), y[:-1]]), 1.0), obs=y)


@pytest.mark.slow
def test_simulate_returns_a_numpyro_model_of_counts():
    x = jnp.linspace(-1.0, 1.0, 5)

    def simulate(key):
        first, second = jax.random.split(key)
        b = jax.random.normal(first)
        return {"b": b}, functools.partial(numpyro_model, x, jax.random.poisson(second, jnp.exp(b * x)))

    found = bf.calibrate(simulate=simulate, **{**QUICK, "num_simulations": 40})
    assert len(np.unique(found.ranks["b"])) > 20
    # One calibration of a thousand is worse by chance.
    assert found.verdict != "poor"


def improper():
    return bf.Model(
        prior={"m": dist.ImproperUniform(dist.constraints.real, (), ())},
        likelihood=lambda theta: dist.Normal(theta["m"], 1.0),
        y=np.zeros(3),
    )


def subsampled(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 4, subsample_size=2):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=numpyro.subsample(y, event_dim=0))


def pointwise():
    return bf.Model(
        prior={"m": dist.Normal(0, 1)}, log_likelihood=lambda theta, y: -0.5 * (y - theta["m"]) ** 2, y=np.zeros(3)
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "neither of model and simulate="),
        ((numpyro_model,), {"simulate": lambda key: None}, "both of model and simulate="),
        ((numpyro_model,), {"num_simulations": 5}, "num_simulations=5: expected at least 20"),
        ((numpyro_model,), {"num_draws": 0}, "num_draws=0: expected a whole number"),
        (
            (numpyro_model,),
            {"order": 5},
            r"no longer takes 'order': write training=bf\.Training\(order=5\)",
        ),
        ((numpyro_model,), {"training": 5}, r"training=5: expected options such as bf\.Training"),
        ((numpyro_model,), {"steps": 0}, "steps=0: expected a whole number"),
        ((numpyro_model,), {"tolerance": 0.1}, "steps=250, tolerance=0.1: one of them ends the training"),
    ],
)
def test_arguments_are_checked(args, kwargs, words):
    with pytest.raises(ArgumentError, match=words):
        bf.calibrate(*args, **{**QUICK, **kwargs})


def test_simulate_must_be_a_function():
    with pytest.raises(ArgumentError, match="simulate=3: expected a function of a key"):
        bf.calibrate(simulate=3, **QUICK)


@pytest.mark.parametrize(
    ("build", "args", "words"),
    [
        (improper, (), "has an improper prior"),
        (lambda: subsampled, (np.zeros(4),), "trained on batches of its rows"),
        (lambda: lagged, (np.arange(5.0),), "uses observed data also elsewhere, in the term of 'y'"),
        (pointwise, (), "Prediction needs likelihood="),
        (lambda: bf.from_log_density(lambda th: -(th["x"] ** 2), {"x": 0.0}), (), "has no observed data"),
    ],
)
def test_models_that_cannot_be_simulated(build, args, words):
    with pytest.raises(ModelError, match=words):
        bf.calibrate(build(), *args, **QUICK)


def density(shape=()):
    return bf.from_log_density(lambda theta: -jnp.sum(theta["x"] ** 2), {"x": np.zeros(shape)})


@pytest.mark.parametrize(
    ("simulate", "words"),
    [
        (lambda key: 3, "returned a int: expected a tuple"),
        (lambda key: ({"z": 1.0}, density()), r"the parameter 'x' is missing in \['z'\]"),
        (
            lambda key: ({"x": jnp.zeros(2)}, density((3,))),
            r"the parameter 'x' is of shape \(2,\): expected shape \(3,\)",
        ),
        (lambda key: ({"x": jnp.zeros(())}, "model.stan"), "The model is a builtins.str"),
    ],
)
def test_what_simulate_returns_is_checked(simulate, words):
    with pytest.raises(ModelError, match=words):
        bf.calibrate(simulate=simulate, **QUICK)


def test_simulate_must_be_compilable():
    def simulate(key):
        x = jax.random.normal(key)
        np.asarray(x)
        return {"x": x}, density()

    with pytest.raises(ModelError, match="computes with NumPy or looks at values"):
        bf.calibrate(simulate=simulate, **QUICK)


def test_simulated_pairs_must_be_possible():
    sample = blocks.Sample(np.array([0.0, -np.inf]), {"x": np.zeros((2, 5))}, np.zeros((2, 5)), np.zeros((2, 5)))
    with pytest.raises(ModelError, match="the log density of 1 of 2 simulated pairs"):
        ranking.collect(("x",), [{"x": np.zeros(2)}], [sample], ["good"] * 2, {"x": np.ones(())}, 5, 0, {})


def test_other_data_of_a_model(model):
    y = jnp.arange(6.0)
    assert np.array_equal(model.with_observed({"y": y}).y, y)
    with pytest.raises(ModelError, match=r"with_observed got 'y' of shape \(5,\): expected .* 'y' of shape \(6,\)"):
        model.with_observed({"y": y[:5]})
    counts = NumPyroModel(numpyro_model, (np.zeros(3), np.zeros(3, int)))
    other = counts.with_observed({"y": np.array([1, 2, 3])})
    assert np.array_equal(other.observed()["y"], [1, 2, 3])
    assert np.array_equal(counts.observed()["y"], [0, 0, 0])
    theta = {"b": jnp.zeros(())}
    expected = dist.Poisson(1.0).log_prob(np.array([1, 2, 3]))
    np.testing.assert_allclose(other.log_likelihood(theta)["y"], expected, rtol=1e-5)
    np.testing.assert_allclose(other.log_terms(theta)["y"], expected.sum(), rtol=1e-5)
    with pytest.raises(ModelError, match="expected one for every observed site"):
        counts.with_observed({"z": np.zeros(3)})
    with pytest.raises(ModelError, match=r"cannot be replaced by simulated data\. Pass simulate=f to bf.calibrate"):
        density().with_observed({})
