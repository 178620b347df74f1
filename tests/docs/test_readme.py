"""The table of the README is what its writer makes of the kept results, and says what was not measured."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def readme():
    sys.path.insert(0, str(ROOT))  # `benchmarks` is not installed
    try:
        yield importlib.import_module("benchmarks.readme")
    finally:
        sys.path.remove(str(ROOT))


def record(target, method, **figures):
    base = {
        "target": target,
        "method": method,
        "key": 0,
        "matched": False,
        "status": "ok",
        "elbo": None,
        "seconds": 3.0,
    }
    return {**base, **figures}


def lines(text):
    return {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in text.splitlines()}


def test_the_readme_has_the_figures_of_the_kept_results(readme):
    text = readme.README.read_text(encoding="utf-8")
    assert text == readme.page(text, readme.load_records(readme.RESULTS)), "run python -m benchmarks.readme"


def test_what_was_not_measured_is_said_so(readme):
    found = lines(readme.table([]))
    assert set(found) >= set(readme.ROWS.values())
    assert all(set(found[title]) == {"not measured"} for title in readme.ROWS.values())


def test_a_cell_has_kl_and_seconds_and_the_best_is_bold(readme):
    evidence = -31.311350
    runs = [
        record("eight-schools-noncentered", "bernflow", elbo=evidence - 0.0005),
        record("eight-schools-noncentered", "AutoIAFNormal", elbo=evidence - 0.0123, seconds=8.4),
        record("eight-schools-noncentered", "flowjax-spline", elbo=evidence - 12.34),
        record("eight-schools-noncentered", "nuts", mean_error=-0.031),
        record("bernoulli", "AutoIAFNormal", status="refuses 1-D: it needs two"),
    ]
    found = lines(readme.table(runs))
    row = dict(zip(readme.COLUMNS, found["8 schools, non-centered"], strict=True))
    assert row["bernflow"] == "**0.0005**; 3 s"
    assert row["AutoIAFNormal"] == "0.0123; 8 s"
    assert row["flowjax-spline"] == "12.3; 3 s"
    assert row["nuts"] == "means within 0.03 sd; 3 s"
    assert row["pymc-fullrank"] == "not measured"
    assert "refuses 1-D" in found["Bernoulli"]


def test_runs_that_hit_the_limit_are_shown_beside_the_others(readme):
    late = record("bernoulli", "bernflow", status="exceeded the time limit of 900 s", key=1)
    found = lines(readme.table([record("bernoulli", "bernflow", elbo=-1.2), late, {**late, "key": 2}]))
    row = dict(zip(readme.COLUMNS, found["Bernoulli"], strict=True))
    assert row["bernflow"] == "**0.0856**; 3 s (2 of 3 runs: > 900 s)"


def test_a_kl_that_rests_on_one_draw_says_so(readme):
    heavy = record("bernoulli", "nuts", elbo=-14.5, elbo_se=12.0, largest_share=0.93)
    found = dict(zip(readme.COLUMNS, lines(readme.table([heavy]))["Bernoulli"], strict=True))
    assert found["nuts"] == "**13.4**; ± 12, 93% of it one draw; 3 s"


def test_gradients_are_told(readme):
    runs = [record("bernoulli", "nuts", gradients=3.0e4), record("cauchy", "nuts", gradients=5.0e4)]
    found = lines(readme.table(runs))[readme.GRADIENTS]
    assert dict(zip(readme.COLUMNS, found, strict=True))["nuts"] == "4e+04"


def test_it_can_be_read_in_minutes():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table, comments = r"<!-- accuracy:start.*?accuracy:end -->", r"<!--.*?-->"
    prose = re.sub(rf"```.*?```|{table}|{comments}|\]\([^)]*\)", "", text, flags=re.DOTALL)
    assert len(prose.split()) < 700
    assert text.count("```python") >= 2
