"""The comparison of outputs with their pages lets Monte Carlo error pass, and nothing else."""

import importlib.util
import re
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("shown", Path(__file__).with_name("shown.py"))
shown = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(shown)

PAGE = """\
Posterior (bernstein, order 20, 2 dimensions; 4,000 draws)
  Usable (ESS 75.6 % of the draws, k-hat 0.61): importance weights correct the remaining error. No mass was
  found elsewhere among 4,000 heated draws, 72 starts.
  ELBO -2.1459 ± 0.0022, log evidence -2.0989 ± 0.0057

              mean         sd         5%        95%       MCSE
  a         0.5045     0.2255     0.2154     0.9240     0.0036
  b[0]     -2.3663     0.9376    -3.9684    -0.8649      0.015
P(a > 0) = 0.504
missing: [0.5 1.25]
12 s
"""
SAME = [
    ("0.5045 ", "0.5245 "),  # 5.6 standard errors, of two means
    ("0.2154 ", "0.2654 "),
    ("0.0036", "0.0033"),
    ("k-hat 0.61", "k-hat 0.49"),
    ("ESS 75.6 %", "ESS 71.9 %"),
    ("-2.1459 ± 0.0022", "-2.1379 ± 0.0020"),
    ("= 0.504", "= 0.492"),
    ("1.25]", "1.21]"),
    ("12 s", "93 s"),
    ("No mass was\n  found", "No mass was found"),
]
STALE = [
    ("Usable", "Good", "Usable .*, the code prints .*Good"),
    ("0.5045 ", "0.5845 ", "a: the page has mean 0.5045, the code prints 0.5845; MCSE 0.0036"),
    ("-3.9684", "-3.0684", r"b\[0\]: the page has 5% -3.9684"),
    ("0.9376", "0.5376", r"b\[0\]: the page has sd 0.9376"),
    ("0.015", "0.030", r"b\[0\]: the page has MCSE 0.015"),
    ("k-hat 0.61", "k-hat 1.61", "code prints 1.61"),
    ("ESS 75.6 %", "ESS 40.0 %", "code prints 40.0"),
    ("-2.1459 ±", "-2.2459 ±", "code prints -2.2459"),
    ("± 0.0057", "± 0.0357", "code prints 0.0357"),
    ("72 starts", "64 starts", "code prints 64"),
    ("; 4,000 draws", "", "the page has"),
    ("= 0.504", "= 0.584", r"the page has 'P\(a > 0\) = 0.504'"),
    ("1.25]", "1.75]", "code prints 1.75"),
    ("  b[0] ", "  b[1] ", "the page has"),
    ("12 s\n", "", "the page has"),
]


@pytest.mark.parametrize(("old", "new"), SAME)
def test_monte_carlo_error_passes(old, new):
    assert old in PAGE
    assert shown.differences(PAGE, PAGE.replace(old, new)) == []


@pytest.mark.parametrize(("old", "new", "said"), STALE)
def test_what_is_stale_is_found(old, new, said):
    assert old in PAGE
    found = shown.differences(PAGE, PAGE.replace(old, new))
    assert found
    assert re.search(said, found[0])


def test_columns_of_a_summary():
    header = "     mean    sd  eti90_lb  eti90_ub  mcse_mean  mcse_sd\n"
    page = f"{header}mu  4.390  3.287    -1.048     9.726      0.052    0.038"
    assert shown.differences(page, page.replace("4.390", "4.190").replace("0.038", "0.055")) == []
    assert shown.differences(page, page.replace("4.390", "3.890"))
    assert shown.differences(page, page.replace("0.038", "0.138"))
    assert shown.differences(page, page.replace("eti90_lb", "eti89_lb"))
