import json
import sys

import jax
import numpy as np
import pytest

from benchmarks.semistructured import coverage, page
from benchmarks.semistructured.simulation import EFFECTS, simulate


def made_up(cell, covered, warned):
    num = len(coverage.COLUMNS)
    return {
        **cell._asdict(),
        "columns": coverage.COLUMNS,
        "repeats": 100,
        "coverage": [covered] * num,
        "coverage_of_the_oracle": [0.9] * num,
        "truth": [1.0] * num,
        "mean": [0.9] * num,
        "sd": [0.2] * num,
        "sd_of_the_oracle": [0.1] * num,
        "warned": warned,
        "device": "a test",
    }


def test_there_are_48_cells():
    cells = coverage.cells()
    assert len({cell.name for cell in cells}) == 48
    assert len({coverage.shape_of(cell) for cell in cells}) == 6


def test_the_page_counts_what_is_right(tmp_path):
    first, second, third = coverage.cells()[:3]
    for cell, covered, warned in ((first, 0.9, 0.0), (second, 0.8, 0.9), (third, 0.7, 0.1)):
        (tmp_path / f"{cell.name}.json").write_text(json.dumps(made_up(cell, covered, warned)))
    page.main(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "- 1 of 3 cells are right; of the 2 others, 1 warn in at least half of their fits." in text
    assert "cells that mostly do not warn: 0.800" in text
    assert "| -0.50 | 2.00 |" in text
    assert (tmp_path / "coverage.png").stat().st_size > 1000


@pytest.mark.parametrize("outcome", coverage.OUTCOMES)
def test_the_simulated_effects_are_those_of_the_truth(outcome):
    """A regression that knows f finds the effects: least squares for the linear predictor, by its residuals."""
    data = simulate(jax.random.key(0), 4000, outcome, 1.0)
    eta = np.asarray(data.f) + np.asarray(data.x) @ EFFECTS[outcome] - 0.3
    mean = {"bernoulli": 1 / (1 + np.exp(-eta)), "gaussian": eta, "poisson": np.exp(eta)}[outcome]
    variance = {"bernoulli": mean * (1 - mean), "gaussian": np.ones(4000), "poisson": mean}[outcome]
    z = np.column_stack([np.ones(4000), data.x, data.f]).T @ (np.asarray(data.y) - mean)
    size = np.sqrt(np.column_stack([np.ones(4000), data.x, data.f]).T ** 2 @ variance)
    assert np.all(np.abs(z / size) < 4)
    shown = np.corrcoef(data.x[:, 0], np.asarray(data.images)[:, :4, :4].mean((1, 2)))[0, 1]
    assert shown == pytest.approx(0.79, abs=0.03)


@pytest.mark.slow
def test_a_cell_runs_and_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(coverage.EPOCHS, 1_000, (2, 3))
    arguments = [
        "coverage",
        str(tmp_path),
        "--repeats",
        "2",
        "--workers",
        "1",
        "--only",
        "gaussian-1000-2-shared-centered",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    coverage.main()
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert np.shape(found["estimates"]) == (2, 4)
    assert np.all(np.isfinite(found["estimates"]))
    assert capsys.readouterr().out.startswith("gaussian-1000-2-shared-centered: coverage")
    coverage.main()
    assert capsys.readouterr().out == ""
