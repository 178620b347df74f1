"""The page of the suite, from made-up records."""

from benchmarks.models.methods import EXACT, METHODS, OURS
from benchmarks.models.page import exact_draws, markdown

COMMON = {"model": "radon", "dim": 88, "status": "ok", "date": "2026-01-01", "commit": "abc", "warm_seconds": None}
CHAINS = {"min_ess_bulk": 400.0, "divergences": 3, "gradients": 10_000, "verdict": "usable"}
OWN = {**COMMON, **CHAINS, "method": EXACT, "cold_seconds": 20.0, "fit_seconds": 8.0, "cpu_seconds": 30.0}
OWN |= {"fit_verdict": "poor"}
PLAIN = {
    **COMMON,
    **CHAINS,
    "method": "nuts-vectorized",
    "cold_seconds": 40.0,
    "cpu_seconds": 60.0,
    "min_ess_bulk": 1200.0,
}


def test_exact_draws_are_compared_by_the_seconds_of_an_effective_one():
    table = exact_draws({"radon": {EXACT: OWN, "nuts-vectorized": PLAIN}})
    row = dict(zip(table.columns[:3], table.rows[0][:3], strict=True))
    assert row == {"model": "radon", "verdict of the fit": "poor", "fit (s)": 8.0}
    assert table.rows[0][-2:] == [75.0, 50.0]
    assert "## Exact draws" in markdown([OWN, PLAIN], {}, "bernflow benchmark models")


def test_without_exact_draws_the_page_has_no_such_part():
    assert exact_draws({"radon": {"nuts-vectorized": PLAIN}}) is None
    assert "Exact draws" not in markdown([PLAIN], {}, "bernflow benchmark models")


def test_without_plain_chains_their_columns_are_empty():
    assert exact_draws({"radon": {EXACT: OWN}}).rows[0][7:11] == [None] * 4


def test_exact_draws_are_measured_where_they_are_named():
    assert METHODS[OURS].by_default
    assert not METHODS[EXACT].by_default
