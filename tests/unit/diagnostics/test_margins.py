import numpy as np
import pytest
from scipy import stats

from bernflow.diagnostics import judge
from bernflow.diagnostics.margins import CORRELATION, MEAN, PROBABILITY, SD, Margins, margins
from bernflow.diagnostics.verdict import may_be_good

S = 20_000


def normal(seed, dim):
    return np.random.default_rng(seed).normal(size=(S, dim))


def scaled(x, sd):
    """Return log weights of a posterior with other standard deviations than the draws."""
    return (stats.norm.logpdf(x, scale=sd) - stats.norm.logpdf(x)).sum(1)


def test_errors_are_those_of_the_posterior():
    x = normal(0, 3)
    mean, sd, rho = 0.3, 1.1, 0.4
    joint = stats.multivariate_normal([0, mean, 0], [[1, 0, rho], [0, sd**2, 0], [rho, 0, 1]])
    found = margins(x, joint.logpdf(x) - stats.norm.logpdf(x).sum(1))
    assert found.mean == pytest.approx(mean, abs=4 * found.noise)
    # The error of the second moment, halved: a change of the mean counts, too.
    assert found.sd == pytest.approx(0.5 * (sd**2 + mean**2 - 1), abs=4 * found.noise)
    assert found.correlation == pytest.approx(rho, abs=4 * found.noise)
    # The largest change of a probability of the second parameter, near its median.
    assert found.probability == pytest.approx(stats.norm.cdf(0.0) - stats.norm.cdf(-mean / sd), abs=0.02)
    assert not found.are_right


def test_noise_is_the_standard_error():
    errors, noises = [], []
    for seed in range(100):
        x = normal(seed, 1)
        # Weights that have nothing to do with the parameter.
        found = margins(x, 0.5 * np.random.default_rng(1000 + seed).normal(size=S))
        errors.append(found.mean)
        noises.append(found.noise)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.mean(noises), rel=0.25)


@pytest.mark.parametrize("seed", range(3))
def test_many_parameters_that_are_all_right_are_good(seed):
    x = normal(seed, 150)
    found = judge(scaled(x, 1.025), draws=x)
    assert found.ess_fraction < 0.9
    assert found.verdict == "good"
    assert "every mean is within" in found.status
    assert judge(scaled(x, 1.025)).verdict == "usable"  # the weights alone do not tell


@pytest.mark.parametrize("seed", range(3))
def test_one_wrong_parameter_of_many_is_noticed(seed):
    x = normal(seed, 100)
    # A mean off by 0.2, a standard deviation by 15 %, a correlation of 0.3, and a dent in the middle.
    wrong = {
        "mean": 0.2 * x[:, 0],
        "sd": scaled(x[:, :1], 1.15),
        "correlation": stats.multivariate_normal([0, 0], [[1, 0.3], [0.3, 1]]).logpdf(x[:, :2])
        - stats.norm.logpdf(x[:, :2]).sum(1),
        "shape": np.log1p(-0.5 * np.exp(-0.5 * (x[:, 0] - 0.7) ** 2 / 0.3**2)),
    }
    for name, log_weights in wrong.items():
        found = judge(log_weights, draws=x)
        assert found.ess_fraction > 0.8, name
        if found.ess_fraction < 0.95:
            assert found.verdict == "usable", name
        assert not margins(x, log_weights).are_right, name


def test_the_least_ess_falls_with_the_dimension():
    assert may_be_good(0.7, 0.96, 10)
    assert not may_be_good(0.7, 0.95, 10)
    assert not may_be_good(0.71, 0.96, 10)
    assert may_be_good(0.7, 0.97 * 0.96**5, 60)
    assert not may_be_good(0.7, 0.99 * 0.96**5, 50)
    assert may_be_good(0.7, 0.5, 10_000)
    assert not may_be_good(0.7, 0.499, 10_000)


@pytest.mark.parametrize("name", ["mean", "sd", "probability", "correlation", "noise"])
def test_the_limits_of_right_margins(name):
    right = Margins(MEAN, SD, PROBABILITY, CORRELATION, 0.3 * MEAN)
    assert right.are_right
    assert not right._replace(**{name: 1.001 * getattr(right, name)}).are_right


def test_too_few_draws_tell_nothing():
    x = normal(0, 100)[:500]
    found = margins(x, scaled(x, 1.03))
    assert found.noise > 0.3 * MEAN
    assert not found.are_right


def test_draws_that_overflow_are_wrong():
    x = normal(0, 2)
    x[0, 0] = np.inf
    assert not margins(x, 0.1 * x[:, 1]).are_right


def test_many_columns_in_parts():
    x = normal(0, 1100)[:2000]
    log_weights = 0.1 * x[:, 1099]
    found = margins(x, log_weights)
    assert found.mean == pytest.approx(0.1, abs=0.03)
    assert found.correlation < 0.2
