"""The parts that flows are made of: where they start, what they may see, and what the contract cannot tell."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bernflow.errors import ArgumentError, FileFormatError
from bernflow.flows.affine import DiagonalAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.bernstein import centered_polynomial, increments, inverse_increments, invert_centered
from bernflow.flows.conditioner import MaskedNetwork, Skip, hidden_degrees
from bernflow.flows.families import FAMILIES, Spec, build, build_bernstein, build_paper, get_family
from bernflow.flows.gaussian import LocationScale
from bernflow.flows.marginals import HALF_WIDTH, ORDER, Marginals
from bernflow.flows.mixture import Mixture
from bernflow.flows.noise import NOISES
from bernflow.flows.paper import BOUND, PaperFlow
from bernflow.flows.tails import MAX_POWER, POWER_UNIT, apply_tails, raw_powers
from bernflow.flows.wide import Followers, WideBernsteinFlow
from bernflow.objectives import antithetic_noise

KEY = jax.random.key(0)
WIDTH = 400


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def is_spread(values, sd):
    """Tell whether values have a standard deviation, by four standard errors of its estimate."""
    values = np.asarray(values).ravel()
    return abs(values.std() / sd - 1.0) < 4.0 / np.sqrt(2.0 * values.size)


def is_uniform(values, bound):
    """Tell whether values fill an interval about zero; one of 10,000 samples would not seem to."""
    return stats.kstest(np.asarray(values).ravel(), stats.uniform(-bound, 2.0 * bound).cdf).pvalue > 1e-4


def test_hidden_units_of_a_conditioner_are_spread_evenly_over_all_inputs_but_the_last():
    np.testing.assert_array_equal(hidden_degrees(4, 6), [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(hidden_degrees(3, 5), [0, 0, 0, 1, 1])


def test_a_new_network_has_units_of_variance_one_and_changes_nothing():
    network = MaskedNetwork(KEY, 5, 3, WIDTH)
    degree = hidden_degrees(5, WIDTH)
    for last in range(4):
        unit = degree == last
        # A unit of degree d sees the inputs 0..d, and the units of its own and lower degrees.
        assert is_spread(network.w1[unit], 1.0 / np.sqrt(last + 1))
        assert is_spread(network.w2[unit], 1.0 / np.sqrt(100 * (last + 1)))
    assert is_spread(network.b1, 0.3)
    assert not np.any(network.b2)
    assert network.out.shape == (5, 3, WIDTH)
    assert not np.any(network.out)


def test_the_network_of_the_paper_starts_as_keras_does():
    network = MaskedNetwork(KEY, 5, 3, WIDTH, glorot=True)
    assert is_uniform(network.w1, np.sqrt(6.0 / (5 + WIDTH)))
    assert is_uniform(network.w2, np.sqrt(6.0 / (2 * WIDTH)))
    assert is_uniform(network.out, np.sqrt(6.0 / (WIDTH + 5 * 3)))
    assert not np.any(network.b1)
    assert not np.any(network.b2)


def test_a_dimension_sees_the_network_of_earlier_dimensions_only():
    network = MaskedNetwork(KEY, 4, 2, 9, glorot=True)
    jacobian = jax.jit(jax.jacobian(lambda z: network.readout() @ network.hidden(z)))(jnp.array([0.3, -0.2, 0.5, 0.1]))
    seen = np.any(np.abs(jacobian) > 1e-12, axis=1)
    np.testing.assert_array_equal(seen, np.tri(4, 4, -1, dtype=bool))


def test_the_derivative_of_the_hidden_layer_is_that_of_autodiff():
    network = MaskedNetwork(KEY, 4, 2, 9)
    z = jnp.array([0.3, -0.2, 0.5, 0.1])
    masked = network.masked()
    np.testing.assert_allclose(masked.hidden_by_z(masked.layers(z)), jax.jacobian(network.hidden)(z), atol=1e-6)


def test_skip_terms_of_the_conditioner_and_their_slopes():
    rng = np.random.default_rng(0)
    skip = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), Skip(3, 3))
    e = jnp.array([0.4, -2.0, 1.5])
    far = e / np.exp(skip.log_knee)
    shift, log_scale = skip.terms(e)
    np.testing.assert_allclose(shift, skip.shift @ e)
    np.testing.assert_allclose(log_scale, skip.log_scale @ e + skip.spread @ np.log(np.sqrt(1.0 + far**2)))
    for slope, exact in zip(skip.slopes(e), jax.jacobian(skip.terms)(e), strict=True):
        np.testing.assert_allclose(slope, exact)
    lower = skip.strictly_lower()
    for matrix in (lower.shift, lower.log_scale, lower.spread):
        assert not np.any(np.triu(matrix))
        assert np.all(matrix[np.tril_indices(3, -1)])
    np.testing.assert_array_equal(lower.log_knee, skip.log_knee)
    for slope, exact in zip(lower.slopes(e), jax.jacobian(lower.terms)(e), strict=True):
        np.testing.assert_allclose(slope, exact)


def test_the_scales_of_a_multivariate_student_are_exact():
    degrees, dim = 3.0, 4
    x = np.array([0.5, -30.0, 2.0, 1e4])
    # Given the earlier ones, x_i / scale_i is Student-t with one more degree of freedom for each of them.
    before = np.concatenate([[0.0], np.cumsum(x**2)[:-1]])
    dofs = degrees + np.arange(dim)
    scale = np.sqrt((degrees + before) / dofs)
    skip = Skip(dim, dim)
    skip = eqx.tree_at(
        lambda s: (s.spread, s.log_knee), skip, (jnp.tril(jnp.ones((dim, dim)), -1), jnp.asarray(0.5 * np.log(dofs)))
    )
    found = np.exp(skip.terms(jnp.asarray(x / scale))[1]) * np.sqrt(degrees / dofs)
    np.testing.assert_allclose(found, scale, rtol=1e-5)


def test_powers_of_a_tail_become_its_weights():
    powers = jnp.array([[0.1, 0.3], [0.0, 5.0]])
    u = jnp.array([[-2.0, 3.0], [-2.0, 3.0]])
    tailed = jax.vmap(lambda tail, u: jax.vmap(lambda u: apply_tails(tail, u).value)(u))(raw_powers(powers), u)
    capped = jnp.minimum(powers, MAX_POWER)
    np.testing.assert_allclose(tailed, u * np.exp(0.5 * capped * u**2), rtol=1e-5)


def test_far_out_a_scale_grows_like_a_power():
    skip = eqx.tree_at(lambda s: s.log_scale, Skip(1, 1), jnp.full((1, 1), 2.0))

    def log_scale(e):
        return float(skip.terms(jnp.array([e]))[1][0])

    assert [log_scale(e) for e in (-8.0, -3.0, 8.0)] == [-16.0, -6.0, 16.0]
    np.testing.assert_allclose(log_scale(1e9) - log_scale(1e7), 2.0 * np.log(1e2), rtol=1e-6)
    np.testing.assert_allclose(log_scale(-1e9), -log_scale(1e9))
    for e in (-1e9, -8.5, 7.9, 8.0 + 1e-9, 30.0):
        (slope,) = skip.slopes(jnp.array([e]))[1][0]
        np.testing.assert_allclose(slope, jax.grad(lambda e: skip.terms(e[None])[1][0])(jnp.asarray(e)), rtol=1e-9)


def test_followers_start_with_hidden_units_of_variance_one():
    followers = Followers(KEY, 3, 4, order=5, width=WIDTH, noise="normal")
    assert is_spread(followers.w1, 1.0 / np.sqrt(4))
    assert is_spread(followers.w2, 1.0 / np.sqrt(WIDTH))
    assert is_spread(followers.b1, 0.3)
    for start in (followers.b2, followers.out, followers.inner_shift, followers.log_scale, followers.tails):
        assert not np.any(start)


def second_differences(function, edge, margin):
    """Return second differences of a function outside and inside of both ends of an interval about zero."""
    places = np.array([-edge - margin, -edge + margin, edge - margin, edge + margin])
    values = jax.jit(jax.vmap(function))((places[:, None] + margin / 2 * np.array([-1.0, 0.0, 1.0])).ravel())
    return np.diff(np.asarray(values).reshape(4, 3), 2)[:, 0]


@pytest.mark.parametrize(("noise", "half_width"), [("normal", 4.0), ("logistic", 8.0)])
def test_polynomials_cover_the_noise_up_to_their_half_width(noise, half_width):
    assert NOISES[noise].half_width == half_width
    grid = np.linspace(-half_width, half_width, 21)
    normal = grid if noise == "normal" else stats.norm.ppf(stats.logistic.cdf(grid))
    np.testing.assert_allclose(NOISES[noise].start(20), normal)
    followers = Followers(KEY, 1, 1, order=5, width=2, noise=noise)
    raw = jnp.asarray(inverse_increments(np.array([[1.0, 3.0, 1.0, 1.0, 4.0]])))
    followers = eqx.tree_at(lambda part: part.raw, followers, raw)
    bends = second_differences(lambda z: followers.shape(z[None]).tailed.value[0], half_width, 0.2)
    np.testing.assert_array_equal(np.abs(bends) > 1e-9, [False, True, True, False])


def test_noise_has_its_density():
    z = np.random.default_rng(0).normal(size=7)
    assert NOISES["logistic"].log_prob(z) == pytest.approx(stats.logistic.logpdf(z).sum())
    assert NOISES["normal"].log_prob(z) == pytest.approx(stats.norm.logpdf(z).sum())
    for name, exact in (("logistic", stats.logistic), ("normal", stats.norm)):
        assert stats.kstest(np.asarray(NOISES[name].sample(KEY, (5000,))), exact.cdf).pvalue > 1e-4


def test_marginals_start_as_the_identity_and_bend_within_four_standard_deviations():
    marginals = Marginals(jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0]))
    w = jnp.array([1.7, 20.0])
    x, log_slope = marginals.transform_and_log_slope(w)
    np.testing.assert_allclose(x, w, rtol=1e-10)
    np.testing.assert_allclose(log_slope, 0.0, atol=1e-10)
    assert (HALF_WIDTH, ORDER, marginals.raw.shape) == (4.0, 10, (2, 10))
    raw = marginals.raw + jnp.asarray(np.random.default_rng(0).normal(size=(2, 10)))
    marginals = eqx.tree_at(lambda part: part.raw, marginals, raw)

    def second(w):
        return marginals.transform_and_log_slope(jnp.array([1.0, -2.0 + w]))[0][1]

    bends = second_differences(second, 4.0 * 3.0, 0.3)
    np.testing.assert_array_equal(np.abs(bends) > 1e-9, [False, True, True, False])


def test_tails_are_bent_within_bounds_and_each_on_its_own_side():
    u = jnp.array([-1e6, 1e6])
    # Far out the map is a power d of u; d stays within a factor of 4.5, whatever is trained.
    for raw, power in ((50.0, np.exp(1.5)), (-50.0, np.exp(-1.5))):
        tails = jnp.array([raw, raw, 0.0, 0.0])
        grown = np.log(np.abs(apply_tails(tails, 10.0 * u).value / apply_tails(tails, u).value)) / np.log(10.0)
        np.testing.assert_allclose(grown, power, rtol=3e-3)
    one_sided = apply_tails(jnp.array([1.0, 0.0, 0.0, 0.0]), u).value
    assert abs(one_sided[0]) > 1e7
    assert one_sided[1] == pytest.approx(1e6)


def test_the_power_of_tails_is_kept_within_bounds_and_each_on_its_own_side():
    u = jnp.array([-6.0, 6.0])
    for raw, power in ((-3.0, 0.0), (0.25, 0.25), (9.0, 0.7)):
        value = apply_tails(jnp.array([0.0, 0.0, raw / POWER_UNIT, 0.0]), u).value
        np.testing.assert_allclose(value, [-6.0 * np.exp(18.0 * power), 6.0], rtol=1e-9)
    # A power that was pushed below zero still feels what pulls it back.
    assert jax.grad(lambda tails: apply_tails(tails, u[1]).value)(jnp.array([0.0, 0.0, 0.0, -3.0]))[3] > 0.0
    # Beyond eight units Tukey's factor goes on as a power of u, so that nothing overflows.
    far = apply_tails(jnp.array([0.0, 0.0, 0.0, 0.25 / POWER_UNIT]), jnp.array([1e3, 1e4])).value
    assert np.log10(far[1] / far[0]) == pytest.approx(1.0 + 64.0 * 0.25, rel=1e-6)


def test_the_paper_starts_as_its_scripts_do():
    flow = PaperFlow(KEY, 2, order=49)
    assert flow.bias.shape == (2, 50)  # M = 50 is the number of coefficients there
    first = flow.bias[0, 0] + np.concatenate([[0.0], np.cumsum(increments(flow.bias[0, 1:]))])
    np.testing.assert_allclose(first, 20.0 * stats.norm.cdf(np.linspace(0.0, 1.0, 50)) - 10.0, atol=1e-3)
    assert first[-1] == pytest.approx(6.827, abs=1e-3)
    np.testing.assert_array_equal(flow.bias[1], 0.0)
    # Neither alpha nor beta is trained, and t = sigmoid(softplus(0) z).
    assert flow.alpha is None
    assert flow.beta is None
    z = jnp.array([0.7, 0.0])
    t = stats.logistic.cdf(np.log(2.0) * 0.7)
    expected = float(first @ stats.binom.pmf(np.arange(50), 49, t))
    assert float(flow.transform_and_log_det(z)[0][0]) == pytest.approx(expected, abs=1e-6)


def test_the_published_conditioner_is_linear_in_the_noise():
    flow = PaperFlow(KEY, 3, order=6)
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=3)) for _ in range(2))

    def raw(flow, z):
        return flow._parameters(z, jax.nn.sigmoid(z))

    middle = raw(flow, 0.3 * a + 0.7 * b)
    np.testing.assert_allclose(middle, 0.3 * raw(flow, a) + 0.7 * raw(flow, b), atol=1e-12)
    text = PaperFlow(KEY, 3, order=6, variant="f1")
    assert np.max(np.abs(raw(text, 0.3 * a + 0.7 * b) - 0.3 * raw(text, a) - 0.7 * raw(text, b))) > 1e-4


def test_positive_parameters_of_the_paper_are_the_softplus_of_its_polynomials():
    z = jnp.array([0.4, -0.2])
    plain, log_det = PaperFlow(KEY, 2, order=6).transform_and_log_det(z)
    x, log_det_of_log = PaperFlow(KEY, 2, order=6, num_scales=1).transform_and_log_det(z)
    np.testing.assert_allclose(np.exp(x[0]), np.log1p(np.exp(plain[0])), rtol=1e-12)
    assert x[1] == plain[1]
    slope = jax.grad(lambda u: jnp.log(jax.nn.softplus(u)))(plain[0])
    assert log_det_of_log - log_det == pytest.approx(np.log(slope), abs=1e-12)


@pytest.mark.parametrize("value", [-400.0, -15.1, -14.9, 0.0, 30.0])
def test_the_softplus_of_the_paper_and_its_inverse_lose_nothing(value):
    flow = PaperFlow(KEY, 1, order=3, num_scales=1)
    x, log_slope = flow._to_logs(jnp.array([value]))
    assert flow._from_logs(x)[0] == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert log_slope == pytest.approx(float(-np.logaddexp(0.0, -value) - x[0]), rel=1e-9)
    assert np.isfinite(jax.grad(lambda u: flow._to_logs(u)[0][0])(jnp.array([value]))).all()


def test_the_paper_trains_with_independent_draws():
    z = antithetic_noise(PaperFlow(KEY, 2, order=3), KEY, 10, (4,))
    assert z.shape == (4, 10, 2)
    assert np.unique(np.abs(z)).size == z.size
    pairs = antithetic_noise(LocationScale(DiagonalAffine(jnp.zeros(2), jnp.ones(2))), KEY, 10, (4,))
    assert np.unique(np.abs(pairs)).size == pairs.size // 2


@pytest.mark.parametrize("variant", ["f1", "f2"])
def test_the_paper_can_start_from_a_line_over_the_sigmoid(variant):
    flow = PaperFlow(KEY, 1, order=6, variant=variant, start_range=3.0)
    z = np.linspace(-3.0, 3.0, 7)[:, None]
    x = jax.jit(jax.vmap(flow.transform_and_log_det))(z)[0]
    np.testing.assert_allclose(x[:, 0], -3.0 + 6.0 * stats.logistic.cdf(z[:, 0]), atol=1e-9)


def test_the_paper_has_a_truncated_normal():
    flow = PaperFlow(KEY, 1, order=6, variant="f3")
    bound = (0.5 - 1e-4) / 0.15
    exact = stats.truncnorm(-bound, bound, 0.5, 0.15)
    z = np.asarray(flow.sample_base(KEY, 5000))
    assert stats.kstest(z[:, 0], exact.cdf).pvalue > 1e-4
    density = jax.jit(jax.vmap(flow.base_log_prob))
    np.testing.assert_allclose(density(z[:50]), exact.logpdf(z[:50, 0]), rtol=1e-9)
    np.testing.assert_array_equal(density(np.array([[BOUND], [1 - BOUND]])) > -np.inf, True)
    np.testing.assert_array_equal(density(np.array([[0.9 * BOUND], [1 - 0.9 * BOUND]])), -np.inf)


def test_nothing_lies_outside_of_the_support_of_the_paper():
    flow = PaperFlow(KEY, 2, order=6, start_range=10.0)
    flow = eqx.tree_at(lambda flow: flow.network, flow, None)
    x = jnp.array([[0.0, 9.0], [0.0, 10.1], [-10.1, 0.0], [10.1, 0.0], [10.0, 0.0], [-10.0, 0.0]])
    z, log_det = jax.jit(jax.vmap(flow.inverse_and_log_det))(x)
    np.testing.assert_array_equal(np.isfinite(log_det), [True, False, False, False, False, False])
    np.testing.assert_array_equal(z[1:], 0.0)
    assert np.isfinite(z[0]).all()


def parts(*locations):
    return tuple(LocationScale(DiagonalAffine(jnp.array([loc]), jnp.ones(1))) for loc in locations)


draw = eqx.filter_jit(lambda mixture, num: mixture.sample_and_log_prob(KEY, num))


def test_a_mixture_draws_by_its_weights():
    # Weights need not be normalized; the components are too far apart to be confused.
    mixture = Mixture(parts(-50.0, 50.0), jnp.log(jnp.array([3.0, 9.0])))
    x, log_q = draw(mixture, 4000)
    share = np.mean(np.asarray(x) > 0)
    assert abs(share - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 4000)
    exact = np.logaddexp(np.log(0.25) + stats.norm.logpdf(x, -50), np.log(0.75) + stats.norm.logpdf(x, 50))[:, 0]
    np.testing.assert_allclose(log_q, exact, rtol=1e-9)
    np.testing.assert_allclose(eqx.filter_jit(mixture.log_prob)(x), exact, rtol=1e-9)


def test_a_component_of_a_mixture_that_overflows_has_no_density_there():
    class Overflowing(LocationScale):
        def log_prob(self, x):
            return jnp.full(x.shape[0], jnp.nan)

    broken = Overflowing(DiagonalAffine(jnp.zeros(1), jnp.ones(1)))
    mixture = Mixture((*parts(0.0), broken), jnp.zeros(2))
    x = jnp.array([[0.3], [2.0]])
    log_q = eqx.filter_jit(mixture.log_prob)(x)
    np.testing.assert_allclose(log_q, stats.norm.logpdf(x[:, 0]) + np.log(0.5), rtol=1e-9)
    # A draw of that component keeps the density that it was drawn with.
    assert np.isfinite(draw(mixture, 50)[1]).all()


def built(build, dim, **options):
    """Return a flow of a family without its numbers."""
    spec = Spec(dim=dim, order=3, noise="normal", width=2)
    return eqx.filter_eval_shape(build, KEY, spec, jnp.zeros(dim), jnp.eye(dim), **options)


@pytest.mark.parametrize(("dim", "kind"), [(64, BernsteinFlow), (65, WideBernsteinFlow)])
def test_the_default_family_changes_its_structure_above_64_dimensions(dim, kind):
    flow = built(build_bernstein, dim)
    assert type(flow) is kind
    assert kind is BernsteinFlow or flow.context == 32
    # The parts that are left out for comparison are those of the first structure.
    assert type(built(build_bernstein, dim, skip=False)) is BernsteinFlow


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("bernstein", {}),
        ("bernstein-meanfield", {}),
        ("bernstein-paper", {"paper_recipe": True, "use_start": False, "has_tails": False, "default_order": 49}),
        ("gaussian", {"has_tails": False, "default_order": None}),
        ("gaussian-fullrank", {"has_tails": False, "default_order": None}),
        ("student-t", {"has_tails": False, "default_order": None}),
    ],
)
def test_a_family_is_trained_as_its_entry_says(name, changed):
    family = get_family(name)
    assert family.name == name
    usual = {
        "default_order": 20,
        "has_tails": True,
        "paper_recipe": False,
        "use_start": True,
        "use_score": True,
        "cover": True,
        "one_start": None,
        "compiled": True,
        "mixes": name == "bernstein",
    }
    assert {field: getattr(family, field) for field in usual} == {**usual, **changed}
    assert family.check(1) is None


def structure(flow):
    if not isinstance(flow, BernsteinFlow):
        return type(flow).__name__
    recipe = flow.recipe()
    return recipe["outer"], recipe["skip"], recipe["bounded"], recipe["width"] > 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("triangular", True, False, True)),
        ({"full_rank": False}, ("diagonal", True, False, True)),
        ({"skip": False}, ("triangular", False, False, True)),
        ({"bounded": True}, ("triangular", True, True, True)),
        ({"full_rank": False, "conditional": False}, ("diagonal", False, False, False)),
    ],
)
def test_a_flow_without_a_part_has_all_others(options, expected):
    assert structure(built(build_bernstein, 2, **options)) == expected


def test_the_flow_of_the_paper_takes_its_options():
    spec = Spec(dim=1, order=4, noise="normal", width=2)
    flow = FAMILIES["bernstein-paper"].build(KEY, spec, jnp.zeros(1), jnp.eye(1))
    other = build_paper(KEY, spec, jnp.zeros(1), jnp.eye(1), variant="f2", start_range=3.5)
    assert (flow.variant, flow.bias[0, 0]) == ("published", 0.0)
    assert (other.variant, other.bias[0, 0]) == ("f2", -3.5)


@pytest.mark.parametrize("name", ["bernstien", "x:", None, 3])
def test_an_unknown_family_is_named(name):
    with pytest.raises(ArgumentError, match=r"family=.* is unknown: expected one of bernstein, .*realnvp, a bf.Family"):
        get_family(name)


@pytest.mark.parametrize("name", ["bernstein:no-skip", "bernstein-paper:f2", "gaussian:f2"])
def test_options_after_a_colon_are_refused(name):
    with pytest.raises(ArgumentError, match=r"no longer written after a colon: give a bf\.Family.*families\.py"):
        get_family(name)


def test_a_family_is_its_own_object():
    mine = dataclasses.replace(FAMILIES["bernstein"], name="mine", mixes=False)
    assert get_family(mine) is mine
    assert get_family(FAMILIES["bernstein"]) is get_family("bernstein")
    with pytest.raises(ArgumentError, match="its name 'bernstein' is that of another family: expected a name of its"):
        get_family(dataclasses.replace(mine, name="bernstein"))


def test_the_family_of_student_has_five_degrees_of_freedom():
    spec = Spec(dim=1, order=0, noise="normal", width=0)
    flow = FAMILIES["student-t"].build(KEY, spec, jnp.zeros(1), jnp.eye(1))
    x = np.array([[0.3], [4.0]])
    np.testing.assert_allclose(flow.log_prob(x), stats.t.logpdf(x[:, 0], 5), rtol=1e-9)


@pytest.mark.parametrize(
    "recipe",
    [
        {"kind": "spline", "dim": 2},
        {"kind": "bernstein", "dim": 2, "order": 3, "noise": "pink", "width": 2, "skip": True, "outer": "diagonal"},
        {"kind": "flowjax", "name": "spline", "dim": 2},
    ],
)
def test_a_family_that_no_recipe_knows_is_named(recipe):
    with pytest.raises(FileFormatError, match="describes a distribution that this version does not know"):
        build(recipe)


def test_the_inverse_of_a_polynomial_can_be_differentiated_twice():
    """Of y = f(a, t): in the coefficients and in y, forward over reverse, against differences of solutions."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        increment, y = jnp.asarray(rng.gamma(1.0, size=6) + 0.05), jnp.asarray(0.3)
        direction = jnp.asarray(rng.normal(size=7))

        def solution(step):
            return invert_centered(increment + step * direction[:6], y + step * direction[6])

        t = float(solution(0.0))
        assert float(centered_polynomial(increment, t)[0]) == pytest.approx(0.3, abs=1e-14)
        h = 1e-3
        slope = (solution(h) - solution(-h)) / (2 * h)
        curvature = (solution(h) - 2 * t + solution(-h)) / h**2
        assert float(jax.grad(solution)(0.0)) == pytest.approx(float(slope), rel=1e-4)
        assert float(jax.jvp(jax.grad(solution), (0.0,), (1.0,))[1]) == pytest.approx(float(curvature), rel=1e-3)
