"""Random models: whatever the numbers are, a fit ends in a posterior that agrees with itself or in a readable error.

What is random is data, so that all models of one shape share one compilation.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpyro.distributions import constraints

import bernflow as bf
from bernflow.posterior import sampling

# Few steps: what is tried is the way to the end, not the accuracy.
STEPS = 50
COMMON = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
    "database": None,
    "phases": [Phase.generate],  # a smaller example is not worth hundreds of fits
}
numbers = st.floats(-1e300, 1e300)
usual = st.floats(-5.0, 5.0)
# Mostly numbers as they are, now and then one that is not.
data = st.one_of(usual, usual, usual, numbers)
exponents = st.integers(-12, 12)


OUTSIDE = np.array([-np.inf, np.nan, np.inf])


def density(center, precision, quartic, wave, edge, outside):
    """A polynomial with waves, cut off beyond an edge: by zero, by not a number, or by infinity."""
    x = numpyro.sample("x", dist.ImproperUniform(constraints.real, (), (2,)))
    d = x - center
    value = -0.5 * jnp.dot(d, precision @ d) - quartic * jnp.sum(d**4) + jnp.sum(jnp.cos(wave * d))
    numpyro.factor("density", jnp.where(jnp.sum(x) < edge, value, jnp.asarray(OUTSIDE)[outside]))


def regression(x, y, scale, df):
    s = numpyro.sample("s", dist.HalfCauchy(scale))
    b = numpyro.sample("b", dist.Normal(0.0, scale).expand([2]).to_event(1))
    numpyro.sample("y", dist.StudentT(df, x @ b, s), obs=y)


def counts(rate, alpha, y):
    p = numpyro.sample("p", dist.Dirichlet(alpha))
    m = numpyro.sample("m", dist.Gamma(rate, rate))
    numpyro.sample("y", dist.Poisson(m * p), obs=y)


def one_parameter(a, b, y):
    p = numpyro.sample("p", dist.Beta(a, b))
    numpyro.sample("y", dist.Bernoulli(p), obs=y)


def array(elements, *shape):
    size = int(np.prod(shape))
    return st.lists(elements, min_size=size, max_size=size).map(lambda v: np.array(v, float).reshape(shape))


def power(exponent):
    return 10.0**exponent


@st.composite
def densities(draw):
    root = draw(array(usual, 2, 2)) * power(draw(exponents) / 2)
    return (
        draw(array(data, 2)),
        root @ root.T,  # may be singular: then only the quartic term makes it proper
        draw(st.sampled_from([0.0, 1e-3, 1.0, 1e8])),
        draw(st.sampled_from([0.0, 1.0, 10.0])),
        draw(st.sampled_from([-1.0, 0.5, 10.0, np.inf])),
        np.asarray(draw(st.integers(0, 2))),
    )


@st.composite
def regressions(draw):
    x = draw(array(data, 5, 2)) * power(draw(st.integers(-3, 3)))
    x[:, 1] = draw(st.sampled_from([x[:, 1], x[:, 0], np.zeros(5), np.ones(5)]))  # a column may repeat another
    y = draw(st.sampled_from([draw(array(data, 5)), np.zeros(5)]))
    return x, y, power(draw(st.integers(-3, 3))), draw(st.sampled_from([1.0, 3.0, 100.0]))


@st.composite
def count_models(draw):
    y = np.array(draw(st.lists(st.integers(0, 2**30) | st.integers(0, 3), min_size=3, max_size=3)))
    return power(draw(st.integers(-3, 3))), np.array([power(draw(st.integers(-2, 2))) for _ in range(3)]), y


@st.composite
def binary_models(draw):
    y = np.array(draw(st.lists(st.integers(0, 1), min_size=4, max_size=4)))
    return power(draw(st.integers(-3, 3))), power(draw(st.integers(-3, 3))), y


def fit(model, args):
    # As arrays, because other numbers would compile anew.
    args = [np.asarray(value) for value in args]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "bernflow: ")  # a poor fit warns, and nothing else may
        return bf.fit(model, *args, family="gaussian-fullrank", steps=STEPS, progress=False)


def ends_well(model, args):
    """Fit, and check that the posterior agrees with itself, or that a refusal says why."""
    try:
        post = fit(model, args)
    except bf.BernflowError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert len(refusal) > 40, "an error says what was given, what was expected and what to do"
        return
    found = post.diagnostics
    assert found.verdict in ("good", "usable", "poor")
    assert found.status.startswith(found.verdict.capitalize())
    assert found.verdict == "poor" or np.isfinite([found.khat_se, found.ess_fraction, found.log_evidence]).all()
    draws = post.draws(200)
    assert all(np.isfinite(values).all() for values in draws.values())
    with jax.enable_x64(True):
        x, log_q = sampling.sample(post.distribution, jax.random.key(0), 100)
        theta, log_jacobian = jax.vmap(post.layout.constrain)(x)
        # Where the map to the support rounds to its edge, the way back is lost.
        back, _ = jax.vmap(post.layout.unconstrain)(theta)
    there = np.all(np.abs(np.asarray(back) - x) < 1e-6 * np.std(x, axis=0), axis=1)
    # A narrow posterior far from zero is rounded: by so much of its smallest standard deviation.
    narrowest = np.linalg.svd(x - np.mean(x, 0), compute_uv=False)[-1] / np.sqrt(len(x))
    rounding = np.finfo(float).eps * np.max(np.abs(x)) / max(narrowest, 1e-100)
    np.testing.assert_allclose(
        post.log_prob(theta)[there], (log_q - np.asarray(log_jacobian))[there], rtol=1e-4, atol=1e-3 + 100 * rounding
    )
    if x.shape[1] == 1 and np.all(there):
        check_integral(post, x)


def check_integral(post, x):
    """Integrate q over its own range on the unconstrained scale, where the map to the support is not rounded."""
    center, scale = np.mean(x), np.std(x)
    grid = np.linspace(center - 12 * scale, center + 12 * scale, 2001)[:, None]
    if np.max(np.abs(grid)) > 30.0:
        return
    with jax.enable_x64(True):
        theta, log_jacobian = jax.vmap(post.layout.constrain)(grid)
    density = np.exp(post.log_prob(theta) + np.asarray(log_jacobian))
    assert np.sum(density) * (grid[1, 0] - grid[0, 0]) == pytest.approx(1.0, abs=1e-3)


MODELS = {
    "density": (density, densities()),
    "regression": (regression, regressions()),
    "counts": (counts, count_models()),
    "binary": (one_parameter, binary_models()),
}


def run(name, num):
    model, arguments = MODELS[name]

    @settings(max_examples=num, **COMMON)
    @given(arguments)
    def law(args):
        ends_well(model, args)

    law()


@pytest.mark.parametrize(("name", "num"), [("density", 13), ("binary", 12)])
def test_random_models_end_well(name, num):
    run(name, num)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_many_random_models_end_well(name):
    run(name, 500)
