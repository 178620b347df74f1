import io

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt

from bernflow.errors import ArgumentError
from bernflow.plots import plot_convergence, plot_posterior
from bernflow.plots.components import estimate_density
from bernflow.plots.style import VERDICT_COLORS


def render(figure):
    """Draw the figure for real, so that layout problems (warnings) fail the test."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert len(buffer.getvalue()) > 5000


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def test_one_panel_per_component_with_the_verdict_on_top(make):
    post = make(size=4)
    before = dict(mpl.rcParams)
    figure = post.plot(num=500)
    render(figure)
    assert titles(figure) == ["tau", "b[0]", "b[1]", "b[2]", "b[3]"]
    assert figure.get_suptitle() == "Good fit:  k-hat 0.00,  ESS 100.0 %"
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == []


def test_a_poor_fit_is_shown_as_poor(make):
    figure = plot_posterior(make(np.random.default_rng(0).normal(size=2000) * 5), var_names="tau", num=500)
    assert figure.get_suptitle().startswith("Poor fit")
    assert figure._suptitle.get_color() == VERDICT_COLORS["poor"]


def test_reference_is_laid_over(make):
    figure = plot_posterior(make(), reference={"b": np.random.default_rng(0).normal(size=(300, 3))}, num=500)
    render(figure)
    labels = [[line.get_label() for line in axes.get_lines()] for axes in figure.axes]
    assert "reference" not in labels[0]
    assert all("reference" in panel for panel in labels[1:])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["bernflow", "reference"]


def test_many_components_are_capped_with_a_note(make):
    figure = plot_posterior(make(size=30), num=300)
    assert len(figure.axes) == 20
    assert "20 of 31 components" in figure._supxlabel.get_text()


def test_arguments_are_checked(make):
    post = make()
    with pytest.raises(ArgumentError, match="var_names: 'c' is unknown; expected some of tau, b"):
        plot_posterior(post, var_names=["c"], num=10)
    with pytest.raises(ArgumentError, match=r"reference has z: expected draws of a plotted tau, b"):
        plot_posterior(post, reference={"z": np.zeros(3)}, num=10)
    for wrong in (np.zeros((10, 2)), np.zeros(10), np.zeros((1, 3))):
        with pytest.raises(ArgumentError, match=r"reference\['b'\] has shape .*: expected at least two draws"):
            plot_posterior(post, reference={"b": wrong}, num=10)


def test_density_integrates_to_the_share_it_shows():
    values = np.random.default_rng(0).standard_t(2, size=4000)
    grid, density = estimate_density(values)
    assert np.trapezoid(density, grid) == pytest.approx(0.995, abs=0.01)
    assert grid.max() < np.quantile(values, 0.999)
    assert estimate_density(np.ones(10))[1].max() == 1.0


def test_convergence(make):
    steps = np.arange(0, 1000, 50)
    history = {"step": steps, "elbo": -np.exp(-steps / 100), "elbo_se": np.full(len(steps), 0.01)}
    figure = plot_convergence(make(history=history))
    render(figure)
    line = figure.axes[0].get_lines()[0]
    np.testing.assert_array_equal(line.get_ydata(), history["elbo"])
    assert [t.get_text() for t in figure.axes[0].get_legend().get_texts()] == [
        "ELBO",
        "2 standard errors",
        "log evidence",
    ]
    poor = plot_convergence(make(np.random.default_rng(0).normal(size=2000) * 5, history))
    assert [t.get_text() for t in poor.axes[0].get_legend().get_texts()] == ["ELBO", "2 standard errors"]


def test_convergence_bears_steps_that_failed(make):
    history = {"step": np.arange(3), "elbo": np.array([-np.inf, np.nan, -1.0])}
    render(plot_convergence(make(history=history)))


def test_convergence_needs_a_history(make):
    with pytest.raises(ArgumentError, match="The history has no step and elbo"):
        plot_convergence(make())


def test_a_notebook_shows_a_figure_by_itself(make):
    assert make().plot(num=100)._repr_png_().startswith(b"\x89PNG")
