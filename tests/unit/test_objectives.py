import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri

import bernflow as bf
from bernflow import objectives
from bernflow.flows.affine import DiagonalAffine, TriangularAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.gaussian import LocationScale
from bernflow.flows.mixture import Mixture
from bernflow.objectives import Noise
from bernflow.target import Target

# Means are compared within this many standard errors: of 100 numbers, one in 10^4 tests is off by chance.
NUM_SE = 5.0

# Compiled as a whole: faster than operation by operation.
path_gradient = eqx.filter_jit(objectives.path_gradient)
pathwise_gradient = eqx.filter_jit(objectives.pathwise_gradient)
stratified_noise = eqx.filter_jit(objectives.stratified_noise)
antithetic_noise = eqx.filter_jit(objectives.antithetic_noise)
mixture_gradient = eqx.filter_jit(objectives.mixture_gradient)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def make_target(log_density, dim):
    return Target(bf.from_log_density(lambda theta: log_density(theta["x"]), init={"x": jnp.zeros(dim)}))


def banana(x):
    return -0.5 * x[0] ** 2 - 2.0 * (x[1] - 0.5 * x[0] ** 2) ** 2


def make_flow(dim=2, noise="normal", amount=0.2):
    """A Bernstein flow whose trained arrays were moved at random."""
    outer = TriangularAffine(jnp.zeros(dim), jnp.eye(dim))
    flow = BernsteinFlow(jax.random.key(0), outer, order=4, width=4, noise=noise)
    rng = np.random.default_rng(0)

    def move(path, leaf):
        fixed = "start_" in jax.tree_util.keystr(path)
        return leaf if fixed else leaf + amount * rng.normal(size=leaf.shape)

    return jax.tree_util.tree_map_with_path(move, flow)


def flat(gradient, num):
    """Put the gradients of `num` draws side by side: (num, parameters)."""
    leaves = jax.tree.leaves(eqx.filter(gradient, eqx.is_array))
    return np.concatenate([np.asarray(leaf).reshape(num, -1) for leaf in leaves], axis=1)


@eqx.filter_jit
def path_gradients(flow, target, noise, power):
    """Return the path gradient of every draw by itself."""

    def one(z, log_ratio):
        return path_gradient(flow, target, Noise(z[None], log_ratio[None]), power).gradient

    return jax.vmap(one)(*noise)


@eqx.filter_jit
def pathwise_gradients(flow, target, z):
    return jax.vmap(lambda z: pathwise_gradient(flow, target, z[None]).gradient)(z)


@eqx.filter_jit
def transform(flow, z):
    return jax.vmap(flow.transform_and_log_det)(z)


def standard_error(values):
    return values.std(0) / np.sqrt(len(values))


@pytest.mark.parametrize("stratified", [False, True])
def test_path_and_pathwise_gradients_have_the_same_expectation(stratified):
    flow, target, num = make_flow(), make_target(banana, 2), 20_000
    z = flow.sample_base(jax.random.key(1), num)
    noise = Noise(z, jnp.zeros(num))
    if stratified:
        # One particle at a time, so that draws are independent and standard errors mean what they say.
        noise = jax.vmap(lambda key: stratified_noise(flow, jax.random.split(key), 1))(
            jax.random.split(jax.random.key(2), num)
        )
        noise = Noise(noise.z[:, 0], noise.log_ratio[:, 0])
    path = flat(path_gradients(flow, target, noise, jnp.asarray(0.0)), num)
    pathwise = flat(pathwise_gradients(flow, target, z), num)
    independent = np.hypot(standard_error(path), standard_error(pathwise))
    error = independent if stratified else standard_error(path - pathwise)
    assert np.mean(np.abs(pathwise.mean(0)) > 10 * standard_error(pathwise)) > 0.2, (
        "the test must have something to see"
    )
    assert np.all(np.abs(path.mean(0) - pathwise.mean(0)) <= NUM_SE * error + 1e-12)


def reverse_or_forward(log_ratio):
    """f(w) with f''(w) w^2 = max(1, w): the reverse KL where q has too much, the forward KL where it has too little."""
    w = jnp.exp(log_ratio)
    return jnp.where(log_ratio < 0.0, w - 1.0 - log_ratio, w * log_ratio - w + 1.0)


def test_power_one_is_the_reverse_kl_where_q_has_too_much_and_the_forward_kl_elsewhere():
    def log_p(x):
        return -0.5 * ((x[0] - 0.3) / 0.9) ** 2

    outer = LocationScale(DiagonalAffine(jnp.zeros(1), jnp.ones(1)))

    def flow_at(parameters):
        return eqx.tree_at(
            lambda flow: (flow.outer.shift, flow.outer.log_diagonal), outer, (parameters[:1], parameters[1:])
        )

    at = jnp.array([0.1, jnp.log(1.05)])
    # Quantiles instead of draws: no Monte Carlo error.
    num = 100_001
    z = jnp.asarray(ndtri((np.arange(num) + 0.5) / num))[:, None]
    estimate = path_gradient(flow_at(at), make_target(log_p, 1), Noise(z, jnp.zeros(num)), jnp.asarray(1.0))
    found = np.array([estimate.gradient.outer.shift[0], estimate.gradient.outer.log_diagonal[0]])
    usual = jnp.sort(estimate.log_weights)[num // 2]
    x = jnp.linspace(-12.0, 12.0, 200_001)

    def divergence(parameters):
        loc, log_scale = parameters
        log_q = -0.5 * ((x - loc) / jnp.exp(log_scale)) ** 2 - log_scale - 0.5 * jnp.log(2 * jnp.pi)
        log_ratio = jax.vmap(log_p)(x[:, None]) - log_q - usual
        return jnp.sum(jnp.exp(log_q) * reverse_or_forward(log_ratio)) * (x[1] - x[0])

    np.testing.assert_allclose(found, jax.grad(divergence)(at), rtol=1e-3)
    np.testing.assert_array_equal(estimate.gradient.outer.start_loc, 0.0)


def test_a_draw_far_outside_pulls_although_it_counts_nothing_in_the_forward_kl():
    # Beyond 4 the posterior has nothing: of such a draw alone the weight is exp(-200).
    target = make_target(lambda x: -0.5 * x[0] ** 2 - 200.0 * jnp.maximum(x[0] - 4.0, 0.0), 1)
    flow = LocationScale(DiagonalAffine(jnp.zeros(1), jnp.ones(1)))
    z = jnp.concatenate([jnp.zeros((30, 1)), jnp.full((1, 1), 5.0)])
    estimate = path_gradient(flow, target, Noise(z, jnp.zeros(31)), jnp.asarray(1.0))
    np.testing.assert_allclose(estimate.gradient.outer.shift, 200.0 / 31)


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_path_gradient_vanishes_for_every_draw_at_the_posterior(power):
    tril = jnp.array([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [-1.0, 0.3, 0.1]])
    loc = jnp.array([1.0, -2.0, 3.0])
    target = make_target(lambda x: -0.5 * jnp.sum(jnp.linalg.solve(tril, x - loc) ** 2), 3)
    flow = BernsteinFlow(jax.random.key(0), TriangularAffine(loc, tril), order=5, width=4)
    noise = stratified_noise(flow, jax.random.split(jax.random.key(1)), 50)
    gradients = flat(path_gradients(flow, target, noise, jnp.asarray(power)), 50)
    np.testing.assert_allclose(gradients, 0.0, atol=1e-9)
    # The pathwise estimator is noisy even there.
    assert np.abs(flat(pathwise_gradients(flow, target, noise.z), 50)).max() > 0.1


def test_log_weights_are_those_of_the_draws():
    flow, target = make_flow(), make_target(banana, 2)
    z = antithetic_noise(flow, jax.random.key(1), 7)
    assert z.shape == (7, 2)
    np.testing.assert_array_equal(z[:3], -z[4:])
    x, log_det = transform(flow, z)
    expected = jax.vmap(target.log_density)(x) - jax.vmap(flow.base_log_prob)(z) + log_det
    for estimate in (
        pathwise_gradient(flow, target, z),
        path_gradient(flow, target, Noise(z, jnp.zeros(7)), jnp.asarray(0.0)),
    ):
        np.testing.assert_allclose(estimate.log_weights, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("noise", "variance", "fourth"), [("normal", 1.0, 3.0), ("logistic", np.pi**2 / 3, 7 * np.pi**4 / 15)]
)
def test_stratified_noise_has_the_moments_of_the_base(noise, variance, fourth):
    num = 200_000
    flow = make_flow(3, noise)
    drawn = stratified_noise(flow, jax.random.split(jax.random.key(3)), num)
    z, ratio = np.asarray(drawn.z), np.exp(drawn.log_ratio)
    assert ratio.max() <= 2.0 + 1e-12
    moments = {
        "one": (np.ones((num, 1)), 1.0),
        "mean": (z, 0.0),
        "variance": (z**2, variance),
        "fourth": (z**4, fourth),
        "products": (z * np.roll(z, 1, axis=1), 0.0),
    }
    for name, (values, expected) in moments.items():
        weighted = ratio[:, None] * values
        # Mirrored pairs depend on each other: their even moments vary twice as much.
        error = np.sqrt(2) * standard_error(weighted)
        assert np.all(np.abs(weighted.mean(0) - expected) < NUM_SE * error), name
    assert np.abs(z).max() > np.abs(np.asarray(flow.sample_base(jax.random.key(3), num))).max()


@pytest.mark.parametrize("zero_where", [lambda x: x[0] > 0, lambda x: x[0] > -jnp.inf], ids=["half", "everywhere"])
@pytest.mark.parametrize("power", [0.0, 1.0])
def test_zero_densities_leave_the_gradient_finite(zero_where, power):
    target = make_target(lambda x: jnp.where(zero_where(x), -jnp.inf, banana(x)), 2)
    flow = make_flow()
    noise = stratified_noise(flow, jax.random.split(jax.random.key(1)), 32)
    for estimate in (
        pathwise_gradient(flow, target, noise.z),
        path_gradient(flow, target, noise, jnp.asarray(power)),
    ):
        assert np.isneginf(estimate.log_weights).any()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(estimate.gradient))


def test_draws_with_a_broken_gradient_are_left_out_of_the_path_gradient():
    @jax.custom_jvp
    def broken(u):
        return u

    broken.defjvp(lambda primals, tangents: (primals[0], tangents[0] * jnp.where(primals[0] > 0, jnp.nan, 1.0)))
    target = make_target(lambda x: banana(jnp.stack([broken(x[0]), x[1]])), 2)
    flow = make_flow()
    noise = Noise(antithetic_noise(flow, jax.random.key(1), 32), jnp.zeros(32))
    gradient = path_gradient(flow, target, noise, jnp.asarray(0.0)).gradient
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    x, _ = transform(flow, noise.z)
    kept = Noise(noise.z[x[:, 0] <= 0], noise.log_ratio[x[:, 0] <= 0])
    expected = path_gradient(flow, make_target(banana, 2), kept, jnp.asarray(0.0)).gradient
    for found, exact in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, exact, atol=1e-10)


def narrow(x):
    """A density with tails lighter than those of the mixture, so that weights are bounded."""
    return -0.9 * x[0] ** 2 - 0.9 * (x[1] - 0.2 * x[0] ** 2) ** 2 - 0.02 * x[0] ** 4


def make_mixture(amount):
    """Two overlapping parts with weights of their own."""
    parts = [make_flow(amount=amount), make_flow(amount=0.5 * amount)]
    parts[1] = eqx.tree_at(lambda flow: flow.outer.shift, parts[1], parts[1].outer.shift + jnp.array([0.5, -0.25]))
    return Mixture(tuple(parts), jnp.log(jnp.array([0.3, 0.7])))


@functools.cache
def mixture_and_its_target():
    """A mixture and the target that it is; one of both for all tests, so that its gradient is compiled once."""
    mixture = make_mixture(0.2)
    return mixture, make_target(lambda x: mixture.log_prob(x[None])[0] + 3.0, 2)


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_a_mixture_that_is_the_posterior_has_no_gradient(power):
    mixture, target = mixture_and_its_target()
    noise = stratified_noise(mixture.components[0], jax.random.split(jax.random.key(1)), 16, (2,))
    found = mixture_gradient(mixture, target, noise, jnp.asarray(power))
    np.testing.assert_allclose(found.log_weights, 3.0, atol=1e-8)
    np.testing.assert_allclose(flat(found.gradient, 1), 0.0, atol=1e-7)


@functools.cache
def mixture_and_direction():
    """A mixture, and a random direction in which its parameters move."""
    mixture, rng = make_mixture(0.1), np.random.default_rng(1)

    def random(path, leaf):
        # Not along what is fixed, nor along the powers of tails, whose gradient passes where they are cut off.
        moves = not any(name in jax.tree_util.keystr(path) for name in ("start_", "tails"))
        return jnp.asarray(rng.normal(size=leaf.shape) * moves)

    return mixture, jax.tree_util.tree_map_with_path(random, eqx.filter(mixture, eqx.is_inexact_array))


SPACING = 18.0 / 300
STEP = 1e-4


@functools.cache
def on_a_grid():
    """Return log p, and log q a step ahead along the direction and a step behind, on a grid of the plane."""
    mixture, direction = mixture_and_direction()
    grid = jnp.linspace(-9.0, 9.0, 301)
    x = jnp.stack(jnp.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)

    @eqx.filter_jit
    def log_q_at(step, x):
        return eqx.apply_updates(mixture, jax.tree.map(lambda by: step * by, direction)).log_prob(x)

    return jax.vmap(narrow)(x), log_q_at(jnp.asarray(STEP), x), log_q_at(jnp.asarray(-STEP), x)


def divergence(log_p, log_q, usual, power):
    """The divergence of weights in units of a usual one."""
    log_ratio = log_p - usual - log_q
    f = jnp.where(power == 0.0, -log_ratio, reverse_or_forward(log_ratio))
    return jnp.sum(jnp.exp(log_q) * f) * SPACING**2


@eqx.filter_jit
def derivatives(mixture, direction, target, noise, power, values_on_grid):
    """Return the derivative along the direction by the gradient, and by the grid, for every batch of noise."""
    log_p, ahead, behind = values_on_grid

    def one(noise):
        found = objectives.mixture_gradient(mixture, target, noise, power)
        usual = jnp.sort(found.log_weights)[found.log_weights.size // 2]
        parts = jax.tree.map(lambda g, by: jnp.sum(g * by), eqx.filter(found.gradient, eqx.is_inexact_array), direction)
        exact = (divergence(log_p, ahead, usual, power) - divergence(log_p, behind, usual, power)) / (2 * STEP)
        return sum(jax.tree.leaves(parts)), exact

    return jax.lax.map(one, noise)


narrow_target = functools.cache(lambda: make_target(narrow, 2))


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_the_gradient_of_a_mixture_is_that_of_the_divergence(power, monkeypatch):
    """Both divergences, by a grid: the derivative along a random direction."""
    monkeypatch.setattr(objectives, "MAX_WEIGHT", 1e9)  # a bias that is meant
    mixture, direction = mixture_and_direction()
    # Many draws at once: the median of few goes along with their gradients.
    noise = stratified_noise(mixture.components[0], jax.random.split(jax.random.key(2)), 2000, (50, 2))
    found = derivatives(mixture, direction, narrow_target(), noise, jnp.asarray(power), on_a_grid())
    values, exact = map(np.asarray, found)
    error = standard_error(values - exact)
    assert np.mean(values - exact) == pytest.approx(0.0, abs=NUM_SE * error)
    assert abs(exact.mean()) > 10 * error
