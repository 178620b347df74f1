import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints as c

from bernflow.errors import ModelError
from bernflow.models import Model, Site, from_log_density
from bernflow.models.base import AbstractMappedModel
from bernflow.target import Layout, Target, is_scale


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


# name: support, shape, number of unconstrained dimensions
SUPPORTS = {
    "real": (c.real, (), 1),
    "real vector": (c.real_vector, (4,), 4),
    "real matrix": (c.real_matrix, (2, 3), 6),
    "real 1000": (c.real, (1000,), 1000),
    "positive": (c.positive, (), 1),
    "positive matrix": (c.positive, (2, 3), 6),
    "nonnegative": (c.nonnegative, (2,), 2),
    "softplus positive": (c.softplus_positive, (2,), 2),
    "unit interval": (c.unit_interval, (3,), 3),
    "interval": (c.interval(-2.0, 5.0), (), 1),
    "open interval, one bound each": (c.open_interval(np.zeros(3), np.array([1.0, 2.0, 3.0])), (3,), 3),
    "greater than": (c.greater_than(3.0), (2,), 2),
    "greater or equal": (c.greater_than_eq(-1.0), (), 1),
    "less than": (c.less_than(-3.0), (2,), 2),
    "less or equal": (c.less_than_eq(2.0), (), 1),
    "circular": (c.circular, (), 1),
    "independent positive": (c.independent(c.positive, 1), (3,), 3),
    "simplex": (c.simplex, (4,), 3),
    "simplexes": (c.simplex, (5, 2, 4), 30),
    "ordered": (c.ordered_vector, (4,), 4),
    "positive ordered": (c.positive_ordered_vector, (4,), 4),
    "batch of ordered": (c.ordered_vector, (2, 3), 6),
    "zero sum": (c.zero_sum(1), (4,), 3),
    "corr cholesky": (c.corr_cholesky, (4, 4), 6),
    "corr choleskies": (c.corr_cholesky, (2, 3, 3), 6),
    "corr matrix": (c.corr_matrix, (3, 3), 3),
    "lower cholesky": (c.lower_cholesky, (3, 3), 6),
    "scaled unit lower cholesky": (c.scaled_unit_lower_cholesky, (3, 3), 6),
    "softplus lower cholesky": (c.softplus_lower_cholesky, (3, 3), 6),
    "covariance": (c.positive_definite, (3, 3), 6),
}


def identity(value):
    return value


def drop_last(value):
    return value[..., :-1]


def lower(value):
    return value[..., *np.tril_indices(value.shape[-1])]


def strictly_lower(value):
    return value[..., *np.tril_indices(value.shape[-1], -1)]


# What identifies a value without redundancy: the volume element of the prior lives on these coordinates.
FREE = {
    "simplex": drop_last,
    "simplexes": drop_last,
    "corr cholesky": strictly_lower,
    "corr choleskies": strictly_lower,
    "corr matrix": strictly_lower,
    "lower cholesky": lower,
    "scaled unit lower cholesky": lower,
    "softplus lower cholesky": lower,
    "covariance": lower,
}
NO_FREE_COORDINATES = {"zero sum", "real 1000"}


def layout_of(name):
    support, shape, _ = SUPPORTS[name]
    return Layout((Site("v", shape, support),))


@pytest.mark.parametrize("name", SUPPORTS)
def test_round_trip(name):
    support, shape, dim = SUPPORTS[name]
    layout = layout_of(name)
    assert layout.dim == dim
    assert len(layout.labels()) == dim
    x = jax.random.uniform(jax.random.key(1), (dim,), minval=-2, maxval=2)
    theta, log_jacobian = layout.constrain(x)
    assert theta["v"].shape == shape
    assert np.all(support(theta["v"]))
    back, log_jacobian_back = layout.unconstrain(theta)
    np.testing.assert_allclose(back, x, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(log_jacobian_back, log_jacobian, rtol=1e-8, atol=1e-8)
    assert log_jacobian.dtype == jnp.float64


@pytest.mark.parametrize("name", sorted(set(SUPPORTS) - NO_FREE_COORDINATES))
def test_log_jacobian_is_that_of_the_free_coordinates(name):
    layout = layout_of(name)
    free = FREE.get(name, identity)
    x = jax.random.uniform(jax.random.key(2), (layout.dim,), minval=-2, maxval=2)
    jacobian = jax.jacobian(lambda x: jnp.ravel(free(layout.constrain(x)[0]["v"])))(x)
    assert jacobian.shape == (layout.dim, layout.dim)
    expected = np.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(layout.constrain(x)[1], expected, rtol=1e-8, atol=1e-8)


def test_scales_come_first_and_labels_follow():
    layout = Layout(
        (
            Site("b", (2,), c.real),
            Site("s", (), c.positive),
            Site("w", (3,), c.simplex),
            Site("t", (1,), c.greater_than(1.0)),
        )
    )
    assert layout.names == ("b", "s", "w", "t")
    assert layout.labels() == ["s", "t[0]", "b[0]", "b[1]", "w[0]", "w[1]"]
    assert layout.num_scales == 2
    theta, _ = layout.constrain(jnp.array([0.0, 0.0, 5.0, 6.0, 0.0, 0.0]))
    np.testing.assert_allclose(theta["b"], [5.0, 6.0])
    np.testing.assert_allclose(theta["t"], [2.0])


def test_a_layout_is_structure_and_no_data():
    # Compiled functions are kept by structure; what were a leaf would be traced, and shapes cannot be.
    assert jax.tree.leaves(Layout((Site("b", (2,), c.real), Site("w", (3,), c.simplex)))) == []


@pytest.mark.parametrize(
    ("support", "expected"),
    [
        (c.positive, True),
        (c.nonnegative, True),
        (c.softplus_positive, True),
        (c.greater_than(np.ones(2)), True),
        (c.greater_than_eq(0.5), True),
        (c.independent(c.positive, 1), True),
        (c.real, False),
        (c.interval(0.0, np.ones(2)), False),
        (c.less_than(0.0), False),
        (None, False),
    ],
)
def test_is_scale(support, expected):
    assert is_scale(support) is expected


def test_density_carries_the_jacobian():
    """Exp(1) on the log scale: log p(x) = x - exp(x), whose integral is one."""
    target = Target(from_log_density(lambda th: -th["s"], {"s": 1.0}, {"s": c.positive}))
    grid = jnp.linspace(-30, 6, 20001)[:, None]
    values = jax.vmap(target.log_density)(grid)
    np.testing.assert_allclose(values, grid[:, 0] - jnp.exp(grid[:, 0]), rtol=1e-12)
    np.testing.assert_allclose(np.trapezoid(np.exp(values), grid[:, 0]), 1.0, rtol=1e-6)


def test_every_site_must_lie_in_its_support():
    layout = Layout((Site("a", (2,), c.positive), Site("b", (), c.unit_interval)))
    inside = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(0.5)}
    assert layout.contains(inside)
    assert not layout.contains({**inside, "a": jnp.array([1.0, -2.0])})
    assert not layout.contains({**inside, "b": jnp.array(1.5)})


class Mapped(AbstractMappedModel):
    """b in R^2, a scale s > 0 and a real c behind a map of the model's own, in model order: x = (b, log s, c)."""

    sites: tuple[Site, ...] = (Site("b", (2,), None), Site("s", (), None), Site("c", (), None))

    def unconstrained_sizes(self):
        return 2, 1, 1

    def scales(self):
        return False, True, False

    def constrain(self, x):
        return {"b": x[:2], "s": jnp.exp(x[2]), "c": x[3]}, x[2]

    def unconstrain(self, theta):
        return jnp.append(theta["b"], jnp.stack([jnp.log(theta["s"]), theta["c"]]))

    def log_density_on_reals(self, x):
        return x[0] + 10.0 * x[1] + 100.0 * x[2] + 1000.0 * x[3]

    def sample_prior(self, key):
        return None

    def initial(self):
        return None

    def observed(self):
        return {}

    def log_likelihood(self, theta):
        return {}

    def deterministic(self, theta):
        return {}

    def predict(self, key, theta, *args, **kwargs):
        return {}


def test_the_map_of_a_model_is_reordered_and_nothing_else():
    target = Target(Mapped())
    layout = target.layout
    assert jax.tree.leaves(layout) == []
    assert (layout.dim, layout.num_scales, layout.labels()) == (4, 1, ["s", "b[0]", "b[1]", "c"])
    x = jnp.array([0.5, 2.0, 3.0, 4.0])
    theta, log_jacobian = layout.constrain(x)
    np.testing.assert_allclose(theta["b"], [2.0, 3.0])
    np.testing.assert_allclose([theta["s"], theta["c"], log_jacobian], [np.exp(0.5), 4.0, 0.5])
    back, log_jacobian_back = layout.unconstrain(theta)
    np.testing.assert_allclose(back, x)
    assert log_jacobian_back == pytest.approx(0.5)
    assert layout.contains(theta)
    assert target.log_density(x) == pytest.approx(2.0 + 30.0 + 50.0 + 4000.0)
    # The model's density on the constrained scale is without the Jacobian.
    assert target.model.log_density(theta) == pytest.approx(4082.0 - 0.5)
    with pytest.raises(ModelError, match="support of 's' is known only to the model's own map to R"):
        target.model.support_of("s", theta)


def test_nan_counts_as_minus_infinity():
    target = Target(from_log_density(lambda x: jnp.log(x), 1.0))
    assert target.dim == 1
    assert target.log_density(jnp.array([-1.0])) == -jnp.inf


def test_no_parameters():
    with pytest.raises(ModelError, match="no parameters to infer: expected at least one latent site"):
        Layout(())


def test_dependent_support_needs_the_model():
    model = Model(
        prior={"s": dist.HalfNormal(1), "u": lambda th: dist.Uniform(0, th["s"])},
        likelihood=lambda th: dist.Normal(th["u"], 1),
        y=np.zeros(2),
    )
    target = Target(model)
    x = jnp.array([0.5, 0.1])
    jacobian = jax.jacobian(lambda x: jnp.stack([target.layout.constrain(x)[0][k] for k in ("s", "u")]))(x)
    np.testing.assert_allclose(target.layout.constrain(x)[1], np.linalg.slogdet(jacobian)[1], rtol=1e-10)
    with pytest.raises(ModelError, match=r"support of 'u' depends on other parameters .*: pass the model to bf.load"):
        Layout(model.sites)
