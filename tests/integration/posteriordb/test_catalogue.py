"""Draws and columns match, and every posterior has its programs."""

import numpy as np
import pytest

from benchmarks.posteriordb.catalogue import FRONT_ENDS, POSTERIORS
from benchmarks.posteriordb.front_ends import build
from bernflow.errors import ArgumentError

SCHOOLS = POSTERIORS["eight_schools-eight_schools_noncentered"]


def test_there_are_thirteen_and_eight_of_them_for_pymc():
    assert len(POSTERIORS) == 13
    assert sum("pymc" in entry.front_ends for entry in POSTERIORS.values()) == 8


@pytest.mark.parametrize("name", POSTERIORS)
def test_draws_become_columns_and_come_back(name):
    entry = POSTERIORS[name]
    rng = np.random.default_rng(0)
    columns = {column: rng.uniform(0.1, 1.0, (3, 5)) for column in entry.columns}
    sites = entry.from_columns(columns)
    if entry is SCHOOLS:
        sites["theta"] = sites["mu"][..., None] + sites["tau"][..., None] * sites["theta_trans"]
    back = entry.to_columns(sites)
    assert tuple(back) == entry.columns
    for column in entry.columns:
        np.testing.assert_allclose(back[column], columns[column], rtol=1e-12)


def test_columns_count_from_one():
    draws = {"b": np.arange(24.0)[None], "Intercept": np.array([30.0]), "sigma": np.array([31.0])}
    columns = POSTERIORS["diamonds-diamonds"].to_columns(draws)
    assert [columns[name].item() for name in ("b[1]", "b[24]", "Intercept")] == [0.0, 23.0, 30.0]


@pytest.mark.parametrize("name", POSTERIORS)
def test_stan_programs_are_shipped(name):
    code = POSTERIORS[name].stan_code()
    assert all(f"{block} {{" in code for block in ("data", "parameters", "model"))


def test_missing_quantities():
    with pytest.raises(ArgumentError, match=r"lack theta, tau: expected theta, mu, tau among the names, got mu\."):
        SCHOOLS.to_columns({"mu": np.zeros(3)})


def test_unknown_front_end():
    with pytest.raises(ArgumentError, match=f"front_end='jags' is unknown: expected one of {', '.join(FRONT_ENDS)}"):
        build(SCHOOLS, "jags", {})


def test_no_pymc_model():
    with pytest.raises(ArgumentError, match="hmm_example-hmm_example has no PyMC model: expected one of eight_schools"):
        build(POSTERIORS["hmm_example-hmm_example"], "pymc", {})
