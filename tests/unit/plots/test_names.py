"""Names of a user's model are shown as they are, whatever they would mean to matplotlib."""

import io

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from numpyro.distributions import constraints

import bernflow as bf
from bernflow.calibrate.result import p_values_of
from bernflow.diagnostics import judge
from bernflow.flows.affine import TriangularAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.models.base import Site
from bernflow.plots import plot_pairs, plot_posterior, plot_predictive, plot_transformation
from bernflow.plots.coefficients import plot_coefficients
from bernflow.posterior import Posterior
from bernflow.target import Layout

# No formulas, broken ones, and the letters of HTML, LaTeX and Python's formats.
NAMES = ("$", r"$\frac$", r"a\$b$c$", "<script>alert(1)</script>", "100 %s_{0}^\\")
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def posterior():
    layout = Layout(tuple(Site(name, (), constraints.real) for name in NAMES))
    flow = LocationScale(TriangularAffine(jnp.zeros(layout.dim), jnp.eye(layout.dim)))
    return Posterior(flow, layout, None, judge(np.zeros(500)), None, {"precision": "float32"})


def calibration():
    ranks = {name: RNG.integers(0, 100, 40) for name in NAMES}
    scores = {name: RNG.normal(size=40) for name in NAMES}
    found = p_values_of(ranks, 99)
    settings = {"family": "bernstein", "steps": 5}
    return bf.Calibration(ranks, scores, scores, found, ("good",) * 40, 99, settings).plot()


def coefficients():
    draws = {name: RNG.normal(size=200) for name in NAMES}
    return plot_coefficients(draws, [{"epoch": np.arange(3), "loss": np.arange(3.0)}], [0], NAMES[1])


def comparison():
    draws = {name: RNG.normal(size=200) for name in NAMES}
    return bf.compare({name: draws for name in NAMES}, reference=NAMES[1]).plot()


FIGURES = {
    "posterior": lambda post: plot_posterior(post, num=200),
    "pairs": lambda post: plot_pairs(post, num=100),
    "transformation": lambda post: plot_transformation(post, NAMES[2]),
    "predictive": lambda post: plot_predictive(
        {name: RNG.normal(size=(20, 3)) for name in NAMES}, dict.fromkeys(NAMES, np.zeros(3))
    ),
    "calibration": lambda post: calibration(),
    "coefficients": lambda post: coefficients(),
    "comparison": lambda post: comparison(),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_every_figure_shows_names_as_they_are(kind, posterior):
    with mpl.rc_context({"text.usetex": True}):  # of a user who writes LaTeX elsewhere
        figure = FIGURES[kind](posterior)
    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg")
    shown = file.getvalue()
    for name in (NAMES[2],) if kind == "transformation" else NAMES:
        assert name.replace("<", "&lt;").replace(">", "&gt;") in shown
    assert "<script" not in shown


def test_formulas_of_the_caller_are_formulas(posterior):
    figure = plot_pairs(posterior, labels={"$": r"$\beta$"}, num=100)
    labels = {axes.get_xlabel(): axes.xaxis.label.get_parse_math() for axes in figure.axes if axes.get_xlabel()}
    assert labels[r"$\beta$"]
    assert not labels[r"$\frac$"]
