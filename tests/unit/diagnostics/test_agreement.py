"""Agreement passes on draws of the same distribution and fails on biased, too narrow and unmixed ones."""

import numpy as np
import pytest

from bernflow.diagnostics.agreement import Moments, compare, moments
from bernflow.errors import ArgumentError


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def reference(rng):
    return {"a": rng.normal(3.0, 2.0, (10, 1000)), "b": rng.standard_t(8, (10, 1000))}


@pytest.fixture
def draws(rng):
    return {"a": rng.normal(3.0, 2.0, 20_000), "b": rng.standard_t(8, 20_000)}


def test_same_distribution(draws, reference):
    found = compare(draws, reference)
    assert found.agrees
    assert abs(found.worst_mean.mean_error) < 0.05
    assert str(found).startswith("agrees: worst mean")


@pytest.mark.parametrize("spoil", [lambda x: x + 0.15, lambda x: 3.0 + 0.93 * (x - 3.0), lambda x: x * np.nan])
def test_spoiled_draws(spoil, draws, reference):
    found = compare({**draws, "a": spoil(draws["a"])}, reference)
    assert not found.agrees
    assert [c.name for c in found.columns if not c.agrees] == ["a"]
    assert "disagrees in a" in str(found)


@pytest.mark.parametrize(("num_errors", "agrees"), [(3.95, True), (4.05, False)])
def test_four_standard_errors_are_allowed(num_errors, agrees, draws, reference):
    column = compare(draws, reference).columns[0]
    sd = np.std(reference["a"], ddof=1)
    moved = draws["a"] + sd * (num_errors * column.mean_se - column.mean_error)
    assert compare({**draws, "a": moved}, reference).agrees is agrees
    # About the mean, so that only the spread changes; its own error grows with it.
    factor = 1.0 + (num_errors * column.sd_se - column.sd_error) / (np.std(draws["a"]) / sd)
    stretched = draws["a"].mean() + factor * (draws["a"] - draws["a"].mean())
    found = compare({**draws, "a": stretched}, reference).columns[0]
    assert found.agrees is (abs(found.sd_error) <= 4.0 * found.sd_se)


def test_tolerance_is_in_units_of_the_reference_sd(draws, reference):
    spoiled = {**draws, "a": draws["a"] + 0.2}
    assert not compare(spoiled, reference, tolerance=0.01).agrees
    assert compare(spoiled, reference, tolerance=0.1).agrees
    assert compare(spoiled, reference).worst_mean.mean_error == pytest.approx(0.1, abs=0.05)


def test_within_allows_more_of_means_than_of_standard_deviations(draws, reference):
    moved = {**draws, "a": draws["a"] + 0.4}
    found = compare(moved, reference)
    allowance = 4.0 * found.worst_mean.mean_se
    off = abs(found.worst_mean.mean_error)
    assert found.within(off - allowance + 0.01, 0.0)
    assert not found.within(off - allowance - 0.01, 0.0)
    # Standard deviations have an allowance of their own.
    stretched = compare({**draws, "a": 3.0 + 1.2 * (draws["a"] - 3.0)}, reference)
    excess = stretched.worst_sd.sd_error - 4.0 * stretched.worst_sd.sd_se
    assert stretched.worst_sd.name == "a"
    assert stretched.within(0.0, excess + 0.01)
    assert not stretched.within(0.0, excess - 0.01)
    assert not stretched.within(excess, 0.0)


def test_repeated_draws_count_once(draws, reference):
    plain, repeated = compare(draws, reference), compare(draws, reference, num_effective=200)
    theirs = moments(reference["a"])
    ours = np.sqrt((plain.columns[0].mean_se * theirs.sd) ** 2 - theirs.mean_se**2)
    expected = np.hypot(np.sqrt(20_000 / 200) * ours, theirs.mean_se) / theirs.sd
    assert repeated.columns[0].mean_se == pytest.approx(expected)


@pytest.mark.parametrize(("num", "agrees"), [(90, False), (110, True)])
def test_what_is_known_too_badly_agrees_with_nothing(num, agrees, draws, reference):
    # A mean of 100 draws has a standard error of a tenth of a standard deviation.
    exact = {name: np.tile(values, 100) for name, values in draws.items()}
    assert compare(draws, exact, num_effective=num).columns[0].agrees is agrees


def test_a_constant_column_has_no_errors():
    assert moments(np.full(100, 2.0)) == Moments(2.0, 0.0, 0.0, 0.0)


def test_chains_that_have_not_met_agree_with_nothing(rng, reference):
    stuck = {name: rng.normal(0.0, 1.0, (4, 1000)) + 10.0 * np.arange(4)[:, None] for name in reference}
    assert not any(c.agrees for c in compare(stuck, reference).columns)


def test_standard_errors_are_those_of_repetitions(rng):
    repeated = rng.exponential(1.0, (400, 2000))
    found = [moments(values) for values in repeated]
    # The standard deviation of 400 repetitions is known to 3.5 %; 15 % are four times that.
    assert np.mean([m.mean_se for m in found]) == pytest.approx(np.std([m.mean for m in found]), rel=0.15)
    assert np.mean([m.sd_se for m in found]) == pytest.approx(np.std([m.sd for m in found]), rel=0.15)


def test_chains_count_by_their_effective_size(rng):
    chain = rng.normal(size=(4, 2000))
    for t in range(1, 2000):
        chain[:, t] = 0.9 * chain[:, t - 1] + np.sqrt(1 - 0.9**2) * chain[:, t]
    independent = moments(chain.ravel())
    # An autocorrelation of 0.9 leaves one effective draw of 19.
    assert moments(chain).mean_se / independent.mean_se == pytest.approx(np.sqrt(19), rel=0.35)


def test_chains_count_by_the_effective_size_of_squares(rng):
    # Draws that alternate between both sides of the mean know it well, and their spread no better than one side does.
    size = np.repeat(rng.gamma(2.0, size=(4, 200)), 10, axis=1)
    sign = np.where(np.arange(2000) % 2 == 0, 1.0, -1.0)
    chain = sign * size
    found, independent = moments(chain), moments(chain.ravel())
    assert found.mean_se < 0.6 * independent.mean_se
    assert found.sd_se / independent.sd_se == pytest.approx(np.sqrt(10), rel=0.35)


def test_missing_columns(draws, reference):
    with pytest.raises(ArgumentError, match="The draws lack the columns b of the reference; got a"):
        compare({"a": draws["a"]}, reference)


@pytest.mark.parametrize("shape", [(99,), (10, 10, 10)])
def test_wrong_shapes(shape):
    with pytest.raises(ArgumentError, match="expected \\(num,\\) independent draws or \\(chains, draws\\)"):
        moments(np.zeros(shape))
