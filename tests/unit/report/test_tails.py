"""Where the verdict says that tails are not right, the report shows which parameters."""

import dataclasses

import numpy as np
import pytest

from bernflow.diagnostics import judge
from bernflow.posterior.tables import Axes
from bernflow.report import material as module
from bernflow.report.page import render
from bernflow.report.tails import find_tails, tails_of_draws, worst_tails

RNG = np.random.default_rng(4)
USABLE = judge(RNG.normal(size=2000) * 0.4, num_resamples=5)
TAILS = dataclasses.replace(USABLE, khat=0.9, ess_fraction=0.95)


def heavy(values):
    """Log weights of a posterior whose tails are heavier than those of the fit in one direction."""
    return 0.25 * values**2


@pytest.fixture
def uncovered(make, monkeypatch):
    """A fit whose second component of b has tails that are too light."""
    post = make()
    post.diagnostics = TAILS
    weights = heavy(post.draws(2000, weighted=False)["b"][:, 1])
    monkeypatch.setattr(type(post), "log_weights", lambda self, num, key: weights)
    monkeypatch.setattr(module, "num_diagnostic_draws", lambda *args, **kwargs: 2000)
    return post, weights


def test_the_parameter_in_whose_tails_the_weights_lie_is_first():
    values = RNG.normal(size=(3, 4000))
    (label, share), *others = worst_tails(["a", "b", "c"], values, heavy(values[1]))
    assert label == "b"
    assert share > 0.8
    assert all(share < 0.5 for _, share in others)
    assert worst_tails(["a"], values[:1], np.zeros(4000)) == ()


def test_a_fit_names_its_uncovered_tails(uncovered):
    post, weights = uncovered
    (label, share), *_ = find_tails(post, weights, 2000, 1)
    assert label == "b[1]"
    assert share > 0.8
    named = Axes({"b": ("cause",)}, {"cause": ["age", "sex", "income"]})
    draws = post.draws(2000, weighted=False)
    assert tails_of_draws(post.diagnostics, draws, named, weights)[0][0] == "b[sex]"
    for covered in (USABLE, judge(np.zeros(2000), num_resamples=2)):
        post.diagnostics = covered
        assert find_tails(post, weights, 2000, 1) == ()
        assert tails_of_draws(covered, draws, named, weights) == ()


def test_the_report_says_which(uncovered, material, parse):
    post, weights = uncovered
    found = parse(render(dataclasses.replace(material(post), tails=find_tails(post, weights, 2000, 1))))
    assert "The largest importance weights lie in the tails of: \u2068b[1]\u2069 (" in found.text("p")
    assert "lie in the tails of" not in parse(render(material(post))).text("p")
