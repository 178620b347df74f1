"""Modes of single terms of the sums in a density."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp

import bernflow as bf
from bernflow.fit.checks.sums import Sum, sums_of
from bernflow.fit.checks.terms import choose, climb_terms
from bernflow.keys import as_key
from bernflow.models import as_model
from bernflow.target import Target


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def target_of(log_density, dim):
    return Target(bf.from_log_density(log_density, np.zeros(dim)))


def normal(x, loc=0.0, scale=1.0):
    return jnp.sum(dist.Normal(loc, scale).log_prob(x))


def ends_of(target, num=16):
    return climb_terms(target, np.zeros(target.dim), num, as_key(0))


def test_modes_of_terms_are_found_that_no_point_in_reach_tells_of():
    """A tenth as wide, in 20 dimensions: where the climb begins it is 10,000 nats below the other."""
    far = np.full(20, 3.0)
    target = target_of(lambda x: jnp.logaddexp(normal(x), normal(x, far, 0.1)), 20)
    slope = np.asarray(jax.grad(target.log_density)(jnp.full(20, 0.5)))
    assert slope == pytest.approx(-0.5)  # nothing of the other term
    ends = ends_of(target)
    assert len(ends) == 2
    assert ends[0] == pytest.approx(0.0, abs=1e-4)
    assert ends[1] == pytest.approx(far, abs=1e-3)


def test_a_prior_moves_the_modes_of_terms():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
        locs = jnp.array([[10.0], [-10.0], [0.0]])
        numpyro.factor("y", logsumexp(jnp.sum(dist.Normal(locs, 1.0).log_prob(x), -1)))

    target = Target(as_model(model, (), {}))
    assert sums_of(target) == (Sum(3, ()),)
    assert sorted(ends_of(target)[:, 0]) == pytest.approx([-8.0, 0.0, 8.0], abs=1e-3)


def test_every_observation_has_a_term_of_its_own():
    y = np.array([0.0, 0.1, 8.0])

    def model():
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
        weights = dist.Categorical(jnp.array([0.4, 0.6]))
        numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, jnp.ones(2))), obs=y)

    target = Target(as_model(model, (), {}))
    assert sums_of(target) == (Sum(2, (3,)),)
    ends = ends_of(target)
    assert len(ends) == 16
    # All of the first, all of the second, and mixed.
    assert ends[0] == pytest.approx([np.sum(y) / 3.01, 0.0], abs=1e-3)
    assert ends[1] == pytest.approx([0.0, np.sum(y) / 3.01], abs=1e-3)
    assert np.any(np.all(np.abs(ends - [0.05, 8.0]) < 0.3, axis=1)) or np.any(
        np.all(np.abs(ends - [8.0, 0.05]) < 0.3, axis=1)
    )


def test_densities_without_sums_over_terms_have_none():
    x = np.random.default_rng(0).normal(size=(10, 3))
    assert sums_of(target_of(normal, 2)) == ()
    # The normalizer of a softmax is subtracted, and not summed out.
    softmax = target_of(lambda b: jnp.sum(jax.nn.log_softmax(x * b, axis=-1)[:, 0]) + normal(b), 3)
    assert sums_of(softmax) == ()
    # A sum that depends on no parameter.
    assert sums_of(target_of(lambda b: normal(b) + logsumexp(jnp.asarray(x)), 3)) == ()
    # A maximum without a sum.
    assert sums_of(target_of(lambda b: normal(b) - jnp.max(b), 3)) == ()


def test_sums_within_functions_are_found():
    @jax.jit
    def inner(x):
        return jax.vmap(lambda z: jnp.logaddexp(-(z**2), -((z - 5.0) ** 2)))(x)

    assert sums_of(target_of(lambda x: jnp.sum(inner(x)), 4)) == (Sum(2, (4,)),)
    nested = target_of(lambda x: jnp.logaddexp(normal(x), jnp.logaddexp(normal(x, 5.0), normal(x, -5.0))), 1)
    assert {round(float(end)) for end in ends_of(nested).ravel()} == {0, 5, -5}


def test_choices_of_terms():
    random = np.random.default_rng(0)
    single = choose((Sum(3, ()),), 16, random)
    assert [int(k) for (k,) in single] == [0, 1, 2]
    several = choose((Sum(3, (2,)), Sum(2, ())), 16, random)
    assert len(several) == 16
    assert [(first.tolist(), int(second)) for first, second in several[:3]] == [([0, 0], 0), ([1, 1], 1), ([2, 2], 0)]
    many = choose((Sum(100, ()),), 16, random)
    assert len(many) == 8
    assert len({int(k) for (k,) in many}) == 8


def test_terms_without_a_density_where_climbs_begin_are_left_out():
    def log_density(x):
        return jnp.logaddexp(normal(x), jnp.where(x[0] > 1.0, normal(x, 5.0), -jnp.inf))

    assert len(ends_of(target_of(log_density, 1))) == 1


@pytest.mark.slow
def test_a_narrow_mode_in_many_dimensions_is_fitted():
    far = np.zeros(10)
    far[0] = 6.0
    logp = target_of(lambda x: jnp.logaddexp(jnp.log(0.7) + normal(x), jnp.log(0.3) + normal(x, far, 0.2)), 10).model
    post = bf.fit(logp, order=4, progress=False)
    assert post.diagnostics.verdict == "good"
    assert "single terms of the density" in post.diagnostics.status
    assert np.mean(post.draws(20_000)["x"][:, 0]) == pytest.approx(1.8, abs=0.1)
