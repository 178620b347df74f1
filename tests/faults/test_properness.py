"""A posterior that is not proper is told from one with heavy tails, whatever front end it comes by."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import bernflow as bf
from bernflow.diagnostics.properness import endless_until
from bernflow.fit.checks.rays import find_endless
from bernflow.fit.checks.ridges import endless_scales
from bernflow.fit.start import Gaussian
from bernflow.flows.affine import TriangularAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.flows.mixture import Mixture
from bernflow.models import as_model
from bernflow.target import Target

X = np.random.default_rng(0).normal(size=(20, 2))
SEPARATED = np.where(X[:, 0] > 0, 1.0, -1.0)
# Columns that repeat each other: only b0 + 3 b1 is known.
REPEATED = np.array([1.0, 3.0])


def squares(x):
    return -0.5 * jnp.sum(x**2)


IMPROPER = {
    "flat": (lambda x: 0.0 * jnp.sum(x), 1, None),
    "flat in one of three": (lambda x: squares(x[1:]), 3, None),
    "exponential on the line": (lambda x: x[0] + squares(x[1:]), 2, None),
    "rising": (lambda x: -squares(x), 1, None),
    "1 / (1 + |x|)": (lambda x: -0.5 * jnp.log1p(x[0] ** 2), 1, None),
    "1 / (1 + r^2) in three dimensions": (lambda x: -jnp.log1p(jnp.sum(x**2)), 3, None),
    "1 / x": (lambda x: -jnp.log(x[0]), 1, constraints.positive),
    "1 / x near zero": (lambda x: -jnp.log(x[0]) - x[0], 1, constraints.positive),
    "separated classes": (lambda b: jnp.sum(jax.nn.log_sigmoid(SEPARATED * (X @ b))), 2, None),
    "a bump on a plateau": (lambda x: jnp.logaddexp(squares(x), -25.0), 1, None),
    "a funnel of infinite mass": (lambda x: -0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]), 3, None),
}
PROPER = {
    "Cauchy": (lambda x: dist.Cauchy(0, 1).log_prob(x[0]), 1, None),
    "three Cauchys": (lambda x: jnp.sum(dist.Cauchy(0, 1).log_prob(x)), 3, None),
    "Student-t(0.2)": (lambda x: dist.StudentT(0.2, 0, 1).log_prob(x[0]), 1, None),
    "half-Cauchy": (lambda x: dist.HalfCauchy(1.0).log_prob(x[0]), 1, constraints.positive),
    "inverse gamma(0.01)": (lambda x: dist.InverseGamma(0.01, 0.01).log_prob(x[0]), 1, constraints.positive, 50.0),
    "horseshoe": (
        lambda x: (
            jnp.sum(dist.HalfCauchy(1.0).log_prob(jnp.exp(x[:3])) + x[:3])
            + jnp.sum(dist.Normal(0, jnp.exp(x[0] + x[1:3])).log_prob(x[3:]))
        ),
        5,
        None,
    ),
    "half of the line": (lambda x: jnp.where(x[0] > -1.0, squares(x), -jnp.inf), 1, None),
    "separated classes with a prior": (
        lambda b: jnp.sum(jax.nn.log_sigmoid(SEPARATED * (X @ b))) + squares(b / 100.0),
        2,
        None,
    ),
    "Neal's funnel": (
        lambda x: dist.Normal(0, 3).log_prob(x[0]) + jnp.sum(dist.Normal(0, jnp.exp(x[0] / 2)).log_prob(x[1:])),
        3,
        None,
    ),
}


def look(logp, dim, support, scale=1.0, mixed=False, start=None):
    """Follow rays out of a Gaussian around zero."""
    with jax.enable_x64(True):
        target = Target(bf.from_log_density(logp, np.ones(dim), support))
        fit = LocationScale(TriangularAffine(jnp.zeros(dim), scale * jnp.eye(dim)))
        draws, log_q = fit.sample_and_log_prob(jax.random.key(1), 1000)
        weights = np.asarray(jax.vmap(target.log_density)(draws) - log_q)
        q = Mixture((fit, fit), jnp.zeros(2)) if mixed else fit
        return find_endless(q, target, np.asarray(draws), weights, jax.random.key(2), start=start)


@pytest.mark.parametrize("name", IMPROPER)
def test_improper_densities_are_found(name):
    assert look(*IMPROPER[name]) is not None


@pytest.mark.parametrize("name", PROPER)
def test_heavy_tails_are_no_false_alarm(name):
    assert look(*PROPER[name]) is None


def test_the_parameters_are_named_and_the_distance_told():
    found = look(*IMPROPER["flat in one of three"], mixed=True)
    assert found.parameters == "x[0]"
    assert found.until > 1e7
    many = look(lambda x: squares(x[0]), 7, None)
    assert many.parameters == "x[1], x[2], x[3], x[4] and 2 more"


def test_a_wide_part_that_ends_is_no_false_alarm():
    """Its mass rises along rays over more than four steps of the radius, and then falls."""
    dim, share, width = 10, 0.2, 300.0

    def normal(x, scale):
        return jnp.sum(dist.Normal(0.0, scale).log_prob(x))

    def both(x):
        return jnp.logaddexp(jnp.log1p(-share) + normal(x, 1.0), jnp.log(share) + normal(x, width))

    with jax.enable_x64(True):
        target = Target(bf.from_log_density(both, np.ones(dim)))
        narrow, wide = (LocationScale(TriangularAffine(jnp.zeros(dim), s * jnp.eye(dim))) for s in (1.0, width))
        draws = np.random.default_rng(0).normal(size=(1000, dim))
        weights = np.full(1000, np.log1p(-share))

        def endless(fit, target=target, **how):
            return find_endless(fit, target, draws, weights, jax.random.key(0), **how)

        assert endless(narrow) is not None  # as long as nobody knows better
        assert endless(narrow, mass_ends=True) is None
        whole = Mixture((narrow, wide), jnp.log(jnp.array([1.0 - share, share])))
        assert endless(whole) is None
        # A plateau goes on beyond what the mixture covers.
        plateau = Target(bf.from_log_density(lambda x: jnp.logaddexp(both(x), -90.0), np.ones(dim)))
        assert endless(whole, plateau) is not None
        assert endless(narrow, plateau, mass_ends=True) is not None


class Flat(LocationScale):
    """A flow that is flat from two standard deviations on, as one may be where no draw has been."""

    def transform_and_log_det(self, z):
        slope = jnp.where(jnp.abs(z) < 2.0, 1.0, 1e-9)
        x = jnp.where(jnp.abs(z) < 2.0, z, jnp.sign(z) * (2.0 + 1e-9 * (jnp.abs(z) - 2.0)))
        return x, jnp.sum(jnp.log(slope))


def test_a_flow_that_ends_flat_is_no_false_alarm():
    fit = Flat(TriangularAffine(jnp.zeros(1), jnp.eye(1)))
    draws = np.random.default_rng(0).normal(size=(1000, 1))
    with jax.enable_x64(True):
        for log_density, is_endless in ((squares, False), (lambda x: 0.0 * x[0], True)):
            target = Target(bf.from_log_density(log_density, np.ones(1)))
            found = find_endless(fit, target, draws, np.full(1000, 0.9), jax.random.key(0))
            assert (found is not None) == is_endless


def test_a_ridge_is_found_by_the_curvature_of_the_start():
    def ridge(x):
        return -0.5 * (x[0] - x[1]) ** 2

    def round_hill(x):
        return squares(x)

    # The covariance of a ridge along (1, 1): 1e10 of variance along it.
    factor = np.linalg.cholesky(np.array([[1e10 + 0.5, 1e10], [1e10, 1e10 + 0.5]]))
    start = Gaussian(np.zeros(2), factor, np.zeros(()))
    assert look(ridge, 2, None) is None
    assert look(ridge, 2, None, start=start).parameters == "x[0], x[1]"
    assert look(round_hill, 2, None, start=start) is None


REPEATED_COLUMN = np.random.default_rng(1).normal(size=40)


@pytest.mark.parametrize(
    ("prior_sd", "width", "found"), [(None, 5e12, "b[0], b[1]"), (1e8, 1e8, None), (1e8, 1e9, None)]
)
def test_a_ridge_whose_direction_is_lost_in_rounding_is_followed_by_the_curvature(prior_sd, width, found):
    """Two coefficients of one repeated column: fits widen along the ridge until its direction has no digits left."""
    across = 0.5 / np.linalg.norm(REPEATED_COLUMN)

    def log_density(theta):
        b = theta["b"]
        residuals = 2.0 * REPEATED_COLUMN - REPEATED_COLUMN * b[0] - REPEATED_COLUMN * b[1]
        prior = 0.0 if prior_sd is None else -0.5 * jnp.sum((b / prior_sd) ** 2)
        return -0.5 * jnp.sum((residuals / 0.5) ** 2) + prior

    with jax.enable_x64(True):
        target = Target(bf.from_log_density(log_density, {"b": np.zeros(2)}))
        # As good as rounding allows, but for a tilt by some of the last digits.
        factor = jnp.array([[width, 0.0], [-width * (1.0 + 1e-12), across]])
        fit = LocationScale(TriangularAffine(jnp.array([0.0, 2.0]), factor))
        x, log_q = fit.sample_and_log_prob(jax.random.key(1), 2000)
        log_weights = np.asarray(jax.vmap(target.log_density)(x) - log_q)
        seen = find_endless(fit, target, np.asarray(x), log_weights, jax.random.key(0))
    assert (seen.parameters if seen else None) == found


def test_a_start_that_is_too_narrow_is_no_false_alarm():
    assert look(squares, 2, None, start=Gaussian(np.zeros(2), 1e-5 * np.eye(2), np.zeros(()))) is None


def test_a_fit_that_has_run_away_is_looked_at_from_the_origin():
    with jax.enable_x64(True):
        target = Target(bf.from_log_density(lambda x: 0.0 * x[0], np.ones(1), constraints.positive))
        fit = LocationScale(TriangularAffine(jnp.full(1, 1e5), jnp.eye(1)))
        draws = np.full((1000, 1), 1e5)
        found = find_endless(fit, target, draws, np.full(1000, -np.inf), jax.random.key(0))
    assert found.parameters == "x[0]"


def equal_data(y):
    """As the scale goes to zero, the likelihood of equal data rises faster than any prior falls."""
    m = numpyro.sample("m", dist.Normal(0, 1))
    s = numpyro.sample("s", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(m, s), obs=y)


def groups(y, power):
    """A prior 1 / tau of the scale of group means is not proper, and neither is the posterior; a flat one is."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.ImproperUniform(constraints.positive, (), ()))
    means = numpyro.sample("means", dist.Normal(mu, tau).expand([4]).to_event(1))
    numpyro.factor("prior", power * jnp.log(tau))
    numpyro.sample("y", dist.Normal(means, 1), obs=y)


@pytest.mark.parametrize(
    ("model", "args", "is_endless"),
    [
        (equal_data, (np.full(5, 1.3),), True),
        (equal_data, (np.array([1.3, 1.3, 1.2, 1.3, 1.3]),), False),
        (groups, (np.array([0.1, 0.5, -0.3, 0.2]), -1.0), True),
        (groups, (np.array([0.1, 0.5, -0.3, 0.2]), 0.0), False),
    ],
    ids=["equal data", "nearly equal data", "1 / tau", "flat tau"],
)
def test_scales_are_followed_along_their_ridge(model, args, is_endless):
    with jax.enable_x64(True):
        target = Target(as_model(model, args, {}))
        until = endless_scales(target, np.full(target.dim, 0.1), 0.0, jax.random.key(0))
    assert target.layout.num_scales == 1
    assert (until > 0.0).tolist() == [is_endless]


def test_ridges_that_cost_too_much_are_left_out():
    with jax.enable_x64(True):
        many = Target(bf.from_log_density(lambda s: -jnp.sum(s), np.ones(17), constraints.positive))
        none = Target(bf.from_log_density(lambda s: -jnp.sum(s**2), np.ones(17)))
        assert not endless_scales(many, np.zeros(17), 0.0, jax.random.key(0)).any()
        assert endless_scales(none, np.zeros(17), 0.0, jax.random.key(0)).size == 0


@pytest.mark.parametrize(
    ("log_mass", "endless"),
    [
        (lambda r: 0.0 * r, True),
        (lambda r: -0.5 * r, False),
        (lambda r: -29.0 + 0.0 * r, True),
        (lambda r: -31.0 + 0.0 * r, False),
        (lambda r: np.where(r < 8.0, 0.0, -np.exp(r)), True),
        (lambda r: np.where(r < 4.0, 0.0, -np.exp(r)), False),
        (lambda r: np.where(r < 8.0, 0.0, -np.inf), True),
        (lambda r: np.where(r < 8.0, -10.0, -np.inf), False),
        (lambda r: np.full_like(r, -np.inf), False),
    ],
)
def test_the_rule_for_one_ray(log_mass, endless):
    log_radius = np.log(4.0) + np.arange(15.0)
    assert (endless_until(log_mass(log_radius), log_radius) is not None) == endless


def test_where_mass_is_known_to_end_only_the_far_end_counts():
    log_radius = np.log(4.0) + np.arange(15.0)
    hill = np.where(log_radius < 8.0, 0.0, -np.inf)
    assert endless_until(hill, log_radius) is not None
    assert endless_until(hill, log_radius, at_end_only=True) is None
    assert endless_until(0.0 * log_radius, log_radius, at_end_only=True) is not None


@pytest.mark.parametrize(
    ("log_mass", "endless"),
    [
        (lambda r: 1e3 + r, True),
        (lambda r: np.where(r < 8.0, r, -np.inf), True),
        (lambda r: np.where(r < 4.0, r, -np.inf), False),
        (lambda r: -((r - 9.0) ** 2), False),
        (lambda r: np.full_like(r, -np.inf), False),
    ],
)
def test_the_rule_where_no_mass_is_known(log_mass, endless):
    """A mode that a ray meets on its way has a far side; what rises until it overflows has none."""
    log_radius = np.log(4.0) + np.arange(15.0)
    assert (endless_until(log_mass(log_radius), log_radius, None) is not None) == endless


def flat_regression(x, y):
    b = numpyro.sample("b", dist.ImproperUniform(constraints.real, (), (2,)))
    numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


FRONT_ENDS = {
    "NumPyro": (flat_regression, np.ones((5, 1)) * REPEATED, np.arange(5.0)),
    "Model": (
        bf.Model(
            prior={"b": dist.ImproperUniform(constraints.real, (), (2,))},
            likelihood=lambda theta, x: dist.Bernoulli(logits=x @ theta["b"]),
            y=(SEPARATED > 0).astype(float),
            x=X,
        ),
    ),
}
# The ridge of the repeated columns moves both coefficients. Separated classes leave a cone around the axis of b[0]: the
# second coefficient is named only where the ray that was found leans far enough.
NAMED = {"NumPyro": ["b[0], b[1]"], "Model": ["b[0]", "b[0], b[1]"]}


@pytest.mark.parametrize("name", ["NumPyro", pytest.param("Model", marks=pytest.mark.slow)])
def test_a_fit_says_so(name, tmp_path):
    with pytest.warns(UserWarning, match=r"bernflow: Poor .*: the posterior seems to be improper, .* along b\[0\]"):
        post = bf.fit(*FRONT_ENDS[name], family="gaussian-fullrank", steps=50, progress=False)
    found = post.diagnostics
    assert found.verdict == "poor"
    assert found.improper in NAMED[name]
    assert "give these parameters a proper prior" in found.status
    assert bf.load(post.save(tmp_path / "fit.bernflow")).diagnostics == found


@pytest.mark.slow
def test_a_prior_mends_it():
    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 100.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "bernflow: ")
        post = bf.fit(model, np.ones((5, 1)) * REPEATED, np.arange(5.0), family="gaussian-fullrank", progress=False)
    assert post.diagnostics.improper is None
    assert post.diagnostics.verdict == "good"
