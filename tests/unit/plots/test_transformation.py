import functools
import io

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy import stats

from bernflow.diagnostics import judge
from bernflow.errors import ArgumentError
from bernflow.flows import FAMILIES, Spec, build_paper
from bernflow.flows.mixture import Mixture
from bernflow.models.base import Site
from bernflow.plots import plot_transformation
from bernflow.plots.transformation import NUM_CURVES, _component, _own_column
from bernflow.posterior import Posterior
from bernflow.target import Layout

# In every run: ours, one whose noise has no density at zero, and one that is not triangular.
QUICK = ["bernstein", "f3", "planar"]
SLOW = [name for name in (*FAMILIES, "f2") if name not in QUICK]


def flow_of(name, dim, noise="normal"):
    build = FAMILIES[name].build if name in FAMILIES else functools.partial(build_paper, variant=name)
    tril = jnp.eye(dim) + 0.5 * jnp.tril(jnp.ones((dim, dim)), -1)
    return build(jax.random.key(0), Spec(dim, 6, noise, 8), jnp.zeros(dim), tril)


def posterior_of(distribution, *sites):
    return Posterior(distribution, Layout(sites), None, judge(np.zeros(500)), None, {"precision": "float32"})


def panels(figure):
    upper, lower, side, _ = figure.axes
    return upper, lower, side


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_every_family_is_drawn(name):
    sites = (Site("b", (2,), constraints.real), Site("tau", (), constraints.positive))
    before = dict(mpl.rcParams)
    figure = plot_transformation(posterior_of(flow_of(name, 3), *sites), "tau")
    figure.savefig(io.BytesIO(), format="png")
    assert dict(mpl.rcParams) == before
    upper, lower, side = panels(figure)
    assert [axes.get_title("left") for axes in (upper, lower, side)] == ["A", "B", "C"]
    assert upper.get_ylabel() == "tau"
    assert lower.get_xlabel() == "$z_{1}$"  # scales come first
    curves = [line for line in upper.get_lines() if len(line.get_xdata()) > 10]
    assert len(curves) == NUM_CURVES + 1
    assert all(np.all(line.get_ydata() > 0) for line in curves)
    if name != "planar":  # the only one whose map need not increase along its own coordinate
        assert all(np.all(np.diff(line.get_ydata()) >= 0) for line in curves)


def test_one_dimension_shows_the_exact_map_and_densities():
    # A new mean-field Gaussian with location 0 and scale 1 on the log scale: theta = exp(z), a lognormal.
    post = posterior_of(flow_of("gaussian", 1), Site("tau", (), constraints.positive))
    upper, lower, side = panels(plot_transformation(post))
    z, theta = upper.get_lines()[0].get_data()
    np.testing.assert_allclose(theta, np.exp(z), rtol=1e-5)
    np.testing.assert_allclose(z[[0, -1]], stats.norm.ppf([0.001, 0.999]), atol=1e-3)
    z, density = lower.get_lines()[0].get_data()
    np.testing.assert_allclose(density, stats.norm.pdf(z), atol=1e-4)
    density, theta = side.get_lines()[0].get_data()
    np.testing.assert_allclose(density, stats.lognorm.pdf(theta, 1.0), atol=1e-4)
    # The guides: 5, 50 and 95 % of z, up to the curve and across.
    quantiles, images = upper.get_lines()[-1].get_data()
    np.testing.assert_allclose(quantiles, stats.norm.ppf([0.05, 0.5, 0.95]), atol=1e-3)
    np.testing.assert_allclose(images, np.exp(quantiles), rtol=1e-5)
    assert lower.get_xlabel() == "$z$"


def test_latent_density_follows_the_noise():
    post = posterior_of(flow_of("bernstein", 1, "logistic"), Site("p", (), constraints.unit_interval))
    upper, lower, _ = panels(plot_transformation(post))
    z, density = lower.get_lines()[0].get_data()
    np.testing.assert_allclose(density, stats.logistic.pdf(z), atol=1e-4)
    low, high = upper.get_ylim()
    assert -0.05 < low < high < 1.05


def test_every_component_finds_its_coordinate():
    layout = Layout(
        (
            Site("w", (2, 2), constraints.real),
            Site("p", (3,), constraints.simplex),
            Site("L", (2, 2), constraints.corr_cholesky),
            Site("s", (), constraints.positive),
        )
    )
    assert layout.labels() == ["s", "w[0]", "w[1]", "w[2]", "w[3]", "p[0]", "p[1]", "L[0]"]
    assert _own_column(layout, "s", ()) == 0
    assert _own_column(layout, "w", (1, 0)) == 3
    assert [_own_column(layout, "p", (i,)) for i in range(3)] == [5, 6, 6]
    assert _own_column(layout, "L", (1, 1)) == 7
    with pytest.raises(ArgumentError, match=r"this component of 'L' is constant by its support"):
        _own_column(layout, "L", (0, 1))


def test_a_component_is_chosen_by_number_or_indices():
    post = posterior_of(flow_of("gaussian", 4), Site("w", (2, 2), constraints.real))
    assert panels(plot_transformation(post, "w", 2))[0].get_ylabel() == "w[1, 0]"
    assert _component(post, "w", 2) == _component(post, None, (1, 0)) == ("w", (1, 0))


def test_the_legend_speaks_of_other_coordinates_only_where_they_matter():
    post = posterior_of(flow_of("gaussian-fullrank", 2), Site("w", (2,), constraints.real))
    first, second = (plot_transformation(post, "w", i).axes[-1].get_legend().get_texts() for i in (0, 1))
    assert [text.get_text() for text in first] == ["5, 50, 95 % of $z$"]
    assert [text.get_text() for text in second] == [
        "other $z$ at 0",
        f"{NUM_CURVES} draws of them",
        "5, 50, 95 % of $z$",
    ]


def test_arguments_are_checked(make):
    post = posterior_of(flow_of("gaussian", 2), Site("w", (2,), constraints.real))
    with pytest.raises(ArgumentError, match="name='b' is unknown: expected one of w"):
        plot_transformation(post, "b")
    for index in (2, -1, (0, 0), (2,), "a"):
        with pytest.raises(ArgumentError, match=r"index=.*: expected a component of 'w', which has the shape \(2,\)"):
            plot_transformation(post, "w", index)
    parts = Mixture((flow_of("gaussian", 2), flow_of("gaussian", 2)), jnp.zeros(2))
    with pytest.raises(ArgumentError, match=r"the distribution is a Mixture, which is not a single map.*components=1"):
        plot_transformation(posterior_of(parts, Site("w", (2,), constraints.real)))
