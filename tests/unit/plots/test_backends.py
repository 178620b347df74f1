import warnings

import numpy as np
import pytest
from matplotlib.figure import Figure

import bernflow as bf
from bernflow.errors import ArgumentError
from bernflow.plots import backends, plot_convergence, plot_pairs, plot_posterior, plot_predictive, plot_weights


@pytest.fixture(autouse=True)
def _put_back(monkeypatch):
    monkeypatch.setattr(backends, "_chosen", "matplotlib")


@pytest.fixture
def plotly():
    pytest.importorskip("webcolors", reason="arviz-plots needs it for plotly")
    return pytest.importorskip("plotly")


@pytest.fixture
def reference():
    rng = np.random.default_rng(0)
    return {"tau": np.exp(rng.normal(size=300)), "b": rng.normal(size=(300, 3))}


def test_matplotlib_draws_unless_told_otherwise(make):
    assert isinstance(make().plot(num=100), Figure)


@pytest.mark.parametrize("backend", ["gnuplot", "", None, 3])
def test_a_backend_that_nobody_knows_is_refused(backend):
    with pytest.raises(ArgumentError, match=r"expected one of 'matplotlib', 'plotly', 'bokeh'\."):
        bf.plots.use(backend)


def test_a_backend_that_is_not_installed_is_refused_with_the_way_to_get_it(make, monkeypatch):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=r"needs plotly and webcolors, which are not installed: pip install 'bern"):
        bf.plots.use("plotly")
    with pytest.raises(ArgumentError, match=r"backend='bokeh' needs bokeh, which is not installed: pip install bokeh,"):
        make().plot(backend="bokeh")
    assert backends.choose_backend(None) == "matplotlib"


def test_use_holds_for_the_calls_after_it_and_an_argument_overrules_it(make, plotly):
    bf.plots.use("plotly")
    assert isinstance(make().plot(num=100), plotly.graph_objects.Figure)
    assert isinstance(make().plot(num=100, backend="matplotlib"), Figure)
    bf.plots.use("matplotlib")
    assert isinstance(make().plot(num=100), Figure)


def test_marginals(make, plotly, reference):
    figure = plot_posterior(make(), num=300, backend="plotly")
    assert figure.layout.title.text == "Good fit:  ESS 100.0 %,  k-hat 0.00"
    assert [note.text for note in figure.layout.annotations if note.text.strip()] == ["tau", "b[0]", "b[1]", "b[2]"]
    both = plot_posterior(make(), reference=reference, num=500, backend="plotly")
    assert len(both.data) > len(figure.data)
    assert "reference" in [trace.name for trace in both.data]
    assert "plotly" in figure.to_html(include_plotlyjs=False)


def test_a_reference_of_some_components_is_refused(make, plotly, reference):
    with pytest.raises(ArgumentError, match=r"reference has no draws of tau: an interactive figure shows"):
        plot_posterior(make(), reference={"b": reference["b"]}, num=300, backend="plotly")


def test_pairs(make, plotly, reference):
    alone = plot_pairs(make(), ["tau", "b[0]"], num=50, backend="plotly")
    both = plot_pairs(make(), ["tau", "b[0]"], reference, num=50, labels=["t", "b"], backend="plotly")
    clouds = [[t for t in figure.data if t.mode == "markers"] for figure in (alone, both)]
    assert [len(found) for found in clouds] == [1, 2]
    assert [len(cloud.x) for cloud in clouds[1]] == [50, 50]
    titles = {axis.title.text for axis in both.select_xaxes()} | {axis.title.text for axis in both.select_yaxes()}
    assert titles >= {"t", "b"}


def test_predictive_check(plotly):
    rng = np.random.default_rng(0)
    figure = plot_predictive({"y": rng.normal(size=(20, 40))}, {"y": rng.normal(size=40)}, backend="plotly")
    assert "densities" in figure.layout.title.text
    counts = plot_predictive({"y": rng.poisson(2.0, (20, 40))}, {"y": rng.poisson(2.0, 40)}, backend="plotly")
    assert "distribution functions" in counts.layout.title.text
    shares = plot_predictive({"y": rng.integers(0, 2, (20, 40))}, {"y": rng.integers(0, 2, 40)}, backend="plotly")
    assert "distribution functions" in shares.layout.title.text


def test_comparison_of_different_numbers_of_draws(plotly):
    rng = np.random.default_rng(0)
    entries = {"long": {"m": 3 + 2 * rng.normal(size=900)}, "short": {"m": 3 + 2 * rng.normal(size=400)}}
    figure = bf.compare(entries, loo=False).plot(backend="plotly")
    assert figure.layout.title.text == "sd of long, from its mean"
    assert {trace.name for trace in figure.data} >= {"long", "short"}
    widths = [np.ptp(t.x) for t in figure.data if t.x is not None and len(t.x) > 1 and None not in t.x]
    # 90 % of a standard normal lie within 1.645: in units of the reference.
    assert max(widths) == pytest.approx(2 * 1.645, abs=0.5)


def test_bokeh_draws_them_too(make):
    pytest.importorskip("bokeh")
    figure = make().plot(num=100, backend="bokeh")
    assert "Good fit" in figure.children[0].text


def test_figures_without_an_interactive_form_say_so(make, monkeypatch):
    monkeypatch.setattr(backends, "_chosen", "plotly")
    history = {"step": np.arange(3), "elbo": np.arange(3.0)}
    with pytest.warns(UserWarning, match="plot_convergence has no interactive form: this is a matplotlib figure"):
        figure = plot_convergence(make(history=history))
    assert isinstance(figure, Figure)
    with pytest.warns(UserWarning, match="plot_weights has no interactive form") as caught:
        plot_weights(np.random.default_rng(0).normal(size=1000))
    assert caught[0].filename == __file__


def test_what_is_written_into_files_stays_static(make, monkeypatch):
    monkeypatch.setattr(backends, "_chosen", "plotly")
    with backends.static_figures(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(make().plot(num=100), Figure)
        plot_weights(np.random.default_rng(0).normal(size=1000))
    assert backends.choose_backend(None) == "plotly"


def test_a_report_is_drawn_by_matplotlib_whatever_is_in_use(make, tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "_chosen", "plotly")
    page = make(history={"step": np.arange(3), "elbo": np.arange(3.0)}).report(tmp_path / "report.html")
    text = page.read_text(encoding="utf-8")
    assert "Warning" not in text
    assert text.count("<svg") >= 6
