import numpy as np
import pytest

from bernflow.diagnostics.chains import Convergence, convergence, judge_chains

NAMES = ["a", "b", "c"]
RNG = np.random.default_rng(0)
NOISE = RNG.normal(size=(3, 4, 1000))


def judge(values, num_divergent=0):
    return judge_chains(convergence(values), NAMES, values[0].size, num_divergent)


def test_independent_draws_are_good():
    found = judge(NOISE)
    assert found.verdict == "good"
    assert found.status.startswith("Good (R-hat 1.00")
    assert found.status.endswith("0 divergences): the draws can be used as they are.")
    # The effective numbers of 4,000 independent draws, and the least of three.
    assert found.ess_bulk == pytest.approx(4000, rel=0.2)
    assert found.ess_tail == pytest.approx(4000, rel=0.2)
    assert found.num_draws == 4000


@pytest.mark.parametrize(
    "spoil",
    [
        lambda v: v + np.array([0.0, 0.0, 0.0, 0.5])[:, None],  # one chain elsewhere
        lambda v: v * np.array([1.0, 1.0, 1.0, 3.0])[:, None],  # one chain wider
        lambda v: v + np.linspace(0.0, 1.0, v.shape[1]),  # all still on their way
    ],
)
def test_chains_that_disagree_are_poor_and_named(spoil):
    values = NOISE.copy()
    values[1] = spoil(values[1])
    found = judge(values)
    assert found.verdict == "poor"
    assert found.rhat > 1.01
    assert "the chains disagree about b; use more draws and a longer warmup." in found.status


def test_sticky_chains_are_usable_at_best():
    values = NOISE.copy()
    values[2] = np.repeat(NOISE[2, :, ::20], 20, axis=1)
    found = judge(values)
    assert found.ess_bulk == pytest.approx(200, rel=0.5)
    assert found.verdict in ("usable", "poor")
    calm = Convergence(np.full(3, 1.001), np.array([900.0, 800.0, 300.0]), np.full(3, 1000.0))
    assert judge_chains(calm, NAMES, 4000, 0).verdict == "usable"
    assert "fewer than 400 effective draws" in judge_chains(calm, NAMES, 4000, 0).status


def test_a_slightly_high_rhat_of_many_effective_draws_is_a_warning():
    def found(rhat, ess=1850.0):
        return judge_chains(Convergence(np.full(3, rhat), np.full(3, ess), np.full(3, ess)), NAMES, 4000, 0)

    assert found(1.012).verdict == "usable"
    assert "above 1.01" in found(1.012).status
    assert found(1.012, ess=200.0).verdict == "poor"
    assert found(1.06).verdict == "poor"
    assert found(1.01).verdict == "good"
    assert found(1.0104).verdict == "good", "which is shown as 1.010"
    assert found(1.0106).verdict == "usable"


def test_divergences_are_never_good():
    few, many = judge(NOISE, 4), judge(NOISE, 5)
    assert (few.verdict, many.verdict) == ("usable", "poor")
    assert "4 of 4000 trajectories diverged" in few.status
    assert "raise target_accept towards 0.99" in many.status


def test_two_reasons_are_both_said():
    values = NOISE + np.array([0.0, 0.0, 0.0, 0.5])[:, None]
    found = judge(values, 1)
    assert found.verdict == "poor"
    assert "disagree" in found.status
    assert "Also, 1 of 4000 trajectories diverged" in found.status


def test_four_draws_of_a_chain_can_be_judged():
    found = convergence(NOISE[:, :, :4])
    assert np.isfinite([found.rhat, found.ess_bulk, found.ess_tail]).all()
    assert np.isfinite(convergence(NOISE[:, :2]).rhat).all()


@pytest.mark.parametrize("values", [NOISE[:, :, :3], np.full((3, 4, 100), np.nan)])
def test_what_cannot_be_told_is_poor(values):
    found = judge(values)
    assert found.verdict == "poor"
    assert np.isnan(found.rhat)
