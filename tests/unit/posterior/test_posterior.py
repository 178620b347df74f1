import re

import arviz_stats
import jax
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy import stats

from bernflow.errors import ArgumentError
from bernflow.keys import as_key
from bernflow.models.base import Site
from bernflow.posterior import sampling
from bernflow.posterior.supports import support_from_json, support_to_json
from bernflow.target import Layout

MEAN, SD = 0.4, 1 / np.sqrt(5)  # exact posterior of mu
N = 4000
# A mean of N independent draws strays by more than 5 standard errors once in 2 million.
TOLERANCE = 5 / np.sqrt(N)


def test_draws_have_names_shapes_and_moments(make):
    draws = make().draws(N)
    assert list(draws) == ["mu", "s", "twice"]
    assert {name: v.shape for name, v in draws.items()} == {"mu": (N,), "s": (N, 2), "twice": (N,)}
    assert all(isinstance(v, np.ndarray) and v.dtype == np.float64 for v in draws.values())
    assert abs(draws["mu"].mean() - MEAN) < TOLERANCE * SD
    assert abs(np.log(draws["s"]).mean()) < TOLERANCE * 0.5
    np.testing.assert_allclose(draws["twice"], 2 * draws["mu"])
    assert "twice" not in make().draws(10, deterministic=False)


def test_draws_repeat_and_extend(make):
    post = make()
    few, many = post.draws(10, key=4), post.draws(1500, key=4)
    np.testing.assert_array_equal(few["s"], many["s"][:10])
    np.testing.assert_array_equal(many["mu"], post.draws(1500, key=jax.random.key(4))["mu"])
    assert not np.array_equal(few["mu"], post.draws(10, key=5)["mu"])
    assert len(np.unique(many["mu"])) == 1500  # blocks differ


def test_another_number_of_draws_does_not_compile_again(make, gaussian):
    traces = []

    class Counting(gaussian):
        def sample_and_log_prob(self, key, num):
            traces.append(num)
            return super().sample_and_log_prob(key, num)

    post = make()
    post.distribution = Counting(post.distribution.loc, post.distribution.scale)
    for num in (10, 77, 2500):
        post.draws(num)
    assert traces == [sampling.BLOCK]


def test_float32_and_global_precision_is_untouched(make):
    before = jax.config.jax_enable_x64
    post = make(precision="float32")
    assert post.precision == "float32"
    assert post.draws(10)["mu"].dtype == np.float32
    assert make().draws(10)["mu"].dtype == np.float64
    assert jax.config.jax_enable_x64 == before


def test_precision_follows_the_arrays_without_setting(make):
    assert make(settings={}).precision == "float64"
    assert make(settings={}, precision="float32").precision == "float32"


def test_weighted_draws_correct_a_shifted_fit(make):
    post = make(shift=0.5)
    assert post.diagnostics.verdict == "usable"
    raw, weighted = post.draws(N)["mu"], post.draws(N, weighted=True)["mu"]
    assert abs(raw.mean() - MEAN) > 0.4 * SD
    # Three dimensions are shifted, so the ESS of the 4 N proposals is exp(-0.75) = 0.47 of them: above N.
    assert abs(weighted.mean() - MEAN) < TOLERANCE * SD
    assert abs(weighted.std() - SD) < TOLERANCE * SD


def test_weighted_draws_of_an_exact_fit_never_repeat(make):
    assert len(np.unique(make().draws(500, weighted=True)["mu"])) == 500


def test_log_prob_is_the_exact_density(make):
    post = make()
    theta = post.draws(50)
    expected = stats.norm.logpdf(theta["mu"], MEAN, SD) + stats.lognorm.logpdf(theta["s"], 0.5).sum(axis=1)
    np.testing.assert_allclose(post.log_prob(theta), expected, rtol=1e-10)
    one = post.log_prob({"mu": 0.3, "s": [1.0, 2.0]})
    assert np.ndim(one) == 0


def test_log_prob_is_minus_infinity_outside_of_the_support(make):
    values = make().log_prob({"mu": [0.0, 0.0, np.nan, 0.0], "s": [[1, -1], [0, 1], [1, 1], [1, 1]]})
    assert np.all(np.isneginf(values[:3]))
    assert np.isfinite(values[3])


@pytest.mark.parametrize(
    ("theta", "message"),
    [
        ({"mu": 0.0}, "theta lacks 's': expected all of mu, s"),
        ({"mu": 0.0, "s": 1.0}, r"theta\['s'\] has shape \(\): expected \(2,\) for one point"),
        ({"mu": [0.0, 1.0], "s": [1.0, 1.0]}, r"different numbers of points \(mu: 2, s: one point\)"),
        ({"mu": [0.0, 1.0], "s": [[1.0, 1.0]]}, r"different numbers of points \(mu: 2, s: 1\)"),
        ({"mu": np.zeros(0), "s": np.zeros((0, 2))}, "theta has no points"),
    ],
)
def test_log_prob_refuses(make, theta, message):
    with pytest.raises(ArgumentError, match=message):
        make().log_prob(theta)


def test_log_weights_of_an_exact_fit_are_the_evidence(make):
    post = make()
    weights = post.log_weights(100, key=1)
    y = np.array([0.3, 1.2, -0.4, 0.9])
    evidence = stats.multivariate_normal(np.zeros(4), np.eye(4) + 1).logpdf(y)
    np.testing.assert_allclose(weights, evidence, rtol=1e-10)
    assert post.diagnostics.verdict == "good"
    assert post.diagnostics.log_evidence == pytest.approx(evidence)


def test_predict(make):
    post = make()
    own = post.predict(num=N)["y"]
    assert own.shape == (N, 4)
    # Predictive variance 1 + 1/5; the four replicates of a draw share mu.
    assert abs(own[:, 0].mean() - MEAN) < TOLERANCE * np.sqrt(1.2)
    assert abs(own[:, 0].std() - np.sqrt(1.2)) < TOLERANCE * np.sqrt(1.2)
    np.testing.assert_allclose(post.predict(10.0, num=20)["y"], own[:20] + 10.0)
    np.testing.assert_allclose(post.predict(shift=10.0, num=20)["y"], own[:20] + 10.0)
    assert post.predict(num=5, weighted=True)["y"].shape == (5, 4)


def test_summary_is_unrounded(make):
    post = make()
    table = post.summary()
    draws = post.draws()
    assert list(table.index) == ["mu", "s[0]", "s[1]", "twice"]
    assert table.loc["mu", "mean"] == pytest.approx(draws["mu"].mean(), rel=1e-12)
    np.testing.assert_allclose(table.iloc[0, 2:4].astype(float), np.quantile(draws["mu"], [0.05, 0.95]), rtol=1e-3)
    assert list(table.columns)[:4] == ["mean", "sd", "eti90_lb", "eti90_ub"]
    with pytest.raises(ArgumentError, match=r"ci_prob=90: expected a probability"):
        post.summary(ci_prob=90)


def test_to_arviz_is_accepted_by_arviz(make):
    post = make(shift=0.2)
    tree = post.to_arviz(1000)
    assert set(tree.children) == {"posterior", "sample_stats", "log_likelihood", "observed_data"}
    assert tree.posterior["s"].shape == (1, 1000, 2)
    stats_group = tree.sample_stats
    np.testing.assert_allclose(stats_group["log_weight"][0], post.log_weights(1000), rtol=1e-10)
    np.testing.assert_allclose(stats_group["lp"] - stats_group["log_q"], stats_group["log_weight"])
    assert "mu" in arviz_stats.summary(tree, kind="stats").index
    loo = arviz_stats.loo(tree)
    assert np.isfinite(loo.elpd)
    assert post.to_arviz(50, weighted=True).posterior.sizes["draw"] == 50


def test_repr_and_html(make):
    post = make()
    shown = repr(post)
    assert shown.startswith("Posterior (gaussian, 3 dimensions)\n  Good (k-hat")
    assert re.search(r"\n  s\[1\] +\d", shown)
    assert "log evidence" in post._repr_html_()
    assert "twice" not in shown


def test_html_escapes_names(conjugate, gaussian, make):
    class Odd(conjugate):
        def log_terms(self, theta):
            return super().log_terms({"mu": theta["<b>"], "s": theta["s"]})

        def log_likelihood(self, theta):
            return super().log_likelihood({"mu": theta.get("<b>", theta.get("mu"))})

    odd = Odd(sites=(Site("<b>", (), constraints.real), Site("s", (2,), constraints.positive)))
    shown = make(model=odd)._repr_html_()
    assert "&lt;b&gt;</th>" in shown
    assert "<b></th>" not in shown


def test_repr_shortens_long_tables(make):
    post = make()
    post.draws = lambda *a, **k: {"v": np.random.default_rng(0).normal(size=(100, 4, 5))}
    assert "v[1, 4]" in repr(post)
    assert repr(post).endswith("... and 10 more")


def test_refine_calls_the_refiner(make):
    calls = []
    post = make(refiner=lambda post, steps: calls.append((post, steps)) or "new")
    assert post.refine(steps=7) == "new"
    assert calls == [(post, 7)]
    with pytest.raises(ArgumentError, match=r"refine\(\) needs a posterior made by bf\.fit"):
        make().refine()


@pytest.mark.parametrize("num", [0, -1, 2.5, "ten"])
def test_num_is_checked(make, num):
    with pytest.raises(ArgumentError, match=r"num=.*: expected a positive integer"):
        make().draws(num)


def test_dimensions_must_agree(make, gaussian):
    post = make()
    with pytest.raises(ArgumentError, match="The distribution has 2 dimensions and the layout 3"):
        type(post)(gaussian(np.zeros(2), np.ones(2)), post.layout, None, post.diagnostics)


def test_weighted_needs_one_possible_draw(make, conjugate):
    class Impossible(conjugate):
        def log_terms(self, theta):
            return {"y": -np.inf + 0 * theta["mu"]}

    good, impossible = make(), Impossible()
    post = type(good)(good.distribution, good.layout, impossible, good.diagnostics)
    with pytest.raises(ArgumentError, match="every draw lies where the posterior density is zero"):
        post.draws(10, weighted=True)


SUPPORTS = [
    (constraints.real, ()),
    (constraints.real_vector, (3,)),
    (constraints.real_matrix, (2, 2)),
    (constraints.positive, (2,)),
    (constraints.nonnegative, ()),
    (constraints.softplus_positive, (2,)),
    (constraints.unit_interval, ()),
    (constraints.circular, ()),
    (constraints.interval(-1.0, 2.0), (2,)),
    (constraints.interval(np.array([0.0, 1.0]), np.array([1.0, 3.0])), (2,)),
    (constraints.open_interval(-1.0, 2.0), (2,)),
    (constraints.greater_than(3.0), ()),
    (constraints.greater_than_eq(3.0), ()),
    (constraints.less_than(3.0), ()),
    (constraints.less_than_eq(3.0), ()),
    (constraints.independent(constraints.greater_than(1.0), 1), (3,)),
    (constraints.simplex, (4,)),
    (constraints.ordered_vector, (3,)),
    (constraints.positive_ordered_vector, (3,)),
    (constraints.corr_cholesky, (3, 3)),
    (constraints.corr_matrix, (3, 3)),
    (constraints.lower_cholesky, (3, 3)),
    (constraints.softplus_lower_cholesky, (3, 3)),
    (constraints.scaled_unit_lower_cholesky, (3, 3)),
    (constraints.positive_definite, (3, 3)),
    (constraints.positive_semidefinite, (3, 3)),
    (constraints.l1_ball, (3,)),
    (constraints.zero_sum(1), (3,)),
]


@pytest.mark.parametrize(("support", "shape"), SUPPORTS, ids=lambda v: str(v).replace("\n", " "))
def test_every_support_survives_json_and_log_prob_inverts_draws(make, gaussian, support, shape):
    spec = support_to_json(support)
    again = support_from_json(spec)
    assert type(again) is type(support)
    assert support_to_json(again) == spec
    with jax.enable_x64(True):
        layout = Layout((Site("v", shape, again),))
        q = gaussian(np.full(layout.dim, 0.1), np.full(layout.dim, 0.7))
        x, log_q = sampling.sample(q, as_key(0), 20)
        log_jacobian = np.asarray(jax.vmap(lambda x: layout.constrain(x)[1])(x))
    reference = make()
    post = type(reference)(q, layout, None, reference.diagnostics)
    draws = post.draws(20, key=0)
    np.testing.assert_allclose(post.log_prob(draws), log_q - log_jacobian, rtol=1e-6)


def test_unknown_support_cannot_be_saved():
    with pytest.raises(ArgumentError, match=r"The support .* cannot be saved: expected one of circular"):
        support_to_json(constraints.sphere)


@pytest.mark.parametrize(
    ("rows", "num", "expected"), [(8, 1000, 1000), (100, 1000, 500), (21_200, 48, 2), (10**6, 48, 1), (9, 5, 5)]
)
def test_draws_at_once_leave_no_rest_and_go_to_cores_in_equal_parts(rows, num, expected):
    assert sampling.draws_at_once(rows, num) == expected
