import io

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.contour import QuadContourSet
from numpyro.distributions import constraints

from bernflow.diagnostics import judge
from bernflow.errors import ArgumentError
from bernflow.flows.affine import TriangularAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.models.base import Site
from bernflow.plots import plot_pairs
from bernflow.plots.components import Panel
from bernflow.plots.pairs import _ticks
from bernflow.plots.regions import REGIONS, highest_density, independent, is_function
from bernflow.plots.style import FIT, REFERENCE
from bernflow.posterior import Posterior
from bernflow.target import Layout


def grid_of(figure):
    size = int(np.sqrt(len(figure.axes)))
    return np.array(figure.axes).reshape(size, size)


def test_pairs_of_a_posterior_with_reference(make):
    rng = np.random.default_rng(0)
    before = dict(mpl.rcParams)
    reference = {"tau": np.exp(rng.normal(size=600)), "b": rng.normal(size=(600, 2))}
    figure = plot_pairs(make(size=2), reference=reference, num=200, label="fit", reference_label="truth")
    figure.savefig(io.BytesIO(), format="png")
    assert dict(mpl.rcParams) == before
    grid = grid_of(figure)
    assert grid.shape == (3, 3)
    assert [axes.get_xlabel() for axes in grid[-1]] == ["tau", "b[0]", "b[1]"]
    assert [axes.get_ylabel() for axes in grid[:, 0]] == ["", "b[0]", "b[1]"]
    for row in range(3):
        for column in range(row):
            colors = {mpl.colors.to_hex(c.get_edgecolor()[0]) for c in grid[row, column].collections}
            assert {FIT.lower(), REFERENCE} <= colors
            clouds = [c for c in grid[row, column].collections if len(c.get_offsets()) > 1]
            assert [len(cloud.get_offsets()) for cloud in clouds] == [200, 200]
            assert all(cloud.get_rasterized() for cloud in clouds)
    assert [text.get_text() for text in grid[0, -1].get_legend().get_texts()] == ["fit", "truth"]
    assert figure.get_suptitle().startswith("Good fit")


@pytest.mark.parametrize(
    ("view", "ticks"),
    [
        ((-2.6, 2.6), [-1, 0, 1]),
        ((0.87, 1.12), [0.95, 1.05]),  # 1.00 between them would touch both
        ((-1.0, 12.0), [5, 10]),
    ],
)
def test_numbers_at_the_axes_do_not_touch(view, ticks):
    np.testing.assert_allclose(_ticks(*view), ticks)


def test_panels_of_a_column_share_the_range_of_both_densities():
    rng = np.random.default_rng(0)
    draws, reference = {"a": rng.normal(size=500), "c": rng.normal(size=500)}, {"a": rng.normal(5.0, size=500)}
    figure = plot_pairs(draws, reference=reference)
    low, high = grid_of(figure)[1, 0].get_xlim()
    assert (low, high) == grid_of(figure)[0, 0].get_xlim()
    assert low < np.quantile(draws["a"], 0.01)
    assert high > np.quantile(reference["a"], 0.99)
    assert figure.get_suptitle() == ""


def test_components_are_capped_with_a_note_and_can_be_chosen(make):
    post = make(size=12)
    figure = plot_pairs(post, num=20)
    assert len(figure.axes) == 64
    assert "8 of 13 components; choose others with var_names=[...]" in figure._supxlabel.get_text()
    chosen = plot_pairs(post, ["tau", "b[11]"], num=20, labels={"b[11]": r"$\beta$"})
    assert [axes.get_xlabel() for axes in grid_of(chosen)[-1]] == ["tau", r"$\beta$"]
    assert chosen._supxlabel is None


def test_collinear_components_are_drawn_and_constants_are_not():
    values = np.random.default_rng(0).normal(size=200)
    figure = plot_pairs({"a": values, "twice": 2 * values, "one": np.ones(200)}, labels=["a", "2a"])
    figure.savefig(io.BytesIO(), format="png")
    assert [axes.get_xlabel() for axes in grid_of(figure)[-1]] == ["a", "2a"]


def test_pairs_choose_components_that_are_not_functions_of_one_another():
    rng = np.random.default_rng(0)
    names = {"L": ((3, 3), constraints.corr_cholesky), "w": ((2,), constraints.simplex), "b": ((), constraints.real)}
    layout = Layout(tuple(Site(name, *rest) for name, rest in names.items()))
    flow = LocationScale(TriangularAffine(jnp.zeros(layout.dim), 0.5 * jnp.eye(layout.dim)))
    post = Posterior(flow, layout, None, judge(np.zeros(500)), None, {"precision": "float32"})
    figure = plot_pairs(post, num=200)
    # Not L[0, 0] = 1, nor L[1, 1], which L[1, 0] determines, nor w[1] = 1 - w[0].
    shown = [axes.get_xlabel() for axes in grid_of(figure)[-1]]
    assert shown == ["L[1, 0]", "L[2, 0]", "L[2, 1]", "L[2, 2]", "w[0]", "b"]
    x, e = rng.normal(size=(2, 4000))
    assert not is_function(x, x + 0.1 * e)
    assert is_function(np.abs(x), x)
    assert len(independent([Panel("x", (i,), values) for i, values in enumerate((x, e, x**2))], 3)) == 2


def test_contours_are_smooth_and_reach_a_bound():
    rng = np.random.default_rng(0)
    x = rng.normal(size=40_000)
    y = np.abs(rng.standard_t(4, size=40_000))
    figure = plot_pairs({"x": x, "y": y}, num=100)
    outer = next(c for c in grid_of(figure)[1, 0].collections if isinstance(c, QuadContourSet)).allsegs[0]
    # One contour, without islands, which is as near to the bound as the mesh.
    assert len(outer) == 1
    line = outer[0]
    assert line[:, 1].min() < 0.05
    # A horn is where the direction from the middle is not unique: the radius then jumps along the angle.
    upper = line[line[:, 1] > 0.2]
    radius = np.hypot(upper[:, 0] / 2, upper[:, 1])
    angle = np.arctan2(upper[:, 1], upper[:, 0] / 2)
    order = np.argsort(angle)
    assert np.abs(np.diff(radius[order])).max() < 0.12


@pytest.mark.parametrize("correlation", [0.0, -0.99])
def test_highest_density_regions_hold_their_mass(correlation):
    # A region of 10,000 draws of a normal: Monte Carlo error 0.003-0.005, smoothing adds about 0.01.
    rng = np.random.default_rng(0)
    factor = np.linalg.cholesky([[1.0, correlation], [correlation, 1.0]])
    across, up, density, levels, *_ = highest_density(*(factor @ rng.normal(size=(2, 10_000)) * [[1.0], [50.0]]))
    points = np.linalg.solve(factor, np.stack([across.ravel(), up.ravel() / 50.0]))
    truth = np.exp(-0.5 * (points**2).sum(axis=0))
    truth /= truth.sum()
    for region, level in zip(REGIONS, levels, strict=True):
        assert truth[density.ravel() >= level].sum() == pytest.approx(region, abs=0.03)


def test_arguments_are_checked(make):
    post, draws = make(), {"a": np.linspace(0, 1, 5), "b": np.arange(5.0)}
    with pytest.raises(ArgumentError, match="var_names: 'c' is unknown; expected some of tau, b"):
        plot_pairs(post, ["c"], num=10)
    with pytest.raises(ArgumentError, match=r"var_names: 'b\[7\]' does not exist; 'b' has the shape \(3,\)"):
        plot_pairs(post, ["b[7]"], num=10)
    with pytest.raises(ArgumentError, match="only tau was chosen; expected at least two components"):
        plot_pairs(post, "tau", num=10)
    with pytest.raises(ArgumentError, match="got a ndarray; expected a Posterior or draws by name"):
        plot_pairs(np.zeros((3, 2)))
    with pytest.raises(ArgumentError, match=r"draws\['a'\] has shape \(\): expected at least two draws"):
        plot_pairs({"a": 1.0})
    with pytest.raises(ArgumentError, match=r"The numbers of draws differ \(\{'a': 5, 'b': 4\}\)"):
        plot_pairs({"a": np.zeros(5), "b": np.zeros(4)})
    with pytest.raises(ArgumentError, match=r"draws\['a'\] has values that are not finite"):
        plot_pairs({"a": np.full(5, np.nan), "b": np.zeros(5)})
    with pytest.raises(ArgumentError, match="reference has z: expected draws of a plotted a, b"):
        plot_pairs(draws, reference={"z": np.zeros(5)})
    with pytest.raises(ArgumentError, match=r"reference\['b'\] has shape \(5, 2\): expected at least two draws"):
        plot_pairs(draws, reference={"b": np.zeros((5, 2))})
    with pytest.raises(ArgumentError, match="The numbers of reference draws differ"):
        plot_pairs(draws, reference={"a": np.zeros(5), "b": np.zeros(4)})
    with pytest.raises(ArgumentError, match=r"reference\['a'\] has values that are not finite"):
        plot_pairs(draws, reference={"a": np.full(5, np.inf)})
    with pytest.raises(ArgumentError, match="labels: 'z' is not plotted; expected some of a, b"):
        plot_pairs(draws, labels={"z": "zeta"})
    with pytest.raises(ArgumentError, match=r"labels=\['x'\]: expected one text for each of a, b"):
        plot_pairs(draws, labels=["x"])
    with pytest.raises(ArgumentError, match="num"):
        plot_pairs(draws, num=0)
