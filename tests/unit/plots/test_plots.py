import dataclasses
import io
import re

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpyro.distributions import constraints
from scipy.signal import find_peaks

from bernflow.diagnostics import judge
from bernflow.diagnostics.summaries import is_constant
from bernflow.errors import ArgumentError
from bernflow.flows.affine import TriangularAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.flows.mixture import Mixture
from bernflow.models.base import Site
from bernflow.plots import plot_convergence, plot_pairs, plot_posterior
from bernflow.plots.densities import NEAR_ZERO, draw_curve, estimate_density, find_bounds
from bernflow.plots.exact import exact_curve
from bernflow.plots.style import VERDICT_COLORS
from bernflow.posterior import Posterior
from bernflow.target import Layout


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


def test_derived_scalars_are_drawn_and_arrays_where_they_are_asked_for(make):
    post = make()
    post.model = Ratios()
    assert titles(post.plot(num=500)) == ["tau", "b[0]", "b[1]", "b[2]", "ratio"]
    assert titles(post.plot(num=500, var_names=["fitted"])) == ["fitted[0]", "fitted[1]", "fitted[2]"]


def test_constants_are_not_drawn():
    layout = Layout((Site("L", (2, 2), constraints.corr_cholesky),))
    flow = LocationScale(TriangularAffine(jnp.zeros(1), jnp.eye(1)))
    post = Posterior(flow, layout, None, judge(np.zeros(500)), None, {"precision": "float32"})
    assert titles(post.plot(num=500)) == ["L[1, 0]", "L[1, 1]"]
    # By its own name it is.
    assert titles(post.plot(num=500, var_names="L[0, 0]")) == ["L[0, 0]"]
    almost = np.where(np.arange(100) % 2, 1.0, 1.0 - 1e-7)
    assert is_constant(almost)
    assert not is_constant(3 * almost)


def num_peaks(values):
    density = estimate_density(values).density
    return len(find_peaks(density, prominence=0.02 * density.max())[0])


@pytest.mark.parametrize("seed", range(3))
def test_densities_have_no_wiggles(seed):
    rng = np.random.default_rng(seed)
    # A kernel of one width shows Monte Carlo error in the long tail, and one of the rule alone where draws repeat.
    assert num_peaks(rng.gamma(2.0, size=40_000)) == 1
    assert num_peaks(np.exp(rng.normal(size=4000))) <= 3
    assert num_peaks(rng.choice(rng.normal(size=3000), 10_000)) <= 3
    # Modes that are there stay.
    assert num_peaks(np.concatenate([rng.normal(5 * place, 0.5, 500) for place in range(9)])) >= 9


@pytest.mark.parametrize(
    ("draw", "bounds"),
    [
        (lambda rng, num: rng.normal(size=num), (-np.inf, np.inf)),
        (lambda rng, num: rng.standard_cauchy(num), (-np.inf, np.inf)),
        (lambda rng, num: rng.exponential(size=num), (0.0, np.inf)),
        (lambda rng, num: rng.beta(8.0, 1.0, num), (0.0, 1.0)),
        (lambda rng, num: rng.uniform(2.0, 5.0, num), (2.0, 5.0)),
        (lambda rng, num: 2000.0 + 1e-3 * rng.normal(size=num), (1.0, np.inf)),
    ],
)
def test_densities_end_near_zero_or_at_a_bound(draw, bounds):
    values = draw(np.random.default_rng(0), 20_000)
    np.testing.assert_allclose(find_bounds(values), bounds, atol=1e-3)
    curve = estimate_density(values)
    top = curve.density.max()
    for end, bound in ((curve.low, bounds[0]), (curve.high, bounds[1])):
        height = np.interp(end, curve.grid, curve.density)
        assert height < 1.5 * NEAR_ZERO * top or end == pytest.approx(bound, abs=1e-3)
    # Where it is drawn, it is closed.
    _, density = curve.on(curve.low, curve.high)
    assert max(density[0], density[-1]) < 1.5 * NEAR_ZERO * top
    # The tails of a Cauchy distribution beyond the range have 2 %.
    assert np.trapezoid(*curve.on(curve.low, curve.high)[::-1]) == pytest.approx(1.0, abs=0.025)


def test_a_density_is_right_at_its_bound():
    values = np.random.default_rng(0).exponential(size=40_000)
    curve = estimate_density(values)
    # Without reflection, the estimate at the bound would be half of the density.
    np.testing.assert_allclose(np.interp([0.0, 0.5, 1.0], curve.grid, curve.density), np.exp([0, -0.5, -1]), rtol=0.08)


def test_what_is_compared_has_one_range():
    rng = np.random.default_rng(0)
    axes = Figure().subplots()
    draw_curve(axes, estimate_density(rng.normal(size=2000)), estimate_density(rng.normal(3.0, 2.0, 2000)))
    ours, theirs = (line.get_xdata() for line in axes.get_lines())
    assert (ours[0], ours[-1]) == pytest.approx((theirs[0], theirs[-1]), abs=0.05)


def test_the_first_coordinate_has_its_exact_density():
    layout = Layout((Site("tau", (), constraints.positive), Site("b", (2,), constraints.real)))
    factor = jnp.array([[0.5, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.5, 1.0]])
    flows = [LocationScale(TriangularAffine(jnp.array([shift, 0.0, 0.0]), factor)) for shift in (0.0, 1.0)]
    diagnostics = judge(np.zeros(500))

    def log_normal(x, shift):
        return np.exp(-0.5 * ((np.log(x) - shift) / 0.5) ** 2) / (x * 0.5 * np.sqrt(2 * np.pi))

    post = Posterior(flows[0], layout, None, diagnostics)
    curve = exact_curve(post, ("tau", ()))
    np.testing.assert_allclose(curve.density, log_normal(curve.grid, 0.0), atol=2e-3)
    # Others depend on more than one coordinate of the noise.
    assert exact_curve(post, ("b", (0,))) is None
    mixture = Mixture(tuple(flows), jnp.log(jnp.array([0.3, 0.7])))
    curve = exact_curve(Posterior(mixture, layout, None, diagnostics), ("tau", ()))
    expected = 0.3 * log_normal(curve.grid, 0.0) + 0.7 * log_normal(curve.grid, 1.0)
    np.testing.assert_allclose(curve.density, expected, atol=3e-3)
    # It is what is drawn, so that no draws are needed for a smooth curve.
    drawn = plot_posterior(post, "tau", num=10).axes[0].get_lines()[0].get_ydata()
    assert drawn.max() == pytest.approx(log_normal(np.exp(-0.25), 0.0), rel=0.01)


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
    curve = estimate_density(values)
    exact = np.exp(-0.5 * ((np.abs(curve.grid) - 2.0) / 0.12) ** 2) / (2 * 0.12 * np.sqrt(2 * np.pi))
    # A tenth of the peak: the standard error of such an estimate is about a thirtieth.
    np.testing.assert_allclose(curve.density, exact, atol=0.1 * exact.max())
    # Whole numbers make no spikes.
    assert num_peaks(rng.poisson(3.0, 4000).astype(float)) == 1


def test_single_draws_do_not_widen_the_range():
    values = np.random.default_rng(0).standard_t(2, size=4000)
    curve = estimate_density(values)
    assert np.trapezoid(curve.density, curve.grid) == pytest.approx(0.995, abs=0.01)
    assert curve.high < np.quantile(values, 0.9995)
    assert estimate_density(np.ones(10)).density.max() == 1.0
    assert np.isfinite(estimate_density(np.array([0.5, 1.5])).density).all()


class Ratios:
    """A model with derived quantities."""

    def dims(self):
        return {}

    def coords(self):
        return {}

    def first_index(self):
        return 0

    def deterministic(self, theta):
        return {"ratio": theta["tau"] / 2, "fitted": theta["b"] + 1}


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


def test_convergence_shows_the_distance_from_the_evidence(make):
    steps = np.arange(0, 1000, 50)
    elbo = -np.exp(-steps / 100)
    elbo[8] = -300.0  # a step that went wrong
    history = {"step": steps, "elbo": elbo, "elbo_se": np.full(len(steps), 0.01)}
    post = make(history=history)
    post.diagnostics = dataclasses.replace(post.diagnostics, log_evidence=0.5, log_evidence_se=0.004)
    figure = plot_convergence(post)
    render(figure)
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    np.testing.assert_allclose(lines["ELBO (bands: 2 standard errors)"].get_ydata(), elbo - 0.5)
    assert "log evidence, 0.500 ± 0.008" in lines
    # Nothing drops out of the frame, and both have their errors.
    bottom, top = axes.get_ylim()
    assert bottom < -300.5
    assert top > 0.008
    assert len(axes.collections) == 1
    assert len(axes.patches) == 1
    poor = plot_convergence(make(np.random.default_rng(0).normal(size=2000) * 5, history))
    assert [t.get_text() for t in poor.axes[0].get_legend().get_texts()] == ["ELBO (bands: 2 standard errors)"]
    assert poor.axes[0].get_ylabel() == "ELBO - largest ELBO (nats)"


def test_convergence_bears_steps_that_failed(make):
    history = {"step": np.arange(3), "elbo": np.array([-np.inf, np.nan, -1.0])}
    render(plot_convergence(make(history=history)))


def test_convergence_needs_a_history(make):
    with pytest.raises(ArgumentError, match="The history has no step and elbo"):
        plot_convergence(make())


def test_a_notebook_shows_a_figure_by_itself(make):
    assert make().plot(num=100)._repr_png_().startswith(b"\x89PNG")
