import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bernflow.diagnostics import bootstrap_errors, elbo, ess_fraction, importance, log_evidence, psis
from bernflow.diagnostics.importance import tail_size
from bernflow.errors import ArgumentError

S = 20_000


def gaussian_weights(shift=0.0, sd=1.0, seed=0, log_z=0.0):
    """Log weights of q = N(0, sd) for the posterior N(shift, 1) with a known evidence."""
    x = sd * np.random.default_rng(seed).normal(size=S)
    return stats.norm.logpdf(x, shift) - stats.norm.logpdf(x, 0, sd) + log_z


def test_constant_weights_are_perfect():
    smoothed, khat = psis(np.full(100, -700.0) + 1e-12 * np.arange(100))
    assert khat == 0.0
    np.testing.assert_allclose(np.exp(smoothed), 0.01)
    assert ess_fraction(np.full(100, 900.0)) == 1.0
    assert log_evidence(np.full(100, 900.0)) == (900.0, 0.0)
    assert elbo(np.full(100, 900.0)) == (900.0, 0.0)


def test_ties_from_single_precision_are_no_tail():
    rounded = np.repeat([1.0, 1.0001], 500)
    assert psis(rounded)[1] == 0.0
    assert psis(np.repeat([1.0, 9.0], 500))[1] == np.inf


def test_a_tail_of_hundreds_of_nats_has_a_large_khat():
    # Weights u^-k have the Pareto shape k; beyond k of about 50 all but the largest underflow beside it.
    u = np.random.default_rng(0).uniform(size=S)
    for khat in (100.0, 1e6):
        # Hill's estimator of 425 tail draws has a relative standard error of 5 %.
        assert psis(-khat * np.log(u))[1] == pytest.approx(khat, rel=0.25)


@pytest.mark.parametrize(("sd", "khat"), [(0.8, 0.36), (0.6, 0.64)])
def test_khat_of_a_too_narrow_normal(sd, khat):
    # P(w > t) falls like t^(-1/k) with k = 1 - sd^2, times a slowly varying factor that biases k-hat down a
    # little.
    estimates = [psis(gaussian_weights(sd=sd, seed=s))[1] for s in range(5)]
    assert abs(np.mean(estimates) - khat) < 0.12


def test_ess_evidence_and_elbo_match_theory():
    raw = gaussian_weights(shift=0.3, log_z=-12.0)
    assert ess_fraction(raw) == pytest.approx(np.exp(-0.09), abs=5 * bootstrap_errors(raw)[1])
    value, error = log_evidence(raw)
    assert error == pytest.approx(np.sqrt(np.expm1(0.09) / S), rel=0.05)
    assert abs(value + 12.0) < 5 * error
    value, error = elbo(raw)
    assert error == pytest.approx(0.3 / np.sqrt(S), rel=0.05)
    assert abs(value + 12.0 + 0.045) < 5 * error


def test_the_error_of_the_evidence_holds_where_weights_have_heavy_tails():
    # Draws of N(0, 0.4) for N(0, 1): weights of Pareto shape 0.84, without a variance, and an evidence of one.
    found = np.array([log_evidence(gaussian_weights(sd=0.4, seed=s)) for s in range(50)])
    errors, stated = np.abs(found[:, 0]), found[:, 1]
    # Of 50 samples 90 % are expected within two standard errors, give or take 4 %; by the delta method it is half.
    assert np.mean(errors < 2.0 * stated) > 0.9 - 4 * 0.042
    by_delta = [np.sqrt((1 / ess_fraction(gaussian_weights(sd=0.4, seed=s)) - 1) / S) for s in range(50)]
    assert np.mean(errors < 2.0 * np.array(by_delta)) < 0.7
    # Nor is it so large as to say nothing: the median error of a normal estimate is 0.67 standard errors.
    assert 0.3 < np.median(errors) / np.median(stated) < 1.2


def test_the_share_beyond_the_largest_weight_is_that_of_a_pareto_tail():
    # All weights are Pareto: quantiles r^k at r = 1 / (1 - p) on an even grid. Beyond r = S lies (1/S) S^k / (1 - k),
    # of a mean of 1 / (1 - k).
    shape = 0.6
    r = S / (np.arange(S) + 0.5)
    value, error = log_evidence(shape * np.log(r) + 3.0)
    by_delta = np.sqrt((1 / ess_fraction(shape * np.log(r)) - 1) / S)
    # To two percent, by which k-hat of this grid differs from the shape.
    assert np.sqrt(error**2 - by_delta**2) == pytest.approx(S ** (shape - 1.0), rel=0.02)
    assert value == pytest.approx(3.0 - np.log(1.0 - shape), abs=error)
    # Draws of weight zero change nothing of it.
    value, error = log_evidence(np.append(shape * np.log(r), np.full(9 * S, -np.inf)))
    by_delta = np.sqrt((10 / ess_fraction(shape * np.log(r)) - 1) / (10 * S))
    assert np.sqrt(error**2 - by_delta**2) == pytest.approx(S ** (shape - 1.0), rel=0.1)


def test_the_tail_is_a_fifth_of_few_draws_and_less_of_many():
    # Vehtari et al. (2024): the smaller of a fifth and three square roots.
    assert [tail_size(num) for num in (25, 100, 225, 20_000)] == [5, 20, 45, 425]


def test_nothing_is_known_of_the_evidence_where_one_draw_carries_all():
    u = np.random.default_rng(0).uniform(size=S)
    assert log_evidence(-100.0 * np.log(u))[1] == np.inf
    assert log_evidence(np.repeat([1.0, 9.0], 500))[1] == np.inf
    # A shape above one has no mean; what is stated is finite, and says that nothing is known.
    assert 3.0 < log_evidence(-1.5 * np.log(u))[1] < np.inf


def test_bootstrap_errors_match_the_spread_over_seeds():
    estimates = np.array(
        [(psis(w)[1], ess_fraction(w)) for w in (gaussian_weights(shift=0.3, seed=s) for s in range(40))]
    )
    # The ratio of two estimated sds of 40 and 50 values: within a factor of 2 but for one seed in ten
    # thousand.
    ratio = np.array(bootstrap_errors(gaussian_weights(shift=0.3))) / estimates.std(axis=0)
    assert np.all((ratio > 0.5) & (ratio < 2.0))
    assert bootstrap_errors(gaussian_weights()[:100], seed=1) == bootstrap_errors(gaussian_weights()[:100], seed=1)


def test_smoothing_tames_the_largest_weight_and_normalises():
    raw = gaussian_weights(sd=0.6)
    smoothed, _ = psis(raw)
    assert np.exp(smoothed).sum() == pytest.approx(1.0)
    unsmoothed = raw - np.log(np.exp(raw).sum())
    assert smoothed.max() - np.median(smoothed) <= unsmoothed.max() - np.median(unsmoothed) + 1e-12
    bulk = np.argsort(raw)[: -3 * int(np.sqrt(S)) - 1]
    # Below the tail only the common normalisation changes.
    assert np.ptp((smoothed - unsmoothed)[bulk]) < 1e-9


def test_zero_weights():
    raw = gaussian_weights(shift=0.1)
    half = np.where(np.arange(S) % 2, raw, -np.inf)
    smoothed, khat = psis(half)
    assert np.all(np.isneginf(smoothed[::2]))
    assert np.exp(smoothed).sum() == pytest.approx(1.0)
    assert np.isfinite(khat)
    assert ess_fraction(half) == pytest.approx(0.5 * np.exp(-0.01), abs=0.01)
    assert elbo(half) == (-np.inf, np.inf)
    nothing = np.full(50, -np.inf)
    assert psis(nothing)[1] == np.inf
    assert ess_fraction(nothing) == 0.0
    assert log_evidence(nothing) == (-np.inf, np.inf)
    assert bootstrap_errors(nothing)[0] == np.inf


def test_few_weights_have_no_khat():
    assert psis([0.0, 1.0, 2.0])[1] == np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_weights_are_refused(bad):
    with pytest.raises(ArgumentError, match=r"1 of 3 log_weights are NaN or \+inf"):
        psis([0.0, bad, 1.0])


@pytest.mark.parametrize("shape", [(), (1,), (3, 2)])
def test_shapes_are_checked(shape):
    with pytest.raises(ArgumentError, match=r"log_weights has shape .*: expected a vector of at least two"):
        ess_fraction(np.zeros(shape))


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=60), st.floats(-1e3, 1e3))
def test_laws(values, shift):
    raw = np.array(values)
    fraction = ess_fraction(raw)
    assert 1 / len(raw) - 1e-9 <= fraction <= 1 + 1e-9
    assert ess_fraction(raw + shift) == pytest.approx(fraction)
    assert log_evidence(raw + shift)[0] == pytest.approx(log_evidence(raw)[0] + shift, abs=1e-6)
    assert elbo(raw)[0] <= log_evidence(raw)[0] + 1e-9
    smoothed, khat = psis(raw)
    assert np.exp(smoothed).sum() == pytest.approx(1.0)
    assert not np.isnan(khat)


def test_one_weight_above_ties_is_not_smoothed():
    smoothed, _ = psis(np.array([0.0] * 24 + [1.0]))
    assert np.exp(smoothed).sum() == pytest.approx(1.0)


def test_enormous_log_weights_have_an_elbo_of_unknown_error():
    mean, error = elbo(-1e200 * np.linspace(1.0, 2.0, 1000))
    assert mean == pytest.approx(-1.5e200)
    assert error == np.inf


def test_nearly_constant_weights_tell_the_evidence_though_their_k_hat_is_large(monkeypatch):
    # Weights that are constant to 1e-4 may have any k-hat, by chance.
    monkeypatch.setattr(importance, "psis", lambda raw: (raw, 3.5))
    value, error = log_evidence(1e-4 * np.random.default_rng(0).normal(size=20_000))
    assert abs(value) < 1e-5
    assert error < 1e-3
