"""Formulas of Bambi in one line; three of its models, as far as data can be made here."""

import jax
import numpy as np
import pandas as pd
import pytest

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


def test_a_formula_takes_no_data_at_the_fit():
    with pytest.raises(ModelError, match=r"The Bambi model was given together .* It holds its data"):
        as_model(bambi.Model("y ~ x", TABLE), (1,))
