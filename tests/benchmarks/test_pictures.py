"""Pictures of the results, drawn again from the numbers that are kept with them."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from benchmarks.paper import additions, cauchy, khat_table, loss_curves
from benchmarks.speed.picture import draw as draw_speed
from bernflow.diagnostics.findings import GOOD_KHAT, USABLE_KHAT
from bernflow.plots.style import house_style

RESULTS = Path(__file__).parents[2] / "results"


def numbers(*parts):
    return json.loads(RESULTS.joinpath(*parts).read_text(encoding="utf-8"))


def bars(axes):
    return [
        patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_width() and patch.get_height()
    ]


def labeled_ticks(axis):
    low, high = sorted(axis.get_view_interval())
    ticks = [place for place in axis.get_majorticklocs() if low <= place <= high]
    return [axis.get_major_formatter()(place) for place in ticks]


@pytest.mark.parametrize("name", ["speed", "speed-gpu"])
def test_panels_of_speed_have_titles_and_ticks_and_none_is_empty(name):
    with house_style():
        figure = draw_speed([r for r in numbers(name, "speed.json")["records"] if r.get("status") == "ok"])
        figure.draw_without_rendering()
    rows, columns = figure.axes[0].get_gridspec().get_geometry()
    assert len(figure.axes) == rows * columns
    for axes in figure.axes:
        assert axes.get_title()
        assert axes.lines
        assert not bars(axes)  # the length of a bar on a logarithmic axis means nothing
        for axis in (axes.xaxis, axes.yaxis):
            texts = labeled_ticks(axis) if axis.get_scale() == "log" else axis.get_ticklabels()
            assert len(texts) >= 3, (axes.get_title(), texts)
    assert len({axes.get_title() for axes in figure.axes}) == len(figure.axes)


def test_additions_are_dots_with_their_values_inside_the_panel():
    found = {(t, v): n for t, by_variant in numbers("additions", "numbers.json").items() for v, n in by_variant.items()}
    targets = tuple(dict.fromkeys(t for t, _ in found))
    with house_style():
        figure = additions._figure(targets, found)
        figure.draw_without_rendering()
    for axes, target in zip(figure.axes, targets, strict=False):
        assert axes.get_title().rstrip("*") == additions.TARGETS[target]
        assert not bars(axes)
        texts = axes.texts
        assert len(texts) == sum(t == target for t, _ in found)
        box = axes.get_window_extent()
        for text in texts:
            extent = text.get_window_extent()
            assert extent.x0 > box.x0 - 12
            assert extent.x1 < box.x1 + 12


def test_the_bands_of_khat_have_names():
    with house_style():
        figure = khat_table._figure(numbers("khat-table", "numbers.json")["summary"])
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert f"usable: {GOOD_KHAT:g} to {USABLE_KHAT:g}" in texts
    assert f"unreliable: above {USABLE_KHAT:g}" in texts
    assert {"published", "run here, 90 % interval"} <= set(texts)


def test_tick_labels_of_orders_do_not_touch():
    assert cauchy._tick_labels([1, 2, 3, 30, 50, 60, 100]) == ["1", "2", "3", "30", "50", "", "100"]


def test_loss_curves_hold_their_values():
    steps = np.arange(25, 10_001, 25)
    values = np.exp(np.random.default_rng(0).normal(size=len(steps)))
    values[-1] = 0.0  # the minimum, which has no logarithm
    middle, low, median, high = loss_curves.binned(steps, values)
    assert np.all(np.diff(middle) > 0)
    assert np.all((low <= median) & (median <= high))
    assert low.min() > 0.05
    assert len(middle) < 40
    assert all(len(part) == 0 for part in loss_curves.binned(steps, np.zeros(len(steps))))
