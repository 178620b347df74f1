import io

import matplotlib as mpl
import numpy as np
import pytest

from bernflow.diagnostics.importance import psis, tail_size
from bernflow.errors import ArgumentError
from bernflow.plots import plot_weights

RNG = np.random.default_rng(0)


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def pareto(shape, num=4000):
    """Log weights with a tail of the given shape."""
    return -shape * np.log(np.random.default_rng(1).uniform(size=num))


@pytest.mark.parametrize("shape", [0.3, 0.9])
def test_the_fit_follows_the_tail(shape):
    before = dict(mpl.rcParams)
    raw = pareto(shape)
    figure = plot_weights(raw)
    figure.savefig(io.BytesIO(), format="png")
    assert dict(mpl.rcParams) == before
    khat = psis(raw)[1]
    drawn = lines(figure)
    fit, tail = drawn[f"Pareto fit, k-hat {khat:.2f}"], drawn[f"{tail_size(4000)} draws in the tail"]
    assert len(tail.get_xdata()) == tail_size(4000)
    # Relative to the mean weight, whose log is -log(1 - shape) here.
    top = raw.max() - (np.log(np.mean(np.exp(raw - raw.max()))) + raw.max())
    assert tail.get_xdata()[-1] == pytest.approx(top)
    inner = slice(0, len(fit.get_xdata()) // 2)
    np.testing.assert_allclose(fit.get_xdata()[inner], tail.get_xdata()[inner], atol=0.25)
    # Shares run from the size of the tail down to half a draw.
    assert tail.get_ydata()[0] == pytest.approx(tail_size(4000) / 4000, rel=0.01)
    assert tail.get_ydata()[-1] == pytest.approx(0.5 / 4000)


def test_the_guide_has_the_slope_of_the_limit():
    x, y = lines(plot_weights(pareto(0.5)))["slope at the limit, k-hat 0.7"].get_data()
    assert np.diff(np.log(y))[0] / np.diff(x)[0] == pytest.approx(-1 / 0.7)


def test_a_tail_over_hundreds_of_nats_gets_hills_line():
    raw = 300.0 * RNG.normal(size=4000)
    khat = psis(raw)[1]
    assert khat > 50
    x, y = lines(plot_weights(raw))[f"Pareto fit, k-hat {khat:.2f}"].get_data()
    assert np.diff(np.log(y))[5] / np.diff(x)[5] == pytest.approx(-1 / khat, rel=0.05)


def test_constant_weights_and_weights_of_zero():
    figure = plot_weights(np.zeros(200))
    figure.savefig(io.BytesIO(), format="png")
    assert figure.axes[0].get_title() == "The weights are constant to rounding."
    assert not [label for label in lines(figure) if label.startswith("Pareto")]
    some = np.where(RNG.uniform(size=2000) < 0.3, -np.inf, RNG.normal(size=2000))
    plot_weights(some).savefig(io.BytesIO(), format="png")


def test_arguments_are_checked(make):
    with pytest.raises(ArgumentError, match="10 of 500 draws have a positive weight: expected at least 25"):
        plot_weights(np.append(np.full(490, -np.inf), np.zeros(10)))
    with pytest.raises(ArgumentError, match="1 of 50 log_weights are NaN"):
        plot_weights(np.append(np.zeros(49), np.nan))
    with pytest.raises(ArgumentError, match="log_weights needs the model"):
        plot_weights(make())


def test_weights_of_a_posterior_are_headed_by_the_verdict(make):
    post = make()
    post.log_weights = lambda num, key: np.append(RNG.normal(size=num - 1), np.nan)
    figure = plot_weights(post, num=500)
    assert figure.get_suptitle().startswith("Good fit")
    # One k-hat, that of the heading: other draws would not reproduce it exactly.
    assert "Pareto fit" in lines(figure)
    assert f"{tail_size(499)} draws in the tail" in lines(figure)
