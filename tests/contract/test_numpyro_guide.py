"""One contract for NumPyro's continuous guides and for `AutoBernstein`, and what only the latter promises.

Random quantities are compared within 5 Monte Carlo standard errors (6e-7 false alarms each), seeds are fixed.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.handlers import block, seed
from numpyro.infer import (
    SVI,
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceMeanField_ELBO,
    autoguide,
    init_to_median,
    init_to_value,
    reparam,
)
from numpyro.infer.util import log_density
from scipy import stats
from scipy.integrate import trapezoid

from bernflow.errors import ArgumentError
from bernflow.flows.noise import NOISES
from bernflow.numpyro import AutoBernstein
from bernflow.numpyro.guide import BASES
from bernflow.precision import use_precision

Y = np.array([2.3, 3.4, 2.9, 3.8, 2.2], dtype=np.float32)
NUM = 20_000
LEVELS = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
STEPS = 200


@dataclass(frozen=True)
class Case:
    """A guide and what is implemented for it. NumPyro's own show that the contract is right: with the slow tests."""

    make: Callable
    one_dimension: bool = True
    density: bool = True
    quantiles: bool = True
    slow: bool = True


GUIDES = {
    "diagonal": Case(autoguide.AutoDiagonalNormal),
    "multivariate": Case(autoguide.AutoMultivariateNormal),
    "low-rank": Case(autoguide.AutoLowRankMultivariateNormal),
    "iaf": Case(autoguide.AutoIAFNormal, one_dimension=False, quantiles=False),
    "bnaf": Case(autoguide.AutoBNAFNormal, one_dimension=False, density=False, quantiles=False),
    "bernstein": Case(AutoBernstein, slow=False),
    "bernstein-logistic": Case(functools.partial(AutoBernstein, base="logistic", order=8, num_hidden=5)),
}


def guides(**wanted):
    """Run a test for all guides that can do what is wanted."""
    able = {name: case for name, case in GUIDES.items() if all(getattr(case, k) == v for k, v in wanted.items())}
    marks = {name: [pytest.mark.slow] if case.slow else [] for name, case in able.items()}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name]) for name in able])


def location_scale(y):
    """Two parameters, of which the second is positive, a function of them, and data in a plate."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.deterministic("ratio", mu / sigma)
    with numpyro.plate("observations", 5):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


def coin(y):
    """One parameter in (0, 1)."""
    p = numpyro.sample("p", dist.Beta(1.1, 1.1))
    with numpyro.plate("observations", 2):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


MODELS = {"two": (location_scale, Y), "one": (coin, np.array([1.0, 1.0], dtype=np.float32))}


def begin(svi, *args, key=0):
    """Initialize; inside of jit, because operation by operation it takes seconds."""
    return jax.jit(lambda key: svi.init(key, *args))(jax.random.key(key))


@functools.cache
def fitted(name, model_name="two"):
    """Train a guide for a short while; all tests look at the same run."""
    model, y = MODELS[model_name]
    guide = GUIDES[name].make(model)
    svi = SVI(model, guide, numpyro.optim.Adam(1e-2), Trace_ELBO(num_particles=4))
    result = svi.run(jax.random.key(0), STEPS, y, progress_bar=False, init_state=begin(svi, y))
    return guide, result.params, np.asarray(result.losses)


@functools.cache
def draws(name, model_name="two"):
    guide, params, _ = fitted(name, model_name)
    return guide.sample_posterior(jax.random.key(1), params, sample_shape=(NUM,))


def log_prob(guide, params, x):
    value = jax.jit(guide.get_posterior(params).log_prob)(x)
    # AutoDiagonalNormal describes its posterior as independent scalars.
    return value.sum(-1) if isinstance(guide, autoguide.AutoDiagonalNormal) else value


def latent_draws(guide, params):
    return guide.get_transform(params)(guide.get_base_dist().sample(jax.random.key(2), (NUM,)))


# What every guide promises.


@guides()
def test_training_lowers_the_loss(name):
    losses = fitted(name)[2]
    assert np.all(np.isfinite(losses))
    # Single losses can be huge: that of a draw with sigma near zero.
    assert np.median(losses[-50:]) < np.median(losses[:20]) - 1.0


@guides()
def test_draws_have_shapes_and_supports(name):
    guide, params, _ = fitted(name)
    for shape in ((), (3,), (2, 3)):
        sites = guide.sample_posterior(jax.random.key(1), params, sample_shape=shape)
        assert {site: value.shape for site, value in sites.items()} == dict.fromkeys(("mu", "sigma", "ratio"), shape)
        assert np.all(sites["sigma"] > 0)
        np.testing.assert_allclose(sites["ratio"], sites["mu"] / sites["sigma"], rtol=1e-5)


@guides()
def test_a_key_fixes_the_draws(name):
    guide, params, _ = fitted(name)
    first, again, other = (guide.sample_posterior(jax.random.key(k), params, sample_shape=(3,)) for k in (5, 5, 6))
    np.testing.assert_array_equal(first["mu"], again["mu"])
    assert np.all(first["mu"] != other["mu"])


@guides()
def test_transform_of_the_base_is_the_posterior(name):
    guide, params, _ = fitted(name)
    x = latent_draws(guide, params)
    assert x.shape == (NUM, 2)
    for site, value in (("mu", x[:, 0]), ("sigma", jnp.exp(x[:, 1]))):
        se = np.hypot(np.std(value), np.std(draws(name)[site])) / np.sqrt(NUM)
        assert abs(np.mean(value) - np.mean(draws(name)[site])) < 5.0 * se


@guides(density=True)
def test_density_of_a_draw_is_the_change_of_variables(name):
    guide, params, _ = fitted(name)
    transform, base = guide.get_transform(params), guide.get_base_dist()
    z = base.sample(jax.random.key(3), (100,))
    expected = base.log_prob(z) - transform.log_abs_det_jacobian(z, transform(z))
    np.testing.assert_allclose(log_prob(guide, params, transform(z)), expected, rtol=0, atol=2e-3)


@guides(density=True)
def test_density_integrates_to_one(name):
    guide, params, _ = fitted(name)
    x = np.asarray(latent_draws(guide, params))
    grids = [np.linspace(c.mean() - 12 * c.std(), c.mean() + 12 * c.std(), 241) for c in x.T]
    points = np.stack(np.meshgrid(*grids, indexing="ij"), -1).astype(np.float32)
    density = np.exp(np.asarray(log_prob(guide, params, points), dtype=np.float64))
    assert trapezoid(trapezoid(density, grids[1]), grids[0]) == pytest.approx(1.0, abs=2e-3)


@guides(one_dimension=True)
def test_density_integrates_to_one_in_one_dimension(name):
    guide, params, _ = fitted(name, "one")
    x = np.linspace(-15.0, 20.0, 4001)
    density = np.exp(np.asarray(log_prob(guide, params, x[:, None].astype(np.float32)), dtype=np.float64))
    assert trapezoid(density, x) == pytest.approx(1.0, abs=1e-3)


@guides(quantiles=True)
@pytest.mark.parametrize("model_name", MODELS)
def test_quantiles_are_those_of_draws(name, model_name):
    guide, params, _ = fitted(name, model_name)
    found, median = guide.quantiles(params, LEVELS.tolist()), guide.median(params)
    for site in ("p",) if model_name == "one" else ("mu", "sigma"):
        assert found[site].shape == LEVELS.shape
        assert np.all(np.diff(found[site]) > 0)
        np.testing.assert_allclose(found[site][2], median[site], rtol=1e-6)
        below = np.mean(np.asarray(draws(name, model_name)[site])[:, None] <= np.asarray(found[site]), axis=0)
        # Quantiles of AutoBernstein come from 10,000 draws of their own in two dimensions.
        se = np.sqrt(LEVELS * (1 - LEVELS) * (1 / NUM + 1 / 10_000))
        assert np.all(np.abs(below - LEVELS) < 5.0 * se)


@guides()
def test_predictive_takes_the_guide(name):
    guide, params, _ = fitted(name)
    predictive = Predictive(location_scale, guide=guide, params=params, num_samples=7)
    found, again = predictive(jax.random.key(4), None), predictive(jax.random.key(4), None)
    assert found["y"].shape == (7, 5)
    assert found["ratio"].shape == (7,)
    np.testing.assert_array_equal(found["y"], again["y"])
    sites = Predictive(guide, params=params, num_samples=7)(jax.random.key(4), None)
    assert {site: sites[site].shape for site in ("mu", "sigma")} == {"mu": (7,), "sigma": (7,)}


def test_steps_by_hand_are_those_of_run():
    guide = AutoBernstein(location_scale)
    svi = SVI(location_scale, guide, numpyro.optim.Adam(1e-2), Trace_ELBO(num_particles=4))
    state = svi.init(jax.random.key(0), Y)
    update, losses = jax.jit(svi.update), []
    for _ in range(5):
        state, loss = update(state, Y)
        losses.append(loss)
    np.testing.assert_allclose(losses, fitted("bernstein")[2][:5], rtol=1e-4)
    assert set(svi.get_params(state)) == set(fitted("bernstein")[1])


# What AutoBernstein promises beyond.


def new(model, *args, key=0, **choices):
    """Return a guide at its start and its parameters."""
    guide = AutoBernstein(model, **choices)
    svi = SVI(model, guide, numpyro.optim.Adam(1e-2), Trace_ELBO())
    return guide, svi.get_params(begin(svi, *args, key=key))


def moved(params, amount=0.3):
    """Change every parameter, so that nothing is where it started."""
    rng = np.random.default_rng(0)
    found = {k: v + jnp.asarray(amount * rng.normal(size=v.shape), v.dtype) for k, v in params.items()}
    dim = params["auto_loc"].shape[0]
    return found | {"auto_scale_tril": jnp.tril(found["auto_scale_tril"], -1) + 0.5 * jnp.eye(dim)}


def test_there_is_a_distribution_for_every_base_noise():
    assert set(BASES) == set(NOISES)


def test_start_is_normal_around_the_given_point():
    init = init_to_value(values={"mu": 1.5, "sigma": 0.7})
    guide, params = new(location_scale, Y, init_loc_fn=init, init_scale=0.2)
    x = np.random.default_rng(1).normal([1.5, np.log(0.7)], 0.2, size=(50, 2)).astype(np.float32)
    expected = stats.norm([1.5, np.log(0.7)], 0.2).logpdf(x).sum(-1)
    np.testing.assert_allclose(log_prob(guide, params, x), expected, rtol=0, atol=1e-3)


def test_logistic_noise_starts_nearly_normal():
    guide, params = new(coin, MODELS["one"][1], init_loc_fn=init_to_value(values={"p": 0.5}), base="logistic")
    x = np.linspace(-1.0, 1.0, 2001)
    log_q = np.asarray(log_prob(guide, params, x[:, None].astype(np.float32)), dtype=np.float64)
    assert trapezoid(np.exp(log_q) * (log_q - stats.norm(0.0, 0.1).logpdf(x)), x) < 0.01


@pytest.mark.parametrize(
    ("loss", "optimizer"),
    [
        pytest.param(TraceMeanField_ELBO(num_particles=4), optax.adam(1e-2), marks=pytest.mark.slow, id="mean-field"),
        pytest.param(RenyiELBO(alpha=0.5, num_particles=4), numpyro.optim.RMSProp(1e-2), id="renyi"),
    ],
)
def test_other_bounds_and_optimizers_train(loss, optimizer):
    svi = SVI(location_scale, AutoBernstein(location_scale), optimizer, loss)
    losses = np.asarray(svi.run(jax.random.key(0), 200, Y, progress_bar=False).losses)
    assert losses[-50:].mean() < losses[:10].mean() - 1.0


def test_double_precision():
    with use_precision("float64"):
        guide, params = new(location_scale, Y.astype(np.float64))
        assert {value.dtype for value in params.values()} == {np.dtype("float64")}

        @jax.jit
        def evaluate(params):
            posterior = guide.get_posterior(params)
            x, intermediates = posterior.sample_with_intermediates(jax.random.key(0), (200,))
            return posterior.log_prob(x), posterior.log_prob(x, intermediates)

        by_inverse, by_forward = evaluate(moved(params))
        assert by_inverse.dtype == np.float64
        np.testing.assert_allclose(by_inverse, by_forward, rtol=0, atol=1e-9)


def train(guide, model, *args, steps=1000, num_particles=16, **static):
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-2, steps))
    svi = SVI(model, guide, optimizer, Trace_ELBO(num_particles=num_particles), **static)
    return svi.run(jax.random.key(0), steps, *args, progress_bar=False, init_state=begin(svi, *args)).params


@pytest.mark.parametrize("path_gradient", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_fits_a_beta_posterior(path_gradient):
    # Beta(1.1, 1.1) and two heads: Beta(3.1, 1.1). KL by quadrature on the unconstrained scale.
    guide = AutoBernstein(coin, path_gradient=path_gradient)
    params = train(guide, coin, MODELS["one"][1])
    x = np.linspace(-10.0, 20.0, 6001)
    p = 1 / (1 + np.exp(-x))
    log_p = stats.beta(3.1, 1.1).logpdf(p) + np.log(p) + np.log1p(-p)
    log_q = np.asarray(log_prob(guide, params, x[:, None].astype(np.float32)), dtype=np.float64)
    assert trapezoid(np.exp(log_q) * (log_q - log_p), x) < (5e-4 if path_gradient else 3e-3)
    # In one dimension quantiles are exact.
    mass = [
        trapezoid(np.exp(log_q[x <= q]), x[x <= q]) for q in stats.logistic.ppf(guide.quantiles(params, LEVELS)["p"])
    ]
    np.testing.assert_allclose(mass, LEVELS, rtol=0, atol=2e-3)


def regression(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, 0.5), obs=y)


def test_fits_a_correlated_normal_posterior():
    x = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    y = np.array([0.2, 0.9, 2.2, 2.7])
    covariance = np.linalg.inv(np.eye(2) / 4.0 + x.T @ x / 0.25)
    exact = stats.multivariate_normal(covariance @ x.T @ y / 0.25, covariance)
    guide = AutoBernstein(regression, path_gradient=True, init_loc_fn=init_to_median)
    params = train(guide, regression, x.astype(np.float32), y.astype(np.float32))
    posterior = guide.get_posterior(params)
    draws, intermediates = posterior.sample_with_intermediates(jax.random.key(3), (NUM,))
    difference = np.asarray(posterior.log_prob(draws, intermediates)) - exact.logpdf(np.asarray(draws))
    assert np.mean(difference) < 1e-3 + 5.0 * np.std(difference) / np.sqrt(NUM)
    assert np.std(difference) < 0.05


def test_path_gradients_have_the_same_mean():
    # Of the entropy, whose gradient they change.
    guide, start = new(location_scale, Y, order=6, num_hidden=4)
    params = moved(start, 0.1)

    def gradients(path_gradient):
        guide.path_gradient = path_gradient

        def log_q(params, key):
            posterior = guide.get_posterior(params)
            return posterior.log_prob(*posterior.sample_with_intermediates(key))

        keys = jax.random.split(jax.random.key(0), 4000)
        values, grads = jax.jit(jax.vmap(jax.value_and_grad(log_q), (None, 0)))(params, keys)
        return values, jax.tree.map(lambda g: np.asarray(g, dtype=np.float64).reshape(len(keys), -1), grads)

    plain_values, plain = gradients(False)
    path_values, path = gradients(True)
    np.testing.assert_allclose(plain_values, path_values, rtol=1e-5, atol=1e-5)
    for name in plain:
        difference = plain[name] - path[name]
        se = difference.std(0) / np.sqrt(len(difference))
        assert np.all(np.abs(difference.mean(0)) <= 5.0 * se + 1e-6), name
    assert np.max(np.abs(plain["auto_loc"] - path["auto_loc"])) > 0.1


def minibatches(y, batch_size):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("observations", len(y), subsample_size=batch_size) as index:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[index])


def test_subsampled_plates():
    y = jnp.asarray(np.random.default_rng(0).normal(1.0, 1.0, 200))
    guide = AutoBernstein(minibatches, order=8)
    params = train(guide, minibatches, y, num_particles=1, batch_size=50)
    mu = guide.sample_posterior(jax.random.key(1), params, sample_shape=(4000,))["mu"]
    exact_sd = 1 / np.sqrt(200 + 1 / 25)
    assert abs(np.mean(mu) - y.sum() * exact_sd**2) < 0.5 * exact_sd
    assert np.std(mu) == pytest.approx(exact_sd, rel=0.3)


def empirical_bayes(y):
    scale = numpyro.param("prior_scale", 1.0, constraint=dist.constraints.positive)
    with numpyro.plate("groups", 3):
        theta = numpyro.sample("theta", dist.Normal(0.0, scale))
        numpyro.sample("y", dist.Normal(theta, 0.1), obs=y)


def test_parameters_of_the_model_are_trained_too():
    # Maximum likelihood of the prior's variance: mean of y^2 minus the variance of the noise.
    y = np.array([2.0, -1.0, 3.0], dtype=np.float32)
    guide = AutoBernstein(empirical_bayes, init_loc_fn=init_to_median)
    params = train(guide, empirical_bayes, y, steps=500, num_particles=4)
    assert params["prior_scale"] == pytest.approx(np.sqrt(np.mean(y**2) - 0.01), rel=0.05)
    assert set(guide.sample_posterior(jax.random.key(0), params)) == {"theta"}


def test_parameters_mean_the_same_in_another_guide():
    first, params, _ = fitted("bernstein")
    second, _ = new(location_scale, Y, key=1)
    x = np.random.default_rng(2).normal(size=(20, 2)).astype(np.float32)
    np.testing.assert_array_equal(log_prob(first, params, x), log_prob(second, params, x))


def test_a_guide_first_run_inside_of_a_transformation_can_be_used_outside():
    params = fitted("bernstein")[1]
    guide = AutoBernstein(location_scale)
    Predictive(guide, params=params, num_samples=3)(jax.random.key(0), Y)
    np.testing.assert_array_equal(guide.median(params)["mu"], fitted("bernstein")[0].median(params)["mu"])


def hierarchy(y):
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(effect, spread), obs=y)


def test_positive_sites_come_first_in_the_flow():
    guide, start = new(hierarchy, Y[:2])
    jacobian = np.asarray(jax.jacobian(guide.get_transform(moved(start)))(jnp.array([0.3, -0.5, 0.8])))
    # Rows are in NumPyro's order: effect, effect, spread.
    np.testing.assert_array_equal(jacobian != 0, [[True, True, False], [True, True, True], [True, False, False]])


def test_quantiles_increase_where_the_support_has_an_upper_bound():
    def model():
        x = numpyro.sample("x", dist.TruncatedNormal(0.0, 1.0, high=0.5))
        numpyro.deterministic("square", x**2)

    guide, params = new(model, init_scale=1.0)
    found = guide.quantiles(params, [[0.1, 0.5], [0.8, 0.9]])
    assert found["x"].shape == (2, 2)
    assert np.all(np.diff(found["x"].ravel()) > 0)
    assert np.all(np.diff(found["square"].ravel()) > 0)
    assert guide.quantiles(params, 0.3)["x"].shape == ()


def test_quantiles_follow_number_and_key():
    guide, params, _ = fitted("bernstein")
    keys = (1, jax.random.key(2), 1)
    few, other, again = (guide.quantiles(params, 0.5, num_samples=20, rng_key=key)["mu"] for key in keys)
    assert few == again
    assert few != other


def test_one_of_several_guides():
    guide = autoguide.AutoGuideList(location_scale)
    inner = block(location_scale, hide=["sigma", "ratio"])
    guide.append(AutoBernstein(inner, prefix="mu"))
    guide.append(autoguide.AutoDelta(block(location_scale, expose=["sigma"])))
    svi = SVI(location_scale, guide, numpyro.optim.Adam(1e-2), Trace_ELBO())
    params = svi.run(jax.random.key(0), 20, Y, progress_bar=False).params
    assert guide.sample_posterior(jax.random.key(1), params, Y)["mu"].shape == ()
    assert guide.median(params)["mu"].shape == ()


def test_neural_transport():
    guide, params, _ = fitted("bernstein")
    neutra = reparam.NeuTraReparam(guide, params)
    z = jnp.array([0.4, -0.9])
    found, _ = log_density(neutra.reparam(location_scale), (Y,), {}, {"auto_shared_latent": z})
    x = guide.get_transform(params)(z)
    theta = {"mu": x[0], "sigma": jnp.exp(x[1])}
    expected = log_density(location_scale, (Y,), {}, theta)[0] + x[1]
    expected += jnp.linalg.slogdet(jax.jacobian(guide.get_transform(params))(z))[1]
    assert found == pytest.approx(float(expected), abs=1e-3)


# Errors.


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"order": 0}, "order=0: expected a whole number of at least 1"),
        ({"order": 2.5}, r"order=2\.5: expected a whole number"),
        ({"num_hidden": -3}, "num_hidden=-3: expected a whole number"),
        ({"base": "cauchy"}, "base='cauchy' is unknown: expected one of normal, logistic"),
        ({"init_scale": 0.0}, r"init_scale=0\.0: expected a finite number above 0"),
        ({"init_scale": "wide"}, "init_scale='wide': expected a finite number"),
        ({"prefix": 3}, "prefix=3: expected a string"),
        ({"init_loc_fn": 1.0}, r"init_loc_fn=1\.0: expected a function"),
        ({"path_gradient": "yes"}, "path_gradient='yes': expected True or False"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_arguments(choices, message):
    with pytest.raises(ArgumentError, match=message):
        AutoBernstein(location_scale, **choices)


def test_a_model_must_be_a_function():
    with pytest.raises(ArgumentError, match="model=None: expected a function"):
        AutoBernstein(None)


def test_a_guide_must_have_seen_its_model():
    params = fitted("bernstein")[1]
    guide = AutoBernstein(location_scale)
    with pytest.raises(ArgumentError, match=r"has not been initialized yet: run svi\.init"):
        guide.median(params)
    seed(guide, jax.random.key(0))(Y)
    assert guide.median(params)["mu"].shape == ()


@pytest.mark.parametrize("method", ["sample", "transform", "median"])
def test_parameters_of_another_guide(method):
    guide, params, _ = fitted("bernstein")
    call = {
        "sample": lambda p: guide.sample_posterior(jax.random.key(0), p),
        "transform": guide.get_transform,
        "median": guide.median,
    }[method]
    with pytest.raises(ArgumentError, match=r"params has no 'auto_inner_log_scale': expected what svi\.get_params"):
        call({})
    with pytest.raises(ArgumentError, match=r"params\['auto_bias'\] has shape \(2, 10\): expected \(2, 22\)"):
        call(params | {"auto_bias": np.zeros((2, 10))})


@pytest.mark.parametrize("levels", [[0.0, 0.5], 1.0, [float("nan")]], ids=str)
def test_quantiles_are_between_zero_and_one(levels):
    guide, params, _ = fitted("bernstein")
    with pytest.raises(ArgumentError, match="expected probabilities strictly between 0 and 1"):
        guide.quantiles(params, levels)
