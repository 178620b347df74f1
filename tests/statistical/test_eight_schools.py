"""Hierarchies: both forms of the eight schools, and Neal's funnel, whose geometry is harder."""

import warnings

import numpy as np
import pytest

import bernflow as bf
from benchmarks.targets import BENCHMARKS, FUNNEL_SD

NUM = 20_000
# E[tau] by quadrature over log tau, with mu and the effects integrated out; the published script's draws have 0.55.
MEAN_TAU = 3.598


@pytest.fixture(scope="module")
def fits():
    """Fit a benchmark once."""
    cache = {}

    def fit(name):
        if name not in cache:
            benchmark = BENCHMARKS[name]
            with warnings.catch_warnings():
                # These are judged here by their exact evidence; k-hat may rightly call the tails of a funnel poor.
                warnings.filterwarnings("ignore", "bernflow: Poor", UserWarning)
                cache[name] = bf.fit(benchmark.model, *benchmark.args, progress=False)
        return BENCHMARKS[name], cache[name]

    return fit


@pytest.mark.parametrize(
    ("name", "max_kl", "unseen"),
    [
        # In every run by its PyMC model, in `integration/test_pymc.py`.
        pytest.param("eight-schools-noncentered", 0.002, 1e-3, marks=pytest.mark.slow),
        # P(tau < exp(-4)) is 0.0037 and 0.0007 to 0.0022 under the fits of keys 0 to 2 (k-hat 0.84 to 0.90): mass in
        # the neck that few draws reach, and that the standard error does not know of.
        ("eight-schools-centered", 0.03, 1e-2),
        pytest.param("funnel", 0.02, 1e-3, marks=pytest.mark.slow),
    ],
)
def test_kl_and_evidence(fits, name, max_kl, unseen):
    benchmark, post = fits(name)
    found = post.diagnostics
    # One side of 3 standard errors: one false alarm in 700.
    assert benchmark.log_evidence - found.elbo < max_kl + 3 * found.elbo_se
    assert found.log_evidence == pytest.approx(benchmark.log_evidence, abs=4 * found.log_evidence_se + unseen)


@pytest.mark.parametrize(
    "name", [pytest.param("eight-schools-noncentered", marks=pytest.mark.slow), "eight-schools-centered"]
)
def test_mean_of_tau(fits, name):
    _, post = fits(name)
    # 3 % are 4.7 Monte Carlo standard errors of 20,000 draws (sd 3.22).
    assert post.draws(NUM)["tau"].mean() == pytest.approx(MEAN_TAU, rel=0.03)


@pytest.mark.slow
def test_width_of_the_funnel(fits):
    _, post = fits("funnel")
    v = post.draws(NUM)["v"]
    assert v.std() == pytest.approx(FUNNEL_SD, rel=0.05)
    assert abs(v.mean()) < 0.05 * FUNNEL_SD
    assert np.quantile(v, [0.05, 0.95]) == pytest.approx([-4.93, 4.93], rel=0.1)
