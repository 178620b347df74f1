import pytest

from benchmarks.speed import clock
from benchmarks.speed.growth import cost_table, curve, exponent, exponents


def test_the_median_call_counts_and_the_first_does_not(monkeypatch):
    now = [0.0]
    lasting = iter([9.0, 2.0, 4.0, 60.0, 4.0, 4.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def call():
        now[0] += next(lasting)

    found = clock.time_calls(call, units=2, seconds=67.0)
    assert found == {"seconds": 2.0, "fastest": 1.0, "slowest": 30.0, "num_calls": 4, "first_call": 9.0}


def test_no_ratio_leaves_its_case_or_its_round(records):
    found = records("x", {("c", "a"): {"t": 6.0}, ("c", "b"): {"t": 2.0}, ("d", "a"): {"t": 100.0}}, rounds=1)
    later = {**found[0], "round": 1, "t": 50.0}  # nothing to compare it with
    assert clock.ratios([*found, later], "t", "a", "b") == [3.0]


def test_a_figure_that_is_missing_gives_no_ratio(records):
    found = records("x", {("c", "a"): {"t": None}, ("c", "b"): {"t": 2.0}}, rounds=1)
    assert clock.ratios(found, "t", "a", "b") == []


def test_medians_are_over_the_rounds(records):
    found = [{**r, "t": t} for r, t in zip(records("x", {("c", "a"): {}}, rounds=3), (1.0, 9.0, 2.0), strict=True)]
    assert clock.median_of(found, "t") == {("c", "a"): 2.0}


@pytest.mark.parametrize(("values", "text"), [([], ""), ([1.23456], "1.23"), ([3.0, 1.0, 2.0], "2 (1 to 3)")])
def test_spread(values, text):
    assert clock.spread(values) == text


def test_sizes_are_numbers_not_words(records):
    found = records("growth", {("p", s): {"seconds": float(s) ** 2} for s in ("100", "4", "30", "1000")})
    assert curve(found, "p")[0] == [4.0, 30.0, 100.0, 1000.0]
    assert exponents(found, "p") == ("2.00", "2.00")
    assert exponent([2, 4], [1.0, 1.0]) == pytest.approx(0.0)
    assert cost_table(found, "p", "p").rows[1][2] == "56.2 (56.2 to 56.2)"  # (30 / 4)^2


def test_one_size_has_no_exponent(records):
    assert exponents(records("growth", {("p", "4"): {"seconds": 1.0}}), "p") == ("", "")
