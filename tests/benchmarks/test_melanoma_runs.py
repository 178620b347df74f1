import jax
import numpy as np
import pytest

from benchmarks.melanoma import experiment, runs
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
    monkeypatch.setattr(runs, "load_pictures", lambda by_patient: data)
    monkeypatch.setattr(
        runs, "build_network", lambda name, seed, dtype: paper_cnn(jax.random.key(seed), dtype=dtype, shape=(32, 32, 3))
    )
    return data


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


def test_the_cross_fitted_model_runs_end_to_end(pictures):
    result = runs.run_effect("paper", 0, 2, "float32", False)
    assert result["test"].shape == (64,)
    assert result["linear"].shape == result["images"].shape == (64, 3)
    assert np.all(np.diff(result["linear"][:, [1, 0, 2]]) >= 0)
    assert np.std(result["draws/beta_1"]) > 0.0
    assert isinstance(result["findings"], list)


def test_without_pictures_the_way_to_them_is_told(monkeypatch):
    monkeypatch.delenv(runs.DATA_VARIABLE, raising=False)
    runs.load_pictures.cache_clear()
    with pytest.raises(BernflowError, match="bernflow data melanoma FOLDER CSV"):
        runs.load_pictures(False)


def test_models_are_chosen_by_what_is_there(monkeypatch):
    monkeypatch.delenv(runs.DATA_VARIABLE, raising=False)
    monkeypatch.delenv(experiment.MODELS_VARIABLE, raising=False)
    assert experiment.chosen_models() == ("M2",)
    assert len(experiment.tasks("full")) == 3
    monkeypatch.setenv(runs.DATA_VARIABLE, "somewhere")
    assert experiment.chosen_models() == ("M1", "M2", "M3")
    assert len(experiment.tasks("full")) == 3 + 2 + 1  # a smaller run where there is no accelerator
    monkeypatch.setenv(experiment.FULL_VARIABLE, "1")
    assert len(experiment.tasks("full")) == 3 + 18 + 6
    monkeypatch.setenv(experiment.DTYPE_VARIABLE, "float32")
    assert {t.arguments["dtype"] for t in experiment.tasks("full") if "dtype" in t.arguments} == {"float32"}
    monkeypatch.setenv(experiment.MODELS_VARIABLE, "m3")
    assert experiment.chosen_models() == ("M3",)


def test_predictions_are_averages_over_the_draws():
    features, age, beta = np.array([0.0, 1.0]), np.array([1.0, -1.0]), np.linspace(-1, 1, 130)
    expected = np.mean(1 / (1 + np.exp(-features - beta[:, None] * age)), 0)
    np.testing.assert_allclose(runs.predictive(features, age, beta), expected, rtol=1e-5)
