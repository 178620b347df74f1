"""Views of the globals are read off the map from R^p, whatever the support; locals on intervals are recognized."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to, constraints

import bernflow as bf
from bernflow.errors import FileFormatError
from bernflow.fit.views import on_intervals, views_of
from bernflow.flows.bounded import LIMIT, from_logit, mask_of, to_logit
from bernflow.flows.views import View, evaluate, plain_views, views_from_json
from bernflow.models import as_model
from bernflow.precision import use_precision
from bernflow.target import Target

# Support, a value, and for each view its kind and the function of the parameter that it must be.
CASES = {
    "real": (constraints.real, 0.3, [("identity", lambda t: t)]),
    "positive": (constraints.positive, 0.3, [("identity", jnp.log)]),
    "above": (constraints.greater_than(1.5), 2.0, [("identity", lambda t: jnp.log(t - 1.5)), ("log-above", jnp.log)]),
    "below": (constraints.less_than(1.5), 1.0, [("identity", lambda t: jnp.log(1.5 - t))]),
    "softplus": (constraints.softplus_positive, 0.3, [("log-softplus", jnp.log)]),
    "correlation": (constraints.interval(-1.0, 1.0), 0.3, [("half", jnp.arctanh)]),
    "scale": (
        constraints.interval(0.0, 100.0),
        3.0,
        [("half", lambda t: jnp.arctanh(t / 50.0 - 1.0)), ("log-interval", jnp.log)],
    ),
    "ordered": (
        constraints.ordered_vector,
        [0.1, 0.2, 0.5],
        [("identity", lambda t: t[0]), *[("identity", None)] * 2, *[("ordered", lambda t, i=i: t[i]) for i in (1, 2)]],
    ),
    "positive-ordered": (
        constraints.positive_ordered_vector,
        [0.1, 0.2],
        [("identity", lambda t: jnp.log(t[0])), ("identity", None), ("ordered", lambda t: jnp.log(t[1]))],
    ),
    "simplex": (
        constraints.simplex,
        [0.2, 0.3, 0.5],
        [
            *[("identity", None)] * 2,
            *[("log-simplex", lambda t, i=i: jnp.log(t[i])) for i in (0, 1)],
            ("log-simplex-last", lambda t: jnp.log(t[2])),
        ],
    ),
}


@pytest.fixture(autouse=True)
def _double_precision():
    with use_precision("float64"):
        yield


def layout_of(**supports):
    init = {name: jnp.asarray(CASES[name][1]) for name in supports}
    return Target(bf.from_log_density(lambda theta: 0.0, init=init, support=supports)).layout


@pytest.mark.parametrize("name", CASES)
def test_views_are_functions_of_the_parameter_itself(name):
    support, _, expected = CASES[name]
    layout = layout_of(**{name: support})
    views = views_of(layout, range(layout.dim))
    assert [view.kind for view in views] == [kind for kind, _ in expected]
    x = np.random.default_rng(1).normal(size=(5, layout.dim))
    theta = jax.vmap(lambda x: layout.constrain(x)[0][name])(x)
    for column, (kind, function) in zip(evaluate(views, x, np).T, expected, strict=True):
        if function is not None:
            right = jax.vmap(function)(theta)
            shift = column[0] - right[0] if kind == "log-interval" else 0.0  # a constant does not matter
            np.testing.assert_allclose(column, right + shift, rtol=1e-9)


def test_views_are_the_same_in_jax_and_stay_finite_far_out():
    layout = layout_of(**{name: support for name, (support, *_) in CASES.items()})
    views = views_of(layout, range(layout.dim))
    value_and_slopes = jax.jit(lambda x: (evaluate(views, x), jax.jacobian(lambda x: evaluate(views, x))(x)))
    for far in (-1e3, 0.3, 1e3):
        value, slopes = value_and_slopes(jnp.full(layout.dim, far))
        np.testing.assert_allclose(value, evaluate(views, np.full(layout.dim, far), np), rtol=1e-12)
        assert np.isfinite(slopes).all()


def test_views_take_places_among_the_globals_and_need_all_of_their_members():
    layout = layout_of(positive=constraints.positive, ordered=constraints.ordered_vector)
    assert [view.members for view in views_of(layout, (1, 3))] == [(0,), (1,)]  # the second part is missing
    assert View("ordered", (0, 1)) in views_of(layout, (1, 2))


def test_a_support_that_depends_on_other_parameters_is_seen_as_it_is():
    def model():
        top = numpyro.sample("top", dist.HalfNormal(1.0))
        numpyro.sample("part", dist.Uniform(0.0, top))

    layout = Target(as_model(model, (), {})).layout
    assert [view.kind for view in views_of(layout, (0, 1))] == ["identity", "identity"]


def test_locals_on_intervals_are_recognized():
    layout = layout_of(positive=constraints.positive, correlation=constraints.interval(-1.0, 1.0))
    assert on_intervals(layout).tolist() == [False, True]


def test_bounded_coordinates_are_linear_on_the_interval_and_invertible_everywhere():
    bounded = mask_of((0, 1), 3)
    assert bounded.tolist() == [True, True, False]
    x = jnp.array([[-1.0, 2.0, 0.7], [-LIMIT - 3.0, LIMIT + 1e-9, 4.0], [0.0, 20.0, -9.0]])
    for row in x:
        t, log_slope = from_logit(row, bounded)
        back, other = to_logit(t, bounded)
        np.testing.assert_allclose(back, row, rtol=1e-9)
        np.testing.assert_allclose(log_slope, other, rtol=1e-9)
        jacobian = jax.jacobian(lambda t: to_logit(t, bounded)[0])(t)
        np.testing.assert_allclose(log_slope, jnp.linalg.slogdet(jacobian)[1], rtol=1e-6)
    value = biject_to(constraints.interval(2.0, 6.0))(x[0, 0])
    np.testing.assert_allclose(from_logit(x[0], bounded)[0][0], value - 4.0)


def test_views_in_a_file_are_checked():
    views = (View("log-interval", (1,), 0.5, 2.0), *plain_views(2))
    recipe = {"views": [view.to_json() for view in views]}
    assert views_from_json(recipe, 2) == views
    assert views_from_json({}, 2) == plain_views(2)
    for broken in (["no-such", [0], 0.0, 0.0], ["half", [2], 0.0, 0.0], ["half", [], 0.0, 0.0]):
        with pytest.raises(FileFormatError, match="views of 2 globals"):
            views_from_json({"views": [broken]}, 2)
