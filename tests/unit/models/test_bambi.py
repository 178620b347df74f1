"""Formulas of Bambi in one line; three of its examples, with data like theirs, fitted in the slow suite."""

import jax
import numpy as np
import pandas as pd
import pytest

import bernflow as bf
from bernflow.errors import ModelError
from bernflow.models import as_model

bambi = pytest.importorskip("bambi")
pytestmark = pytest.mark.filterwarnings("ignore")

RNG = np.random.default_rng(0)
GROUPS = np.repeat(list("abcd"), 6)
TABLE = pd.DataFrame({"x": RNG.normal(size=24), "g": GROUPS})
TABLE["y"] = 1 + 2 * TABLE.x + RNG.normal(size=24)
TABLE["n"] = RNG.poisson(np.exp(0.3 * TABLE.x))
TABLE["won"] = (TABLE.y > 1).astype(int)


RANDOM = {"1|g_sigma", "x|g_sigma", "1|g_offset", "x|g_offset"}


@pytest.mark.parametrize(
    ("formula", "family", "names"),
    [
        (
            "y ~ x + (x | g)",
            "gaussian",
            {"Intercept", "x", "sigma"} | RANDOM,
        ),
        ("n ~ x + g", "poisson", {"Intercept", "x", "g"}),
        ("won ~ x", "bernoulli", {"Intercept", "x"}),
    ],
)
def test_a_formula_is_a_model(formula, family, names):
    model = as_model(bambi.Model(formula, TABLE, family=family))
    assert {site.name for site in model.sites} == names
    theta = model.sample_prior(jax.random.key(0))
    assert np.isfinite(float(model.log_density(theta)))


def examples():
    """Sleep deprivation, votes, and days of absence: the data of Bambi's examples, drawn anew."""
    rng = np.random.default_rng(1)
    subject, day = np.repeat(np.arange(18), 10), np.tile(np.arange(10), 18)
    base, slope = 251 + 25 * rng.normal(size=18), 10.5 + 6 * rng.normal(size=18)
    sleep = {"Days": day, "Subject": subject.astype(str), "Reaction": base[subject] + slope[subject] * day}
    sleep["Reaction"] = sleep["Reaction"] + 25 * rng.normal(size=180)
    party, age = rng.integers(0, 3, 300), rng.integers(18, 90, 300)
    logit = np.array([1.7, 0.3, -1.9])[party] + np.array([0.004, -0.009, -0.018])[party] * age
    vote = {"party": np.array(["d", "i", "r"])[party], "age": age, "vote": rng.random(300) < 1 / (1 + np.exp(-logit))}
    program, math = rng.integers(0, 3, 300), rng.integers(1, 100, 300)
    mean = np.exp(np.array([2.2, 1.8, 1.0])[program] - 0.006 * math)
    days = {
        "program": np.array(["g", "a", "v"])[program],
        "math": math,
        "absent": rng.negative_binomial(1, 1 / (1 + mean)),
    }
    return {
        "sleep": ("Reaction ~ 1 + Days + (Days | Subject)", sleep, "gaussian"),
        "vote": ("vote['yes'] ~ party + party:age", {**vote, "vote": np.where(vote["vote"], "yes", "no")}, "bernoulli"),
        "days": ("absent ~ 0 + program + scale(math)", days, "negativebinomial"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sleep", "vote", "days"])
def test_an_example_is_fitted_in_one_line(name):
    formula, table, family = examples()[name]
    model = bambi.Model(formula, pd.DataFrame(table), family=family)
    post = bf.fit(model, progress=False)
    assert post.diagnostics.verdict in ("good", "usable")
    run = post.to_nuts(num=500, chains=2, progress=False)
    assert run.diagnostics.verdict in ("good", "usable")
    exact, found = run.summary(list(post.names)), post.summary(list(post.names), round_to="none")
    assert set(exact.index) == set(found.index)
    exact = exact.loc[found.index]
    errors = 5 * np.hypot(exact["mcse_mean"], found["mcse_mean"])
    assert (np.abs(exact["mean"] - found["mean"]) < errors).all()
    assert ((exact["sd"] / found["sd"]).between(0.8, 1.25)).all()
    if name == "sleep":
        # What is asked first: population, then subjects, then what they are made of, then 180 fitted values.
        names = list(dict.fromkeys(label.partition("[")[0] for label in post.summary().index))
        assert names[:5] == ["sigma", "Intercept", "Days", "1|Subject_sigma", "Days|Subject_sigma"]
        assert names[5:] == ["1|Subject", "Days|Subject", "1|Subject_offset", "Days|Subject_offset", "mu"]


def test_a_formula_takes_no_data_at_the_fit():
    with pytest.raises(ModelError, match=r"The Bambi model was given together .* It holds its data"):
        as_model(bambi.Model("y ~ x", TABLE), (1,))
