import jax
import numpy as np
import pytest

from benchmarks.melanoma import crossfitted, plan, runs
from benchmarks.melanoma.cnn import paper_cnn
from benchmarks.melanoma.data import Melanoma
from bernflow.errors import BernflowError

# Measurements at a tiny scale: nightly, as what they take is compilation.
pytestmark = pytest.mark.slow


@pytest.fixture
def pictures(monkeypatch):
    """Small pictures: bright ones are melanomas more often, and so are old patients."""
    rng = np.random.default_rng(0)
    num = {"train": 192, "valid": 64, "test": 64}
    split = np.repeat(list(num), list(num.values()))
    brightness, age = rng.uniform(-1, 1, len(split)), rng.normal(size=len(split))
    target = (rng.uniform(size=len(split)) < 1 / (1 + np.exp(-2 * brightness - age))).astype(np.int8)
    noise = rng.normal(scale=20, size=(len(split), 32, 32, 3))
    images = np.clip(128 + 60 * brightness[:, None, None, None] + noise, 0, 255).astype(np.uint8)
    names = np.arange(len(split)).astype(str)
    data = Melanoma(images, target, age, age, age > 9, names, names, names, names, split)
    for module in (runs, crossfitted):
        monkeypatch.setattr(module, "load_pictures", lambda by_patient: data)
        monkeypatch.setattr(module, "build_network", small_network)
    return data


def small_network(name, seed, dtype):
    return paper_cnn(jax.random.key(seed), dtype=dtype, shape=(32, 32, 3))


def test_m1_and_m3_run_end_to_end(pictures):
    arguments = {"network": "paper", "seed": 0, "epochs": 2, "dtype": "float32", "by_patient": False}
    for result in (runs.run_m1(**arguments), runs.run_m3(**arguments)):
        assert result["valid_scores"].shape == (2,)
        assert result["test"].shape == (64,)
        assert np.all((result["test"] > 0) & (result["test"] < 1))
        assert result["best_epoch"] == 1 + int(np.argmax(result["valid_scores"]))
        assert np.all(np.isfinite(result["losses"]))
    assert result["draws/beta_1"].shape == (4000,)
    assert np.std(result["draws/beta_1"]) > 0.0


def test_the_cross_fitted_models_run_end_to_end(pictures):
    result = crossfitted.run_crossfitted("M3", 0, 2, "float32", False)
    assert result["test"].shape == (64,)
    np.testing.assert_allclose(result["test"], (result["test/0"] + result["test/1"]) / 2, rtol=1e-5)
    assert result["linear"].shape == result["images"].shape == (64, 3)
    assert np.all(np.diff(result["linear"][:, [1, 0, 2]]) >= 0)
    assert isinstance(result["findings"], list)
    slope, change = result["draws/beta_1"], result["change"]
    assert abs(slope.mean() - change["beside"]) < np.std(slope)
    # The two estimates come from the same rows: their difference is known better than from intervals side by side.
    assert 0 < change["correlation"] <= 1
    assert 0 < change["sd_of_rows"] < 2 * np.std(slope)
    without = crossfitted.run_crossfitted("M1", 0, 2, "float32", False)
    assert "draws/beta_1" not in without
    assert not np.allclose(without["test"], result["test"])


def test_without_pictures_the_way_to_them_is_told(monkeypatch):
    monkeypatch.delenv(runs.DATA_VARIABLE, raising=False)
    runs.load_pictures.cache_clear()
    with pytest.raises(BernflowError, match="bernflow data melanoma FOLDER CSV"):
        runs.load_pictures(False)


def test_models_are_chosen_by_what_is_there(monkeypatch):
    monkeypatch.delenv(runs.DATA_VARIABLE, raising=False)
    monkeypatch.delenv(plan.MODELS_VARIABLE, raising=False)
    assert plan.chosen_models() == ("M2",)
    assert len(plan.tasks("full")) == 3
    monkeypatch.setenv(runs.DATA_VARIABLE, "somewhere")
    assert plan.chosen_models() == ("M1", "M2", "M3")
    assert len(plan.tasks("full")) == 3 + 2 + 2  # a smaller run where there is no accelerator
    monkeypatch.setenv(plan.FULL_VARIABLE, "1")
    assert len(plan.tasks("full")) == 3 + 18 + 15
    monkeypatch.setenv(plan.DTYPE_VARIABLE, "float32")
    assert {t.arguments["dtype"] for t in plan.tasks("full") if "dtype" in t.arguments} == {"float32"}
    monkeypatch.setenv(plan.MODELS_VARIABLE, "m3")
    assert plan.chosen_models() == ("M3",)


def test_predictions_are_averages_over_the_draws():
    features, age, beta = np.array([0.0, 1.0]), np.array([1.0, -1.0]), np.linspace(-1, 1, 130)
    expected = np.mean(1 / (1 + np.exp(-features - beta[:, None] * age)), 0)
    np.testing.assert_allclose(runs.predictive(features, age, beta), expected, rtol=1e-5)


def test_the_change_of_an_effect_by_resampling():
    """The sd of the difference against 400 resamples of patients, within 4 of its errors, 1/sqrt(800) each."""
    rng = np.random.default_rng(3)
    patient = np.repeat(np.arange(500), 4)
    age, own = rng.normal(size=500)[patient], rng.normal(size=2000)
    picture = 0.6 * age + 0.8 * rng.normal(size=2000)
    y = (rng.uniform(size=2000) < 1 / (1 + np.exp(1 - 0.5 * age - picture))).astype(float)
    one = np.ones(2000)
    tables = [np.stack([age, one], 1), np.stack([age, one, picture, own], 1)]

    def fits(rows):
        found = [crossfitted._logistic(x[rows], y[rows], np.full(x.shape[1], 1e-2)) for x in tables]
        return [beta[0] for beta, _ in found], [terms[0] for _, terms in found]

    (alone, beside), terms = fits(np.arange(2000))
    change = crossfitted._compare(alone, beside, *terms, patient)
    differences = []
    for _ in range(400):
        drawn = rng.integers(500, size=500)
        slopes, _ = fits((4 * drawn[:, None] + np.arange(4)).reshape(-1))
        differences.append(slopes[1] - slopes[0])
    assert change.beside - change.alone == pytest.approx(beside - alone)
    assert change.sd == pytest.approx(np.std(differences), rel=4 / np.sqrt(800))
