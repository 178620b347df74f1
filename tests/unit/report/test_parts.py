"""Components, advice, wording and pictures, each by itself."""

import dataclasses
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpyro.distributions import constraints

from bernflow.diagnostics import Finding, judge
from bernflow.posterior.display import write_error
from bernflow.posterior.tables import Axes, written
from bernflow.report.components import (
    Component,
    list_components,
    select_evenly,
    strongest_pairs,
)
from bernflow.report.page import render
from bernflow.report.svg import inline_svg
from bernflow.report.wording import describe_support, describe_values, escape, say_khat, words_of_setting

RNG = np.random.default_rng(0)


def component(label, values=None, name=None):
    return Component(label, name or label.split("[")[0], False, RNG.normal(size=50) if values is None else values)


def test_labels_use_coordinates_where_the_model_gives_them():
    draws = {"twice": np.zeros((5, 2)), "b": np.zeros((5, 2, 2)), "tau": np.zeros(5)}
    found = list(list_components(draws, ["tau", "b"], Axes({"b": ("school", None)}, {"school": ["A", "B"]}, 1)))
    assert [c.label for c in found] == ["b[A, 1]", "b[A, 2]", "b[B, 1]", "b[B, 2]", "tau", "twice[1]", "twice[2]"]
    assert [c.derived for c in found] == [False] * 5 + [True] * 2
    # Labels of another length are not those of this axis.
    other = list_components({"b": np.zeros((5, 3))}, ["b"], Axes({"b": ("school",)}, {"school": ["A", "B"]}))
    assert [c.label for c in other] == ["b[0]", "b[1]", "b[2]"]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.00004, 1.0, -1.6], ["0.000", "1.000", "-1.600"]),
        ([-0.00004, 1.001, -1.6], ["0.000", "1.001", "-1.600"]),  # no negative zero
        ([1234.5678, 0.0123, 1234.5], ["1234.56780", "0.01230", "1234.50000"]),
        ([12345.678, 8900.0, 1.0], ["12346", "8900", "1"]),
        ([1.5e9, 2.5e7, 0.0], ["1.5e+09", "2.5e+07", "0"]),
        ([1e-12, 2e-12, 0.0], ["1e-12", "2e-12", "0"]),
        ([3.0, 0.0, 3.0], ["3", "0", "3"]),
        ([np.nan, np.nan, np.inf], ["nan", "nan", "inf"]),
    ],
)
def test_numbers_have_the_decimals_that_their_sd_makes_meaningful(values, texts):
    assert written(values) == texts


@pytest.mark.parametrize(
    ("verdict", "khat", "words"),
    [
        ("good", 0.3, "reliable up to 0.7"),
        ("good", 1.9, "not informative: the weights are nearly equal"),
        ("usable", 1.2, "reliable up to 0.7"),
    ],
)
def test_a_large_khat_of_a_good_fit_is_explained(verdict, khat, words):
    found = judge(RNG.normal(size=100), num_resamples=2)
    assert say_khat(dataclasses.replace(found, findings=(Finding("weights", verdict, "so"),), khat=khat)) == words


@pytest.mark.parametrize(
    ("error", "text"), [(0.01234, "0.0123"), (5e-5, "0.0001"), (2.3e-6, "2e-06"), (0.0, "0.0000"), (np.nan, "nan")]
)
def test_small_errors_are_not_zero(error, text):
    assert write_error(error) == text


@pytest.mark.parametrize(("gap", "text"), [(0.0, "below 0.0001"), (-1e-3, "below 0.0001"), (0.01234, "0.0123")])
def test_a_divergence_is_never_zero(material, gap, text, monkeypatch):
    monkeypatch.setattr("bernflow.report.page.draw_galleries", lambda *args: [])
    found = material()
    diagnostics = dataclasses.replace(found.diagnostics, elbo=-5.0 - gap, log_evidence=-5.0)
    assert f'<dt>Divergence</dt><dd class="value">{text}</dd>' in render(
        dataclasses.replace(found, diagnostics=diagnostics)
    )


def test_every_quantity_has_a_share():
    components = [component(f"b[{i}]") for i in range(10)] + [component("tau"), component("c[0]"), component("c[1]")]
    assert [c.label for c in select_evenly(components, 5)] == ["b[0]", "b[1]", "tau", "c[0]", "c[1]"]
    assert select_evenly(components, 100) == components


def test_pairs_are_those_of_the_strongest_correlations():
    x, noise = RNG.normal(size=(2, 500))
    components = [
        component("a"),
        component("x", x),
        component("constant", np.ones(500)),
        component("bad", np.full(500, np.nan)),
        component("y", -np.exp(x) + 0.1 * noise),
        component("z", x**2),
        component("w", 1 - x),
    ]
    components[0] = component("a", RNG.normal(size=500))
    chosen, strongest, labels = strongest_pairs(components, 2)
    assert [c.label for c in chosen] == ["x", "y"]
    assert labels == ("x", "y")
    assert -0.999 < strongest < -0.95
    assert strongest_pairs(components[:1], 5)[0] == []


@pytest.mark.parametrize(
    ("support", "words"),
    [
        (None, "as the model declares"),
        (constraints.real, "real"),
        (constraints.independent(constraints.positive, 1), "positive"),
        (constraints.interval(0.0, 2.5), "between 0 and 2.5"),
        (constraints.greater_than(1.0), "above 1"),
        (constraints.less_than(np.zeros(2)), "below a bound per component"),
        (constraints.simplex, "simplex: positive, sum 1"),
        (constraints.l1_ball, "l1 ball"),
        (constraints.multinomial(3), str(constraints.multinomial(3))),
    ],
)
def test_supports_in_words(support, words):
    assert describe_support(support) == words


def test_values_and_settings_in_words():
    assert describe_values(np.array([1.0, np.nan, 3.0, 2.0])) == ("float64", "1 to 3, mean 2; 1 not finite")
    assert describe_values(np.array(7)) == ("int64", "7")
    assert describe_values(np.array([np.nan])) == ("float64", "1 not finite")
    assert describe_values(np.array(["a"]))[1] == ""
    assert words_of_setting("wall_seconds", 61.26) == ("Time", "61.3 s")
    assert words_of_setting("own_choice", [1, 2]) == ("own choice", "[1, 2]")
    assert words_of_setting("order", None) == ("Order of the polynomials", "")
    assert escape("<a b='c\x1f'>") == "&lt;a b=&#x27;c\ufffd&#x27;&gt;"


def test_pictures_follow_the_colors_of_the_page_and_share_no_ids():
    def picture(prefix):
        figure = Figure(figsize=(2, 1))
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1 / 3], color="#0072B2")
        axes.set_title("--> <b>")
        figure.suptitle("heading")
        return inline_svg(figure, 'say "it"', prefix)

    one, other = picture("p1"), picture("p2")
    assert one.startswith(
        '<svg role="img" aria-label="say &quot;it&quot;" viewBox="0 0 144 72" style="max-width:192px">'
    )
    assert one.endswith("</svg>")
    assert "var(--fit)" in one
    assert "#0072b2" not in one.lower()
    for absent in ("<!--", "<metadata", "<style", "xmlns", "://", "<b>"):
        assert absent not in one
    ids = [set(re.findall(r'id="([^"]*)"', svg)) for svg in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert one == picture("p1")
    assert "heading" not in one
