import numpy as np
import pytest

from benchmarks.accuracy import judge

NUM = 20_000


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def reference(rng):
    return {"a": rng.normal(3.0, 2.0, NUM), "b": rng.normal(size=NUM)}


def shifted(reference, rng, by=0.0, scale=1.0):
    return {"a": 3.0 + 2.0 * (by + scale * rng.normal(size=NUM)), "b": rng.normal(size=NUM)}


def test_score_of_a_shifted_normal(rng):
    # q = N(0, 1), p = N(0.5, 1) times 7: KL = 0.125, and log p - log q = 0.5 z - 0.125 + log 7.
    z = rng.normal(size=NUM)
    found = judge.score(0.5 * z - 0.125 + np.log(7.0), np.log(7.0))
    assert found["kl"] == pytest.approx(0.125, abs=4 * found["elbo_se"])
    assert found["elbo_se"] == pytest.approx(0.5 / np.sqrt(NUM), rel=0.05)
    # ESS = 1 / (1 + chi^2) = exp(-0.25), known here to about 2 %.
    assert found["ess_fraction"] == pytest.approx(np.exp(-0.25), rel=0.08)
    assert found["log_evidence_estimate"] == pytest.approx(np.log(7.0), abs=4 * found["log_evidence_estimate_se"])
    assert judge.score(z)["kl"] is None


def test_constant_weights_have_no_tail():
    found = judge.score(np.full(1001, 0.1), 0.1)
    assert (found["khat"], found["log_evidence_estimate_se"]) == (0.0, pytest.approx(0.0, abs=1e-7))
    assert judge.khat(np.full(1000, -np.inf)) == np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_cannot_be_judged(bad):
    with pytest.raises(ValueError, match="1 of 3 log weights are NaN or"):
        judge.score(np.array([0.0, 1.0, bad]))


@pytest.mark.parametrize(
    ("by", "scale", "verdict", "truly_good", "right"),
    [
        (0.0, 1.0, "good", True, True),
        (0.0, 1.0, "poor", True, False),  # a false bad
        (0.15, 1.0, "good", True, True),  # within what good promises
        (0.15, 1.0, "poor", True, True),
        (0.35, 1.0, "good", False, False),  # a false good
        (0.35, 1.0, "usable", False, True),
        (0.0, 0.7, "good", False, False),
        (0.0, 0.9, "good", True, True),
        (0.35, 1.0, None, False, None),
    ],
)
def test_truth_and_verdict(reference, rng, by, scale, verdict, truly_good, right):
    found = judge.errors(shifted(reference, rng, by, scale), reference, verdict)
    assert (found["truly_good"], found["verdict_is_right"]) == (truly_good, right)
    assert found["false_good"] == (verdict == "good" and right is False)
    assert found["false_bad"] == (verdict == "poor" and right is False)
    if by:
        assert found["mean_error_of"] == "a"
        assert found["mean_error"] == pytest.approx(by, abs=5 * found["mean_error_se"])


def test_draws_that_are_not_numbers_are_not_good(reference, rng):
    draws = {**shifted(reference, rng), "b": np.full(NUM, np.nan)}
    found = judge.errors(draws, reference, "good")
    assert (found["truly_good"], found["false_good"]) == (False, True)
    assert np.isnan(found["wasserstein"])


def test_draws_that_repeat_each_other_are_worth_less(reference, rng):
    draws = shifted(reference, rng)
    plain = judge.errors(draws, reference)["mean_error_se"]
    assert judge.errors(draws, reference, num_effective=NUM / 100)["mean_error_se"] > 5 * plain


def test_distance_of_a_perfect_fit_is_its_floor(reference, rng):
    same = judge.distance(shifted(reference, rng), reference)
    assert same["wasserstein"] < 2 * same["wasserstein_floor"]
    assert judge.distance(shifted(reference, rng, by=0.5), reference)["wasserstein"] > 0.2


def test_distance_takes_chains(reference, rng):
    chains = {name: values.reshape(4, -1) for name, values in reference.items()}
    draws = {name: values.reshape(2, -1) for name, values in shifted(reference, rng).items()}
    found = judge.distance(draws, chains)
    assert found["wasserstein"] < 2 * found["wasserstein_floor"]


def test_weights_of_modes(rng):
    def two_modes(share):
        return {"x": np.where(rng.uniform(size=NUM) < share, 10.0, -10.0) + rng.normal(size=NUM)}

    reference = two_modes(0.3)
    # The standard error of a difference of two shares is 0.005.
    assert judge.region_error(two_modes(0.3), reference, 2)["region_error"] < 0.02
    assert judge.region_error(two_modes(0.7), reference, 2)["region_error"] == pytest.approx(0.4, abs=0.02)
