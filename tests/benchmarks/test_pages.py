"""The page of every experiment, from results that are made up: what was told is what stands there."""

import csv
import json
import re
import zlib

import numpy as np
import pytest

from benchmarks.catalogue import EXPERIMENTS
from benchmarks.data import load_diamonds_reference
from benchmarks.melanoma import plan as melanoma
from benchmarks.melanoma import runs
from benchmarks.melanoma.data import Melanoma
from benchmarks.melanoma.tables import load_m2
from benchmarks.paper import overview
from benchmarks.study import runner
from benchmarks.study.curves import exact_posterior
from benchmarks.study.plan import Results
from benchmarks.targets import BENCHMARKS
from bernflow.cli import main

SHAPES = {
    "toy-regression": {"b": (), "w": (2,), "sigma": ()},
    "eight-schools-centered": {"mu": (), "tau": (), "theta": (8,)},
    "eight-schools-noncentered": {"mu": (), "tau": (), "theta": (8,), "theta_trans": (8,)},
    "nn-regression": {"w_first": (3,), "bias_first": (3,), "w_output": (3,), "bias_output": ()},
    "cauchy": {"xi": ()},
}
# By method: the default is the best, the paper's recipe the next.
KL = {"bernflow": 0.001, "mixture": 0.002, "paper": 0.1, "gaussian": 0.5}
NUM_PICTURES = {"train": 10, "valid": 10, "test": 80}


def draws_of(target, rng, num):
    if target == "diamonds":
        return {f"draws/{name}": values[:num] for name, values in load_diamonds_reference().items()}
    positive = ("sigma", "tau")
    drawn = {name: rng.normal(size=(num, *shape)) for name, shape in SHAPES[target].items()}
    return {f"draws/{name}": np.exp(v) if name in positive else v for name, v in drawn.items()}


def history(rng):
    steps = np.arange(25, 2025, 25)
    return {"history/step": steps, "history/elbo": -1.0 - 50.0 / steps + 1e-3 * rng.normal(size=steps.size)}


def fit_once(rng, target, method, num_kept, family="", **_):
    kl = KL.get(method, 1.0) * (3.0 if ":" in family else 1.0)
    evidence = BENCHMARKS[target].log_evidence
    return {
        "elbo": (evidence or -20.0) - kl,
        "elbo_se": 0.01,
        "largest_share": 0.002,
        "kl": None if evidence is None else kl,
        "khat": 0.2 if method == "bernflow" else np.inf if method == "planar" else 0.9,
        "khat_variance": 0.01,
        "ess_fraction": 0.9,
        "seconds": 1.0,
        "steps": 2000,
        "gradients": 64_000,
        "verdict": "good",
        **history(rng),
        **(draws_of(target, rng, num_kept) if num_kept else {}),
    }


def fit_curve(rng, target, method, **_):
    log_p = exact_posterior(target)[2]
    return {"kl": KL[method], "mass": 1.0, "seconds": 1.0, "steps": 2000, "density": np.exp(log_p), **history(rng)}


def run_nuts(rng, target, num_kept, **_):
    return {"rhat": 1.0, "ess": 4000.0, "num_divergent": 0, "num_draws": 8000, **draws_of(target, rng, num_kept)}


def run_m2(rng, method, **_):
    test = load_m2()[1]
    shares = 1 / (1 + np.exp(4.0 - 0.6 * np.asarray(test.age)))
    beta, mu = rng.normal(0.6, 0.05, 400), rng.normal(-4.2, 0.05, 400)
    return {"draws/beta_1": beta, "draws/mu_0": mu, "test": shares, "log_score": -0.0862, "verdict": "good"}


def run_m3(rng, epochs, **_):
    return {
        "losses": np.linspace(0.1, 0.08, 5),
        "loss_steps": np.arange(1, 6),
        "valid_scores": np.full(epochs, -0.09),
        "best_epoch": 1,
        "seconds_per_epoch": 2.5,
        "device": "a test",
        "draws/beta_1": rng.normal(0.5, 0.1, 400),
        "khat": 0.1,
        "test": rng.uniform(0.01, 0.9, NUM_PICTURES["test"])[: melanoma.settings("tiny")["num_rows"]],
    }


def run_crossfitted(rng, networks, **_):
    num = min(NUM_PICTURES["test"], melanoma.settings("tiny")["num_rows"])
    names = ("test", *(f"test/{k}" for k in range(networks)))
    probability = {name: rng.uniform(0.01, 0.9, num) for name in names}
    interval = np.sort(rng.normal(size=(num, 3)), 1)[:, [1, 0, 2]]
    return {
        **probability,
        "seconds": 9.0,
        "draws/beta_1": rng.normal(0.5, 0.1, 400),
        "verdict": "good",
        "khat": 0.1,
        "best_epochs": [1] * networks,
        "findings": ["The networks are undertrained."],
        "linear": interval,
        "images": interval,
        "change": {"alone": 0.7, "beside": 0.5, "sd": 0.05, "sd_of_rows": 0.06, "correlation": 0.6},
    }


def made_up(task):
    rng = np.random.default_rng(zlib.crc32(task.identity.encode()))
    name = task.function.rpartition(":")[2]
    makers = {
        "fit_once": fit_once,
        "fit_curve": fit_curve,
        "run_nuts": run_nuts,
        "run_m2": run_m2,
        "run_crossfitted": run_crossfitted,
    }
    return makers.get(name, run_m3)(rng, **task.arguments)


@pytest.fixture
def pictures(monkeypatch):
    split = np.repeat(list(NUM_PICTURES), list(NUM_PICTURES.values()))
    names, age = np.arange(split.size).astype(str), np.zeros(split.size)
    target = (np.arange(split.size) % 4 == 0).astype(np.int8)
    images = np.zeros((split.size, 1, 1, 3), np.uint8)
    data = Melanoma(images, target, age, age, age > 9, names, names, names, names, split)
    monkeypatch.setattr(runs, "load_pictures", lambda by_patient: data)
    monkeypatch.setenv(runs.DATA_VARIABLE, "somewhere")
    monkeypatch.setenv(melanoma.PHOTOS_VARIABLE, "1")


def numbers_of(name, out, capsys, monkeypatch):
    """Make the page of an experiment, look at all of it, and return its numbers."""
    monkeypatch.setattr(runner, "run_task", made_up)
    assert main(["reproduce", name, "--tiny", "--quiet", "--out", str(out)]) == 0
    folder = out / name
    assert f"{name}: {folder / 'index.html'}" in capsys.readouterr().out
    text = (folder / "README.md").read_text()
    pictures, tables = re.findall(r"\]\((\S+)\.png\)", text), re.findall(r"\]\((\S+)\.csv\)", text)
    assert pictures
    assert tables
    for picture in pictures:
        assert (folder / f"{picture}.png").stat().st_size > 5_000
    for table in tables:
        heading, *rows = csv.reader((folder / f"{table}.csv").read_text().splitlines())
        assert rows
        assert all(len(row) == len(heading) for row in rows)
    return json.loads((folder / "numbers.json").read_text()), text


@pytest.mark.parametrize("name", ["toy-regression", "diamonds", "nn-regression"])
def test_methods_of_one_posterior(name, tmp_path, capsys, monkeypatch):
    numbers, text = numbers_of(name, tmp_path, capsys, monkeypatch)
    found = numbers["summary"]
    assert found["bernflow"]["khat"] == pytest.approx(0.2)
    assert found["paper"]["khat_runs"] == [0.9, 0.9]
    if name != "nn-regression":
        assert found["paper"]["kl_median"] == pytest.approx(0.1)
    if name == "diamonds":
        # The draws of the reference itself: nothing is wrong but the noise of 200 draws.
        assert numbers["errors"]["bernflow"]["worst_mean"] < 5 / np.sqrt(200)
    else:
        assert "4,000 effective of 8,000" in text


def test_both_forms_of_eight_schools(tmp_path, capsys, monkeypatch):
    numbers, text = numbers_of("eight-schools", tmp_path, capsys, monkeypatch)
    assert numbers["summary"]["eight-schools-centered"]["bernflow"]["kl_median"] == pytest.approx(0.001)
    (nuts,) = re.findall(r"^\| both \| NUTS \|.* ([\d.]+) \|$", text, flags=re.MULTILINE)
    # The mean of a lognormal, exp(1/2), with a standard deviation of 2.16; 400 draws are kept.
    assert float(nuts) == pytest.approx(np.exp(0.5), abs=4 * 2.16 / np.sqrt(400))


def test_a_curve_over_the_orders(tmp_path, capsys, monkeypatch):
    numbers, text = numbers_of("cauchy", tmp_path, capsys, monkeypatch)
    assert numbers["kl"]["bernflow"] == [[0.001]]
    assert numbers["kl_gaussian"] == 0.5
    assert numbers["kl_recipe"] == {"2": [0.1, 0.1]}
    assert "R-hat 1.0000, 4,000 effective of 8,000 draws" in text


def test_the_best_k_hat_is_bold_and_infinity_is_written(tmp_path, capsys, monkeypatch):
    pytest.importorskip("flowjax")
    numbers, text = numbers_of("khat-table", tmp_path, capsys, monkeypatch)
    assert numbers["summary"]["diamonds"]["planar"]["khat"] == "inf"
    assert len(re.findall(r"\*\*0\.20 ", text)) == 3
    assert "∞" in text


def test_scaled_losses(tmp_path, capsys, monkeypatch):
    numbers, _ = numbers_of("loss-curves", tmp_path, capsys, monkeypatch)
    del numbers["origin"]
    for found in numbers.values():
        assert found["bernflow"]["steps"] == 2000
        assert found["bernflow"]["to_1_percent"] > 1000


def test_what_is_taken_away_costs(tmp_path, capsys, monkeypatch):
    numbers, text = numbers_of("additions", tmp_path, capsys, monkeypatch)
    found = numbers["toy-regression"]
    assert found["bernstein"]["loss"] == pytest.approx(0.001)
    assert found["bernstein:no-skip"]["loss"] == pytest.approx(0.003)
    assert "linear terms of the conditioner" in text


def test_melanoma_with_pictures(tmp_path, capsys, monkeypatch, pictures):
    numbers, text = numbers_of("melanoma", tmp_path, capsys, monkeypatch)
    assert numbers["m2"]["full"]["log_score"] == -0.0862
    assert numbers["M3, paper's split"]["device"] == "a test"
    assert numbers["beta_1"]["M3, network 1, paper's split"]["mean"] == pytest.approx(0.5, abs=0.03)
    assert numbers["M3, default posterior, paper's split"]["beta_1"][0] == pytest.approx([0.5, 0.1], abs=0.03)
    # The difference is four of its standard deviations below zero.
    assert "| 2 networks, paper's split | 0.700 | 0.500 | -0.200 | 0.0500 | 0 | 0.0500 | 1.000 |" in text
    assert "The networks are undertrained." in text
    compared = {(each["one"], each["measure"]): each for each in numbers["comparisons"]}
    assert compared["M3, default posterior", "AUC"]["low"] < compared["M3, default posterior", "AUC"]["high"]
    assert text.count("no difference shown") == len(numbers["comparisons"])
    assert "An epoch of training on a test" in text
    assert "A smaller run: 64 pictures of each part" in text


def test_melanoma_without_pictures(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv(runs.DATA_VARIABLE, raising=False)
    numbers, text = numbers_of("melanoma", tmp_path, capsys, monkeypatch)
    assert list(numbers) == ["m2", "beta_1", "origin"]
    assert "M1 and M3 were not run." in text


def test_the_overview_compares_by_experiment():
    tasks = [task for task in EXPERIMENTS["overview"].tasks("tiny") if not task.function.endswith("fit_and_save")]
    found = overview.compared("tiny", Results({task.identity: made_up(task) for task in tasks}))
    assert set(found) == set(overview.MODELS)
    assert found["Bernoulli"][1] == {"bernflow": 0.001, "paper": 0.1, "gaussian": 0.5}
    assert found["8 schools (CP)"][1]["realnvp"] == 1.0
    assert all(
        min(values, key=values.get) == "bernflow" for name, (_, values) in found.items() if name != "NN regression"
    )
