import io

import matplotlib as mpl
import numpy as np
import pytest

from bernflow.errors import ArgumentError
from bernflow.plots import plot_predictive
from bernflow.plots.predictive import MAX_LINES, MAX_VALUES, match_replicates

RNG = np.random.default_rng(0)


def test_few_values_are_shown_one_by_one():
    before = dict(mpl.rcParams)
    y, replicates = np.arange(4.0), RNG.normal(np.arange(4.0), size=(300, 4))
    figure = plot_predictive({"y": replicates}, {"y": y})
    figure.savefig(io.BytesIO(), format="png")
    assert dict(mpl.rcParams) == before
    axes = figure.axes[0]
    assert axes.get_ylabel() == "y"
    assert axes.get_xlabel() == "observation"
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), y)
    low, high = np.array([segment[:, 1] for segment in axes.collections[0].get_segments()]).T
    np.testing.assert_allclose([low, high], np.quantile(replicates, (0.05, 0.95), axis=0))


def test_many_values_are_shown_as_densities():
    y, replicates = RNG.normal(size=200), RNG.normal(size=(60, 200))
    axes = plot_predictive({"y": replicates}, {"y": y}).axes[0]
    assert len(axes.lines) == MAX_LINES + 1
    grid, density = axes.lines[-1].get_data()
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=0.05)
    assert axes.get_xlim()[0] < y.min()


def test_counts_are_shown_as_shares():
    y, replicates = RNG.poisson(2.0, 500), RNG.poisson(2.0, (100, 500))
    axes = plot_predictive({"y": replicates}, {"y": y}).axes[0]
    cells, shares = axes.lines[0].get_data()
    np.testing.assert_allclose(shares, [(y == cell).mean() for cell in cells])
    assert shares.sum() == pytest.approx(1.0)
    # Rounded measurements are no counts: their replicates have decimals.
    rounded = plot_predictive({"y": RNG.normal(size=(60, 500))}, {"y": np.round(RNG.normal(size=500))})
    assert len(rounded.axes[0].lines) == MAX_LINES + 1


def test_the_legend_shows_what_the_panels_have():
    few, many = RNG.normal(size=(60, 5)), RNG.normal(size=(60, 200))
    for replicates, marker, line, text in (
        ({"y": few}, "o", "None", "replicated: 50 and 90 %"),
        ({"y": many}, "None", "-", "replicated"),
        ({"y": few, "z": many}, "o", "-", "replicated"),
    ):
        figure = plot_predictive(replicates, {name: value[0] for name, value in replicates.items()})
        handle = figure.legends[0].legend_handles[1]
        assert (handle.get_marker(), handle.get_linestyle()) == (marker, line)
        assert figure.legends[0].get_texts()[0].get_text() == text


def test_constant_data_and_replicates_are_drawn():
    plot_predictive({"y": np.full((60, 40), 2.5)}, {"y": np.full(40, 2.5)}).savefig(io.BytesIO(), format="png")


def test_replicates_are_matched_by_name_and_shape():
    observed = {
        "y": np.array([1.0, np.nan, 3.0]),
        "N": np.array(3),
        "z": np.arange(2),
        "other": np.zeros(4),
        "text": np.array(["a"]),
    }
    draws = {"y_rep": np.ones((5, 3)), "z": np.zeros((5, 2)), "other": np.zeros((5, 3)), "text": np.zeros((5, 1))}
    found = match_replicates(observed, draws)
    assert {name: (a.shape, b.shape) for name, (a, b) in found.items()} == {"y": ((2,), (5, 2)), "z": ((2,), (5, 2))}
    many = match_replicates({"y": np.arange(9000.0)}, {"y": np.zeros((2, 9000))})
    assert many["y"][0].shape == (MAX_VALUES,)
    assert many["y"][0][[0, -1]].tolist() == [0.0, 8999.0]


def test_panels_are_limited_and_arguments_checked(make):
    values = {f"y{i}": np.arange(5.0) for i in range(8)}
    figure = plot_predictive({name: np.zeros((10, 5)) for name in values}, values)
    assert len(figure.axes) == 6
    with pytest.raises(ArgumentError, match=r"Observed: y \(3,\); replicated: z \(2,\)"):
        plot_predictive({"z": np.zeros((10, 2))}, {"y": np.zeros(3)})
    with pytest.raises(ArgumentError, match="Observed: none"):
        plot_predictive({"z": np.zeros((10, 2))})
    with pytest.raises(ArgumentError, match="predict needs the model"):
        plot_predictive(make())
