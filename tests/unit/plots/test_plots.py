import dataclasses
import io
import re

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt
from scipy.signal import find_peaks

from bernflow.errors import ArgumentError
from bernflow.plots import components, plot_convergence, plot_pairs, plot_posterior
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
    assert figure.get_suptitle() == "Good fit:  ESS 100.0 %,  k-hat 0.00"
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == []


def test_a_poor_fit_is_shown_as_poor(make):
    figure = plot_posterior(make(np.random.default_rng(0).normal(size=2000) * 5), var_names="tau", num=500)
    assert figure.get_suptitle().startswith("Poor fit")
    assert figure._suptitle.get_color() == VERDICT_COLORS["poor"]


def test_derived_scalars_are_drawn_and_arrays_where_they_are_asked_for(make, monkeypatch):
    post = make()
    own = post.draws

    def draws(*args, **kwargs):
        found = own(*args, **kwargs)
        return {**found, "ratio": found["tau"] / 2, "fitted": found["b"] + 1}

    monkeypatch.setattr(post, "draws", draws)
    assert titles(post.plot(num=500)) == ["tau", "b[0]", "b[1]", "b[2]", "ratio"]
    assert titles(post.plot(num=500, var_names=["fitted"])) == ["fitted[0]", "fitted[1]", "fitted[2]"]


def test_a_kernel_that_is_too_narrow_is_widened(monkeypatch):
    rng = np.random.default_rng(0)

    def peaks(values):
        density = estimate_density(values)[1]
        return len(find_peaks(density, prominence=0.02 * density.max())[0])

    monkeypatch.setattr(components, "_bandwidth", lambda values: 0.025)
    monkeypatch.setattr(components, "MAX_WIDENINGS", 0)
    assert peaks(rng.normal(size=4000)) > 6
    monkeypatch.undo()
    monkeypatch.setattr(components, "_bandwidth", lambda values: 0.025)
    assert peaks(rng.normal(size=4000)) <= 3
    # Modes that are there stay.
    assert peaks(np.concatenate([rng.normal(5 * place, 0.5, 500) for place in range(9)])) >= 9


def test_the_headline_of_a_figure_is_that_of_the_verdict(make):
    title = plot_posterior(make(np.random.default_rng(0).normal(size=2000) * 0.3), num=500).get_suptitle()
    assert re.match(r"(Good|Usable) fit:  ESS \d\d\.\d %,  k-hat -?\d\.\d\d$", title)
    post = make()
    post.diagnostics = dataclasses.replace(post.diagnostics, khat=0.9)
    assert plot_posterior(post, num=500).get_suptitle() == "Good fit:  ESS 100.0 %", (
        "k-hat says nothing of even weights"
    )


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


def test_narrow_modes_far_apart_are_as_narrow_as_they_are():
    rng = np.random.default_rng(0)
    values = rng.choice([-2.0, 2.0], 4000) + 0.12 * rng.normal(size=4000)
    grid, density = estimate_density(values)
    exact = np.exp(-0.5 * ((np.abs(grid) - 2.0) / 0.12) ** 2) / (2 * 0.12 * np.sqrt(2 * np.pi))
    # A tenth of the peak: the standard error of such an estimate is about a thirtieth.
    np.testing.assert_allclose(density, exact, atol=0.1 * exact.max())
    # Whole numbers make no spikes.
    assert estimate_density(rng.poisson(3.0, 4000).astype(float))[1].max() < 1.0


def test_density_integrates_to_the_share_it_shows():
    values = np.random.default_rng(0).standard_t(2, size=4000)
    grid, density = estimate_density(values)
    assert np.trapezoid(density, grid) == pytest.approx(0.995, abs=0.01)
    assert grid.max() < np.quantile(values, 0.999)
    assert estimate_density(np.ones(10))[1].max() == 1.0
    assert estimate_density(np.array([0.5, 1.5]))[0][1] == 1.0  # no draw inside of the view


class Shops:
    """A model that knows names for the places along an axis of b."""

    def dims(self):
        return {"b": ("shop",)}

    def coords(self):
        return {"shop": ["harbor", "park", "1"]}

    def first_index(self):
        return 0

    def deterministic(self, theta):
        return {}


def test_places_have_the_names_that_the_model_gives_them(make):
    post = make()
    post.model = Shops()
    labels = ["tau", "b[harbor]", "b[park]", "b[1]"]
    assert [axes.get_title() for axes in plot_posterior(post, num=100).axes] == labels
    assert [axes.get_xlabel() for axes in plot_pairs(post, num=50).axes[-4:]] == labels
    # As the figure calls them, also where that is a number; or else by index.
    chosen = plot_posterior(post, ["b[park]", "b[1]", "b[0]"], num=100)
    assert [axes.get_title() for axes in chosen.axes] == ["b[park]", "b[1]", "b[harbor]"]
    with pytest.raises(ArgumentError, match=r"var_names: 'b\[beach\]' is unknown"):
        plot_posterior(post, "b[beach]", num=10)


def test_convergence_has_whole_numbers_at_its_ticks(make):
    history = {"step": np.arange(4), "elbo": -1154.94 + np.array([0.0, 1e-4, 2e-4, 3e-4])}
    figure = plot_convergence(make(history=history))
    figure.axes[0].set_ylim(-1154.9401, -1154.9396)
    render(figure)
    assert figure.axes[0].yaxis.get_offset_text().get_text() == ""
    assert all("1154.9" in tick.get_text() for tick in figure.axes[0].get_yticklabels())


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
