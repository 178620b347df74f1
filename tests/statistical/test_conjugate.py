"""Posteriors known in closed form: the fit must be exact to a thousandth of a nat, and its draws must show it.

Means, standard deviations and the evidence are compared within 4 Monte Carlo standard errors and a small allowance for
the error of the fit (6e-5 false alarms each), the ELBO within 3 on one side (1.3e-3): 0.5 % for a new key, none for the
fixed one.
"""

from dataclasses import dataclass

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.integrate import trapezoid
from scipy.special import betaln, gammaln

import bernflow as bf

NUM = 20_000
MAX_KL = 1e-3


@dataclass(frozen=True)
class Conjugate:
    """A model of one parameter, its exact posterior and its exact log evidence."""

    model: object
    y: np.ndarray
    exact: object
    log_evidence: float


def normal_normal():
    y = np.array([1.3, 0.2, 2.1, 0.8, 1.7])

    def model(y):
        theta = numpyro.sample("theta", dist.Normal(-1.0, 2.0))
        numpyro.sample("y", dist.Normal(theta, 1.5), obs=y)

    variance = 1 / (1 / 4 + len(y) / 2.25)
    exact = stats.norm(variance * (-1.0 / 4 + y.sum() / 2.25), np.sqrt(variance))
    covariance = 2.25 * np.eye(len(y)) + 4.0
    return Conjugate(model, y, exact, stats.multivariate_normal(np.full(len(y), -1.0), covariance).logpdf(y))


def beta_binomial():
    y = np.array([7])

    def model(y):
        theta = numpyro.sample("theta", dist.Beta(2.0, 3.0))
        numpyro.sample("y", dist.Binomial(20, theta), obs=y)

    binomial = gammaln(21) - gammaln(8) - gammaln(14)
    return Conjugate(model, y, stats.beta(9, 16), binomial + betaln(9, 16) - betaln(2, 3))


def gamma_poisson():
    y = np.array([3, 0, 2, 4])

    def model(y):
        theta = numpyro.sample("theta", dist.Gamma(2.0, 1.5))
        numpyro.sample("y", dist.Poisson(theta), obs=y)

    shape, rate = 2.0 + y.sum(), 1.5 + len(y)
    log_evidence = 2.0 * np.log(1.5) - gammaln(2.0) + gammaln(shape) - shape * np.log(rate) - np.sum(gammaln(y + 1))
    return Conjugate(model, y, stats.gamma(shape, scale=1 / rate), log_evidence)


CASES = {"normal-normal": normal_normal, "beta-binomial": beta_binomial, "gamma-poisson": gamma_poisson}


@pytest.fixture(scope="module", params=CASES)
def fitted(request):
    case = CASES[request.param]()
    return case, bf.fit(case.model, case.y, tolerance=0, progress=False)


def test_kl_and_evidence(fitted):
    case, post = fitted
    found = post.diagnostics
    assert found.verdict == "good"
    assert case.log_evidence - found.elbo < MAX_KL + 3 * found.elbo_se
    assert found.log_evidence == pytest.approx(case.log_evidence, abs=4 * found.log_evidence_se + 1e-5)


def test_mean_and_sd(fitted):
    case, post = fitted
    theta = post.draws(NUM)["theta"]
    sd = case.exact.std()
    bias = 0.005 * sd  # allowance for the error of the fit, less than one standard error
    assert theta.mean() == pytest.approx(case.exact.mean(), abs=4 * sd / np.sqrt(NUM) + bias)
    kurtosis = float(case.exact.stats(moments="k")) + 3
    assert theta.std() == pytest.approx(sd, abs=4 * sd * np.sqrt((kurtosis - 1) / (4 * NUM)) + bias)


def test_density_on_the_scale_of_the_parameter(fitted):
    case, post = fitted
    grid = np.linspace(*case.exact.ppf([1e-9, 1 - 1e-9]), 2001)
    density = np.exp(post.log_prob({"theta": grid}))
    assert trapezoid(density, grid) == pytest.approx(1.0, abs=2e-3)
    bulk = case.exact.ppf(np.linspace(0.05, 0.95, 91))
    np.testing.assert_allclose(np.exp(post.log_prob({"theta": bulk})), case.exact.pdf(bulk), rtol=0.02)
