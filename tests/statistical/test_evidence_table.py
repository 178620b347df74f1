"""Evidence and divergence of fits to models whose answers are known exactly.

Every error of the evidence is within 4 of the standard errors that the fit states (6e-5 false alarms each for a new
key), and all of them together are as large as chance makes them (2e-4). That holds where k-hat is at most 0.7 or the
weights are nearly constant, so that their tail does not matter: elsewhere the standard error is a lower bound; there
the error is small in itself. KL(q || p) by draws of the fit agrees with that by draws of the exact posterior within 5
standard errors: what is averaged there has heavy tails.
"""

import jax
import numpy as np
import pytest
from scipy import integrate, stats

import bernflow as bf
from benchmarks.exactness import MODELS, examine
from bernflow.models import as_model

MAX_KHAT = 0.7
# Weights of such an effective sample size are constant to a few per cent, and their k-hat says nothing.
CONSTANT_ESS = 0.999
# A simplex, a scale and a vector in two fits: what takes time is compilation.
QUICK = ("dirichlet-multinomial", "conjugate-regression")


def check(names):
    found, errors = {}, []
    for name in names:
        exact = MODELS[name]
        post = bf.fit(exact.model, *exact.args, progress=False)
        found[name] = examine(post, exact)
        judged = post.diagnostics
        assert judged.verdict != "poor", name
        is_told = judged.khat <= MAX_KHAT or judged.ess_fraction > CONSTANT_ESS
        assert abs(found[name].evidence_error) < 4 * found[name].evidence_se + (0.0 if is_told else 1e-3), name
        if is_told:
            errors.append(found[name].evidence_z)
    assert len(errors) >= len(names) / 2
    assert 1e-4 < stats.chi2(len(errors)).sf(np.sum(np.square(errors))) < 1 - 1e-4, found
    assert all(abs(f.kl_z) < 5 for f in found.values()), found
    assert all(f.kl < 0.02 for f in found.values()), found


def test_evidence_and_divergence():
    check(QUICK)


@pytest.mark.slow
def test_evidence_and_divergence_of_all():
    assert len(MODELS) >= 12
    check([name for name in MODELS if name not in QUICK])


@pytest.mark.parametrize("name", MODELS)
def test_exact_draws_are_points_of_the_model(name):
    exact = MODELS[name]
    model = as_model(exact.model, exact.args, {})
    draws = exact.draws(np.random.default_rng(0), 3)
    assert {site: values.shape for site, values in draws.items()} == {s.name: (3, *s.shape) for s in model.sites}
    # Traced, not evaluated: what takes time is compilation.
    assert jax.eval_shape(jax.vmap(model.log_density), draws).shape == (3,)


@pytest.mark.parametrize("name", ["beta-binomial", "normal-variance", "gamma-exponential", "student-location"])
def test_evidences_against_an_independent_quadrature(name):
    densities = {
        "beta-binomial": (lambda p: stats.beta.pdf(p, 2, 3) * stats.binom.pmf(7, 20, p), 0, 1),
        "normal-variance": (
            lambda v: stats.invgamma.pdf(v, 3, scale=2) * np.prod(stats.norm.pdf(MODELS[name].args[0], 1, np.sqrt(v))),
            0,
            np.inf,
        ),
        "gamma-exponential": (
            lambda r: (
                stats.gamma.pdf(r, 2, scale=1 / 1.5) * np.prod(stats.expon.pdf(MODELS[name].args[0], scale=1 / r))
            ),
            0,
            np.inf,
        ),
        "student-location": (
            lambda m: stats.norm.pdf(m, 0, 2) * np.prod(stats.t.pdf(MODELS[name].args[0], 4, m, 0.6)),
            -20,
            20,
        ),
    }
    value, _ = integrate.quad(*densities[name], epsabs=1e-14, limit=200)
    assert MODELS[name].log_evidence == pytest.approx(np.log(value), abs=1e-8)
