import base64
import dataclasses
import hashlib
import re
from importlib import metadata

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import bernflow as bf
from bernflow.diagnostics.findings import FINDINGS, Finding
from bernflow.errors import ArgumentError
from bernflow.flows.mixture import Mixture
from bernflow.posterior import Posterior
from bernflow.posterior.tables import Axes
from bernflow.report import page, pictures
from bernflow.report.components import list_components
from bernflow.report.page import render, write_page

RNG = np.random.default_rng(0)
EVIL = (
    "<script>document.title='run'</script>",
    '"><img src=x onerror="document.title=1">',
    "--></svg><b>bold</b>",
    "$\\frac{1$",
    "</script><script>alert(1)</script>",
    "a & b",
)


without_pictures = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def no_pictures(monkeypatch):
    """Leave the slow part out where only words are looked at."""
    monkeypatch.setattr(page, "draw_galleries", lambda *args: [])


def test_page_is_self_contained_and_well_formed(with_model, tmp_path, parse):
    path = with_model().report(tmp_path / "report.html", num=200)
    assert path == tmp_path / "report.html"
    found = parse(path.read_text(encoding="utf-8"))
    assert "://" not in found.source
    assert not found.all("link")
    assert all(source.get("xlink:href", "data:").startswith(("data:", "#")) for _, source in found.elements)
    assert [attributes for attributes in found.all("script") if attributes] == []
    assert found.all("html") == [{"lang": "en"}]
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    # What is referred to exists: labels, descriptions, contents, glyphs and clip paths of the pictures.
    references = [a[k] for _, a in found.elements for k in ("for", "aria-labelledby", "aria-describedby") if k in a]
    references += [a[k][1:] for _, a in found.elements for k in ("href", "xlink:href") if a.get(k, "").startswith("#")]
    references += re.findall(r"url\(#([^)]*)\)", found.source)
    assert set(references) <= set(ids)


@without_pictures
def test_no_script_runs_but_the_pages_own(make, parse, material):
    found = parse(render(material()))
    script = re.search(r"<script>(.*)</script>", found.source, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for a in found.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_pictures_have_texts_for_those_who_cannot_see_them(with_model, parse, material):
    found = parse(render(material(with_model())))
    shown = [svg for svg in found.all("svg") if svg.get("aria-hidden") != "true"]
    assert [svg["aria-label"].split(" ")[0] for svg in shown] == ["Density", "ELBO", "Fraction", "Distribution"]
    assert all(svg["role"] == "img" for svg in shown)


@pytest.mark.parametrize(
    ("spread", "title", "word"),
    [(0.0, "Good", "as they are"), (0.4, "Usable", "importance weights"), (3.0, "Poor", "Do not use")],
)
@without_pictures
def test_verdict_is_said_in_words(make, parse, material, spread, title, word):
    found = parse(render(material(log_weights=spread * RNG.normal(size=4000))))
    assert any(tag == "h2" and text.startswith(f"{title}: ") for tag, text in found.texts)
    assert word in found.text("li", "code")
    assert f"verdict {title.lower()}" in [a.get("class") for a in found.all("section")]


@without_pictures
def test_table_has_every_component(with_model, make, parse, material):
    found = parse(render(material()))
    assert [text for tag, text in found.texts if tag == "span"][:4] == ["tau", "b[0]", "b[1]", "b[2]"]
    assert "Mean, standard deviation and quantiles of 200 draws. Indices count from 0." in found.text("p")
    assert "resampled by their importance weights" in parse(render(material(with_model(), weighted=True))).text("p")


def test_names_of_a_model_are_text_everywhere(make, parse, material, tmp_path):
    sites = {name: ((2,) if name == "a & b" else (), constraints.real) for name in EVIL}
    post = make(sites)
    found = parse(render(material(post), title=EVIL[0]))
    assert len(found.all("script")) == 1
    assert not found.all("img")
    assert not found.all("b")
    labels = [text for tag, text in found.texts if tag == "span"]
    assert labels[:7] == [*EVIL[:5], "a & b[0]", "a & b[1]"]
    assert found.text("title") == EVIL[0]
    assert "Not drawn" not in found.text()  # least of all because of a dollar sign


@without_pictures
@pytest.mark.parametrize("evil", EVIL)
def test_no_text_of_a_run_is_markup(make, parse, material, evil):
    given = material(make({evil: ((2,), constraints.real)}, family=evil, versions={evil: evil}, **{evil: evil}))
    finding = Finding(FINDINGS[-1], "usable", evil, evil, parameters=evil)
    given = dataclasses.replace(
        given,
        diagnostics=dataclasses.replace(given.diagnostics, findings=(finding,), looked=evil),
        observed={evil: np.zeros(2)},
        constants={evil: np.array([evil, evil])},
        replicates={evil: np.zeros((5, 2))},
        axes=Axes({evil: (evil,)}, {evil: [evil, evil]}),
        tails=((evil, 0.5),),
        origin=((evil, evil),),
        notes=(evil,),
    )
    found = parse(render(given, title=evil))
    assert len(found.all("script")) == 1
    assert not found.all("img")
    assert not found.all("b")
    assert found.text().count(evil) >= 12


def test_names_from_right_to_left_do_not_turn_the_page_around(make, parse, material):
    odd = "\u202egnp.\x00x"
    found = parse(render(material(make({odd: ((), constraints.real), "名": ((), constraints.real)}))))
    assert "\x00" not in found.source
    assert "Parameters \u2068\u202egnp.\ufffdx\u2069, \u2068名\u2069; family bernstein" in found.text("p")
    assert "Not drawn" not in found.text()


@without_pictures
def test_model_and_data_are_described(with_model, parse, material):
    text = parse(render(material(with_model(np.array([1.0, 2.0, 3.0]))))).text("span", "td")
    assert "mu scalar real" in text
    assert "y 3 float32 1 to 3, mean 2" in text


@without_pictures
def test_settings_time_and_versions_are_shown(make, parse, material):
    text = parse(render(material())).text("span", "td", "th")
    assert "Time 2.5 s" in text
    assert "Steps per second 400" in text
    assert "Interrupted no" in text
    assert f"bernflow 0.0.9 {metadata.version('bernflow')}" in text
    assert "Family bernstein-paper" in parse(render(material(family="bernstein-paper"))).text("span", "td")


def test_without_model_the_page_says_what_is_missing(make, parse, material):
    found = parse(render(material()))
    titles = [text for tag, text in found.texts if tag == "h2"][1:]
    assert titles == [
        *("Parameters", "Marginals", "Pairs", "Structure", "Training"),
        *("Model and data", "Settings, time and versions", "Cite and repeat"),
    ]
    assert "The file of a saved posterior does not contain the model" in found.text("p")


@without_pictures
def test_the_page_tells_how_to_cite_and_repeat_the_fit(make, parse, material):
    found = parse(render(material(key=7, tolerance=0.01, restarts=8, time_limit=None)))
    assert "post = bf.fit(model, *data, key=7, restarts=8, components=1)" in found.text("code")
    assert "doi:10.48550/arXiv.2202.05650" in found.text("li")
    assert "bernflow 0.0.9: Bayesian inference" in found.text("li")  # the version of the fit, not that of the report
    assert "The fit was made with bernflow 0.0.9, jax 0.1. It was trained in float32." in found.text("p")
    # What depends on the time cannot be repeated but by the number of steps.
    stopped = parse(render(material(key=[1, 2], out_of_time=True, time_limit=5.0)))
    assert (
        "key=jax.random.wrap_key_data(jnp.uint32([1, 2])), time_limit=5.0, components=1, steps=1000)"
        in stopped.text("code")
    )
    assert "bf.fit(model, *data" not in render(material())  # an older file has no key


@without_pictures
def test_the_page_tells_what_was_weighted(with_model, parse, material):
    post = with_model()
    assert "No draw of this page is weighted" in parse(render(material(post))).text("p")
    assert "were resampled by their importance weights" in parse(render(material(post, weighted=True))).text("p")


def test_the_prior_is_beside_the_posterior(with_model, make, parse, material):
    gathered = material(with_model())
    prior = gathered.prior["mu"]
    assert abs(prior.mean()) < 5 / np.sqrt(len(prior))  # N(0, 1), not the posterior
    assert prior.std() == pytest.approx(1.0, abs=0.05)
    drawn = pictures._marginal(next(list_components(gathered.draws, ["mu"], gathered.axes)), gathered)
    lines = {line.get_label(): line for line in drawn.axes[0].get_lines()}
    x, density = lines["prior"].get_data()
    np.testing.assert_allclose(density, np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi), atol=0.05)
    assert "The dashed line is the density of the prior." in parse(render(gathered)).text("p")
    assert "prior" not in parse(render(material())).text("p")


def test_constants_are_in_the_table_and_not_drawn(make, parse, material):
    found = parse(render(material(make({"L": ((2, 2), constraints.corr_cholesky)}))))
    assert found.text("figcaption").split("  ")[0].startswith("L[1, 0] L[1, 1]")
    cells = [text for tag, text in found.texts if tag in ("span", "td")]
    start = cells.index("L[0, 0]")
    assert cells[start + 1 : start + 6] == ["1", "0", "1", "1", "1"]
    # L[1, 1] is a function of L[1, 0]: there is no pair.
    assert "Pairs" not in found.text("h2")


@without_pictures
def test_mixtures_show_their_parts(make, parse, material):
    post = make(components=2)
    mixture = Mixture((post.distribution, post.distribution), jnp.log(jnp.array([0.25, 0.75])))
    mixed = Posterior(mixture, post.layout, None, post.diagnostics, post.history, post.settings)
    assert "Weights of the components 0.250, 0.750" in parse(render(material(mixed))).text("span", "td")


def test_a_thousand_parameters_fit_on_a_page(make, parse, material):
    post = make({"b": ((1000,), constraints.real), "tau": ((), constraints.positive)})
    source = render(material(post))
    assert len(source.encode()) < 2_000_000
    found = parse(source)
    assert source.count('<tr><th scope="row"><span>b[') == 1000
    assert len(found.all("svg")) == 1 + pictures.MAX_MARGINALS + 2
    assert "24 of 1,001 components" in found.text("p")
    assert "tau" in found.text("figcaption")  # the last one, but it has a share


@without_pictures
def test_very_long_tables_are_cut(make, parse, material, monkeypatch):
    monkeypatch.setattr(page, "MAX_ROWS", 3)
    found = parse(render(material(make({"b": ((5,), constraints.real)}))))
    assert "The first 3 of 5 components; post.summary() has all." in found.text("p")


@without_pictures
def test_derived_quantities_are_marked_and_limited(make, parse, material, with_model, monkeypatch):
    logp = bf.from_log_density(lambda theta: -0.5 * theta["mu"] ** 2, init={"mu": 0.0})
    assert "Kind" not in parse(render(material(with_model(np.zeros(0), logp)))).text("th")

    class Derived(type(logp)):
        def deterministic(self, theta):
            return {"twice": jnp.full(4, 2.0) * theta["mu"]}

    model = object.__new__(Derived)
    for name, value in vars(logp).items():
        object.__setattr__(model, name, value)
    post = with_model(np.zeros(0), model)
    text = parse(render(material(post))).text("span", "td")
    assert "twice[3]" in text
    assert "derived" in text
    monkeypatch.setattr("bernflow.report.material.MAX_DERIVED", 3)
    assert "left out" not in parse(render(material(post))).text("p")  # small ones are shown all the same
    monkeypatch.setattr("bernflow.report.material.MAX_SMALL", 3)
    assert "4 derived numbers per draw are omitted; post.draws() includes them." in parse(render(material(post))).text(
        "p"
    )


def test_a_picture_that_fails_leaves_its_reason(make, parse, material, monkeypatch):
    monkeypatch.setattr(pictures, "plot_convergence", lambda _: 1 / 0)
    found = parse(render(material()))
    assert "Not drawn (ZeroDivisionError: division by zero)." in found.text("p")
    assert len(found.all("svg")) > 4


@without_pictures
def test_a_model_that_cannot_predict_leaves_its_reason(with_model, parse, material, monkeypatch):
    post = with_model()
    monkeypatch.setattr(Posterior, "predict", lambda *args, **kwargs: 1 / 0)
    assert "No observations are replicated (ZeroDivisionError" in parse(render(material(post))).text("p")
    monkeypatch.setattr("bernflow.report.material.MAX_REPLICATED", 1)
    assert "The 40 observed values are too many to replicate here" in parse(render(material(post))).text("p")


def test_page_is_written_whole_or_not_at_all(make, material, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("before")
    monkeypatch.setattr(page, "render", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_page(material(), path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_are_refused_before_any_work(make, tmp_path):
    post = make()
    post.draws = None
    with pytest.raises(ArgumentError, match=r"that is a folder; expected the name of a file, as report\.html"):
        post.report(tmp_path)
    with pytest.raises(ArgumentError, match="does not exist: create it first"):
        post.report(tmp_path / "no" / "report.html")


def test_colors_have_enough_contrast():
    style = page._asset("page.css")
    light, dark, printed = (dict(re.findall(r"(--[\w-]+): (#\w{6})", block)) for block in _themes(style))
    for theme in (light, light | dark, light | printed):
        for name in ("text", "muted", "link", "good", "usable", "poor"):
            assert _contrast(theme[f"--{name}"], theme["--paper"]) >= 4.5, name
            assert _contrast(theme[f"--{name}"], theme["--card"]) >= 4.5, name
        for name in ("good", "usable", "poor"):
            for color in (name, "text"):
                assert _contrast(theme[f"--{color}"], theme[f"--{name}-back"]) >= 4.5, name
        # Lines and the ring of the focus: 3 is enough for what is not text.
        for name in ("fit", "accent", "reference", "axis", "focus"):
            assert _contrast(theme[f"--{name}"], theme["--paper"]) >= 3, name


def _themes(style):
    first = style[: style.index("@media")]
    dark = style[style.index("prefers-color-scheme: dark") : style.index("svg image")]
    printed = style[style.index("@media print") :]
    return first, dark, printed


def _contrast(one, other):
    def luminance(color):
        parts = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
