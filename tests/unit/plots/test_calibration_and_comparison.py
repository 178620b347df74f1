import io

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt

import bernflow as bf
from bernflow.calibrate.result import p_values_of
from bernflow.errors import ArgumentError
from bernflow.plots import plot_calibration, plot_comparison
from bernflow.plots.style import ACCENT, FIT, VERDICT_COLORS

NUM, NUM_DRAWS = 80, 99


def render(figure):
    """Draw the figure for real, so that layout problems (warnings) fail the test."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert len(buffer.getvalue()) > 5000


def calibration(size=2, narrow=False):
    rng = np.random.default_rng(0)
    ranks = {"s": rng.integers(0, NUM_DRAWS + 1, NUM), "b": rng.integers(0, NUM_DRAWS + 1, (NUM, size))}
    if narrow:
        ranks["s"] = rng.choice([0, 1, NUM_DRAWS - 1, NUM_DRAWS], NUM)
    ranks["log_joint"] = rng.integers(0, NUM_DRAWS + 1, NUM)
    scores = {"s": rng.normal(size=NUM), "b": rng.normal(size=(NUM, size))}
    contraction = {"s": rng.uniform(size=NUM), "b": np.full((NUM, size), np.nan)}
    return bf.Calibration(
        ranks,
        scores,
        contraction,
        p_values_of(ranks, NUM_DRAWS),
        ("good",) * NUM,
        NUM_DRAWS,
        {"family": "bernstein", "steps": 500},
    )


def test_one_panel_per_quantity_and_one_for_scores():
    before = dict(mpl.rcParams)
    found = calibration()
    figure = found.plot()
    render(figure)
    assert [axes.get_title() for axes in figure.axes] == ["s", "b[0]", "b[1]", "log_joint", "all parameters"]
    assert figure.get_suptitle() == f"Good calibration:  p-value {found.p_value:.2g}"
    assert figure._suptitle.get_color() == VERDICT_COLORS["good"]
    # Points whose contraction is not known are left out: those of b.
    assert len(figure.axes[-1].get_lines()[-1].get_xdata()) == NUM
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == []


def test_what_leaves_the_band_has_another_color():
    figure = plot_calibration(calibration(narrow=True))
    colors = [axes.get_lines()[-1].get_color() for axes in figure.axes[:-1]]
    assert colors == [ACCENT, FIT, FIT, FIT]
    line = figure.axes[0].get_lines()[-1].get_ydata()
    # Half of the ranks lie at either end.
    assert line.max() == pytest.approx(0.5, abs=0.15)
    assert figure.get_suptitle().startswith("Poor calibration")


def test_many_quantities_show_the_least_p_values():
    figure = plot_calibration(calibration(size=30, narrow=True))
    render(figure)
    assert len(figure.axes) == 12
    assert figure.axes[0].get_title() == "s"
    assert "11 of 32 components" in figure._supxlabel.get_text()


def test_choosing_quantities():
    assert [a.get_title() for a in plot_calibration(calibration(), "b").axes] == ["b[0]", "b[1]", "all parameters"]
    assert [a.get_title() for a in plot_calibration(calibration(), ["b[1]"]).axes] == ["b[1]", "all parameters"]
    render(plot_calibration(calibration(), ["log_joint"]))
    with pytest.raises(ArgumentError, match="var_names: 'z' is unknown; expected some of s, b, log_joint"):
        plot_calibration(calibration(), ["z", "b"])


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(0)
    return bf.compare({f"entry {i}": {"a": rng.normal(size=500), "b": rng.normal(size=(500, 20))} for i in range(3)})


def test_intervals_relative_to_the_reference(comparison):
    before = dict(mpl.rcParams)
    figure = comparison.plot()
    render(figure)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["a", *(f"b[{i}]" for i in range(15))]
    assert "16 of 21 components" in figure._supxlabel.get_text()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["entry 0", "entry 1", "entry 2"]
    outer = figure.axes[0].get_lines()[1].get_xdata()
    # 5 % and 95 % quantiles of a standard normal, of 500 draws.
    np.testing.assert_allclose(outer, [-1.645, 1.645], atol=0.4)
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == []


def test_choosing_components(comparison):
    figure = plot_comparison(comparison, "a")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a"]
    with pytest.raises(ArgumentError, match="no component to draw for var_names=\\['z'\\]; expected some of a, b"):
        plot_comparison(comparison, ["z"])
