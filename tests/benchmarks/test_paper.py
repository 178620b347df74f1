import numpy as np
import pytest
from scipy.stats import norm

from benchmarks import data
from benchmarks.catalogue import EXPERIMENTS
from benchmarks.paper.diamonds import columns_of, maximum_likelihood
from benchmarks.paper.drawings import draw_architectures
from benchmarks.paper.loss_curves import scaled, steps_to
from benchmarks.paper.nn_regression import LEVELS, distance, predictive_quantiles
from benchmarks.study.curves import exact_posterior, fit_curve
from benchmarks.study.fits import score


@pytest.mark.parametrize("target", ["bernoulli", "cauchy"])
def test_exact_posteriors_integrate_to_one(target):
    _, widths, log_p = exact_posterior(target)
    assert np.sum(widths * np.exp(log_p)) == pytest.approx(1.0, abs=1e-6)


def test_kl_by_quadrature_agrees_with_monte_carlo():
    # A Gaussian on the logit of a Beta(3.1, 1.1): the optimum is the same whatever the seed of the draws.
    found = fit_curve("bernoulli", "gaussian", 0)
    assert found["mass"] == pytest.approx(1.0, abs=1e-4)
    assert found["kl"] == pytest.approx(0.0225, abs=0.002)


def test_predictive_quantiles_of_one_draw_are_those_of_a_normal():
    draws = {
        "w_first": np.zeros((1, 3)),
        "bias_first": np.zeros((1, 3)),
        "w_output": np.array([[2.0, 0.0, 0.0]]),
        "bias_output": np.array([0.5]),
    }
    found = predictive_quantiles(draws, np.array([-1.0, 3.0]))
    np.testing.assert_allclose(found, np.tile(1.5 + 0.2 * norm.ppf(LEVELS)[:, None], 2), atol=1e-6)
    assert distance(found, found + 0.3) == pytest.approx(0.3)


def test_maximum_likelihood_solves_the_normal_equations():
    x, y = data.load_diamonds()
    estimate = maximum_likelihood()
    residual = y - x @ estimate[:24] - estimate[24]
    assert np.max(np.abs(x.T @ residual)) < 1e-6 * np.max(np.abs(x.T @ y))
    assert np.mean(residual**2) == pytest.approx(estimate[25] ** 2)


def test_reference_of_the_diamonds_is_centered_at_the_mode():
    # Given sigma the posterior of the slopes is Gaussian; the N(0, 1) prior holds the collinear ones.
    x, y = data.load_diamonds()
    reference = columns_of(data.load_diamonds_reference())
    center, spread = reference.mean(0), reference.std(0)
    variance = center[25] ** 2
    mode = np.linalg.solve(x.T @ x / variance + np.eye(24), x.T @ (y - center[24]) / variance)
    # Means of 2,000 nearly independent draws: 0.022 standard deviations of Monte Carlo error each.
    assert np.max(np.abs(mode - center[:24]) / spread[:24]) < 0.12


def test_published_figures_are_complete():
    kl = data.load_paper_cauchy_kl()
    assert {f: len(orders) for f, orders in kl.items()} == {"f1": 8, "f2": 8, "f3": 8}
    assert all(len(values) == 20 for orders in kl.values() for values in orders.values())
    assert np.median(kl["f1"][50]) == pytest.approx(0.002208, abs=1e-6)
    bands = data.load_paper_nn_quantiles()
    assert np.all(bands["q05"] < bands["q50"])
    assert np.all(bands["q50"] < bands["q95"])
    assert (bands["x"][0], bands["x"][-1]) == (-10.0, 10.0)


def test_scaled_loss():
    result = {"history/elbo": np.array([-30.0, -20.0, -10.1, -10.0]), "history/step": np.array([25, 50, 75, 100])}
    np.testing.assert_allclose(scaled(result), [2.0, 1.0, 0.01, 0.0])
    assert steps_to(result, 0.02) == 75
    assert steps_to(result, 5.0) == 25


def test_score_of_a_known_difference():
    x = np.random.default_rng(0).normal(size=20_000)
    found = score(norm.logpdf(x, 0.3) - norm.logpdf(x) - 7.0, log_evidence=-7.0, seed=1)
    assert found["kl"] == pytest.approx(0.045, abs=5 * found["elbo_se"])
    assert found["ess_fraction"] == pytest.approx(np.exp(-0.09), abs=0.02)
    assert 0.0 < found["khat_variance"] < 0.05
    assert score(np.where(x > 0, np.nan, 0.0), None, 0)["elbo"] == -np.inf


def test_every_experiment_lists_distinct_tasks_at_every_scale():
    for experiment in EXPERIMENTS.values():
        counts = [len(set(experiment.tasks(scale))) for scale in ("tiny", "quick", "full")]
        assert 0 < counts[0] <= counts[1] <= counts[2]


def test_drawing_of_the_networks():
    figure = draw_architectures()
    texts = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    assert "masked network" in texts
    assert "flatten" in texts
