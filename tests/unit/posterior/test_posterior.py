import html
import re
import sys
import warnings
from types import SimpleNamespace

import arviz_stats
import jax
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy import stats

from bernflow.errors import ArgumentError
from bernflow.fit.engine import warn_if_poor
from bernflow.keys import as_key
from bernflow.models.base import Site
from bernflow.posterior import load, sampling
from bernflow.posterior.supports import support_from_json, support_to_json
from bernflow.runs import write_run
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
    raw, weighted = post.draws(N, weighted=False)["mu"], post.draws(N)["mu"]
    np.testing.assert_array_equal(weighted, post.draws(N, weighted=True)["mu"])
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


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_everything_shows_the_same_draws(make, shift):
    post = make(shift=shift)
    mean = post.draws()["mu"].mean()
    table = post.summary()
    assert table.loc["mu", "mean"] == pytest.approx(mean, abs=5e-4)
    assert re.search(rf"\n  mu +{mean:.4f} ", repr(post))
    assert float(post.to_arviz(kind="datatree").posterior["mu"].mean()) == pytest.approx(mean)
    assert ("resampled by their importance weights" in repr(post)) == (shift > 0)
    assert post.to_arviz().attrs["weighted"] == (shift > 0)
    # The error of a mean of weighted draws is that of their proposals, too.
    errors = table.loc["mu", "mcse_mean"] * np.sqrt(N) / SD
    assert errors == pytest.approx(1.0 if shift == 0 else np.sqrt(1 / (4 * np.exp(-0.75)) + 0.75), rel=0.1)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_what_follows_from_draws_is_weighted_where_they_are(make, build, tmp_path, shift):
    post = make(shift=shift)
    assert post.diagnostics.verdict == ("usable" if shift else "good")

    def agree(one, auto):
        """Tell whether a default is the weighted form, and not the other one."""
        return np.array_equal(one(weighted=True), auto) and not np.array_equal(one(weighted=False), auto)

    def line(**kwargs):
        return post.plot(**kwargs).axes[0].lines[0].get_xdata()

    defaults = {
        "draws": (lambda **kw: post.draws(**kw)["mu"], post.draws()["mu"]),
        "predict": (lambda **kw: post.predict(num=300, **kw)["y"], post.predict(num=300)["y"]),
        "plot": (line, line()),
        "loo": (lambda **kw: post.loo(**kw).elpd, post.loo().elpd),
    }
    assert {name: agree(*default) for name, default in defaults.items()} == dict.fromkeys(defaults, shift > 0)
    np.testing.assert_array_equal(load(post.save(tmp_path / "p")).draws()["mu"], post.draws()["mu"])
    run = write_run(post, tmp_path / "run", formats=("csv",))
    assert run.manifest["weighted"] == (shift > 0)
    assert run.summary.loc["mu", "mean"] == pytest.approx(post.draws()["mu"].mean(), rel=1e-12)
    page = post.report(tmp_path / "report.html").read_text()
    assert ("resampled by their importance weights" in page) == (shift > 0)


@pytest.mark.parametrize("shift", [0.5, 3.0])
def test_the_list_of_advice_is_one_everywhere(make, tmp_path, shift):
    post = make(shift=shift)
    assert post.diagnostics.verdict == ("usable" if shift < 1 else "poor")
    page = html.unescape(re.sub("<[^>]*>", "", post.report(tmp_path / "report.html").read_text()))
    card = html.unescape(re.sub("<[^>]*>", "", post._repr_html_()))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_if_poor(post)
    assert len(post.advice) >= 2
    for number, sentence in enumerate(post.advice, 1):
        plain = sentence.replace("`", "")
        assert plain in page
        assert plain in card
        assert f"{number}. {plain}" in " ".join(repr(post).split())
        # The status says already what the first sentence repeats.
        assert shift < 1 or number == 1 or plain in str(said[0].message)


def test_summary_chooses_quantities_as_arviz_does(make):
    post = make()
    assert list(post.summary("s").index) == ["s[0]", "s[1]"]
    assert list(post.summary(["~s"]).index) == ["mu", "twice"]
    assert list(post.summary("tw", "like").index) == ["twice"]
    assert list(post.summary(["^m", "e$"], filter_vars="regex").index) == ["mu", "twice"]
    with pytest.raises(ArgumentError, match=r"'twise', which matches none of mu, s, twice. Did you mean 'twice'\?"):
        post.summary("twise")
    with pytest.raises(ArgumentError, match="filter_vars='glob': expected None, 'like' or 'regex'"):
        post.summary("mu", "glob")


def test_tables_have_four_meaningful_digits(make):
    table, raw = make().summary(), make().summary(round_to="none")
    assert np.abs(table - raw).max().max() < 5e-4
    assert all(row["sd"] == round(row["sd"], 4) for _, row in table.iterrows())
    assert make().summary(round_to=1).loc["mu", "sd"] == 0.4
    with pytest.raises(ArgumentError, match="round_to='two'"):
        make().summary(round_to="two")


def test_labels_are_coordinates(make, conjugate):
    class Named(conjugate):
        def dims(self):
            return {"s": ("kind",)}

        def coords(self):
            return {"kind": ["age", "income"]}

    post = make(model=Named())
    assert list(post.summary().index) == ["mu", "twice", "s[age]", "s[income]"]
    assert "\n  s[income] " in repr(post)
    assert list(post.to_arviz().posterior["s"].coords["kind"].values) == ["age", "income"]


@pytest.mark.filterwarnings("ignore")  # of ArviZ
def test_the_arviz_that_is_installed_gets_what_it_takes(make):
    arviz = pytest.importorskip("arviz")
    found = make().to_arviz(200)
    is_old = arviz.__version__.startswith("0.")
    assert type(found).__name__ == ("InferenceData" if is_old else "DataTree")
    assert {"mu", "s[0]", "s[1]", "twice"} == set(arviz.summary(found).index)
    assert arviz.loo(found).n_data_points == 4
    if is_old:
        # Power scaling: the data know nothing of s.
        scaled = {part: arviz.psens(found, component=part) for part in ("prior", "likelihood")}
        assert float(scaled["likelihood"]["s"].max()) < 0.05 < float(scaled["prior"]["s"].min())
    else:
        assert set(arviz.psense_summary(found).index) == {"mu", "s[0]", "s[1]", "twice"}


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # of LOO for 50 draws
@pytest.mark.parametrize("installed", ["0.23.4", "1.3.0", None])
def test_arviz_0_and_1_get_what_they_take(make, monkeypatch, installed):
    from bernflow.posterior import export

    def version(name):
        if installed is None:
            raise export.PackageNotFoundError(name)
        return installed

    monkeypatch.setitem(sys.modules, "arviz", SimpleNamespace(InferenceData=SimpleNamespace))
    monkeypatch.setattr(export, "version", version)
    post = make()
    found, tree = post.to_arviz(50), post.to_arviz(50, kind="datatree")
    if installed == "0.23.4":
        assert type(found) is SimpleNamespace
        assert found.posterior["s"].shape == (1, 50, 2)
        assert found.attrs["inference_library"] == "bernflow"
        assert set(tree.children) == set(vars(found)) - {"attrs"}
    else:
        assert set(found.children) == set(tree.children)
        # ArviZ 1 consists of arviz_base, arviz_stats and arviz_plots.
        assert {"mu", "s[0]", "s[1]", "twice"} == set(arviz_stats.summary(found, kind="stats").index)
        assert arviz_stats.loo(found).n_data_points == 4
        with pytest.raises(ArgumentError, match=r"kind='inferencedata' needs ArviZ 0\.x"):
            post.to_arviz(50, kind="inferencedata")
    with pytest.raises(ArgumentError, match="kind='tree'"):
        post.to_arviz(50, kind="tree")


def test_tables_begin_with_what_is_looked_for_first(make, conjugate):
    class Wide(conjugate):
        def deterministic(self, theta):
            fitted = theta["mu"] * np.ones(4)
            return {"fitted": fitted, "again": fitted, "raw": 2 * theta["s"], "twice": 2 * theta["mu"]}

        def predicted_names(self):
            return ("raw",)

    shown = list(make(model=Wide()).summary().index)
    names = list(dict.fromkeys(label.partition("[")[0] for label in shown))
    assert names == ["mu", "twice", "s", "again", "fitted", "raw"]
    assert re.findall(r"^  (\w+)\[0\]", repr(make(model=Wide())), flags=re.MULTILINE) == ["s", "again", "fitted", "raw"]


@pytest.mark.filterwarnings("ignore")  # of ArviZ
def test_power_scaling_works_on_the_export(make):
    tree = make().to_arviz(1000, kind="datatree")
    assert set(tree["log_prior"].data_vars) == {"mu", "s"}
    expected = stats.norm.logpdf(tree.posterior["mu"].values)
    np.testing.assert_allclose(tree["log_prior"]["mu"].values, expected, rtol=1e-10)
    # The data know nothing of s.
    found = {group: arviz_stats.psense(tree, group=group) for group in ("prior", "likelihood")}
    assert float(found["likelihood"]["s"].max()) < 0.05 < float(found["prior"]["s"].min())
    assert float(found["likelihood"]["mu"]) > 0.05


def test_loo(make):
    found = make().loo()
    assert found.n_data_points == 4
    y, rest = np.array([0.3, 1.2, -0.4, 0.9]), np.array([2.0]) - np.array([0.3, 1.2, -0.4, 0.9])
    exact = stats.norm.logpdf(y, rest / 4, np.sqrt(1.25)).sum()
    assert found.elpd == pytest.approx(exact, abs=0.05)
    with pytest.raises(ArgumentError, match="var_name='z': expected one of 'y'"):
        make().loo("z")


def test_summary_unrounded(make):
    post = make()
    table = post.summary(round_to="none")
    draws = post.draws()
    assert list(table.index) == ["mu", "twice", "s[0]", "s[1]"]  # scalars first
    assert table.loc["mu", "mean"] == pytest.approx(draws["mu"].mean(), rel=1e-12)
    np.testing.assert_allclose(table.loc["mu"].iloc[2:4], np.quantile(draws["mu"], [0.05, 0.95]), rtol=1e-3)
    assert list(table.columns) == ["mean", "sd", "eti90_lb", "eti90_ub", "mcse_mean", "mcse_sd"]
    with pytest.raises(ArgumentError, match=r"ci_prob=90: expected a probability"):
        post.summary(ci_prob=90)


def test_to_arviz_is_accepted_by_arviz(make):
    post = make(shift=0.2)
    tree = post.to_arviz(1000, weighted=False, kind="datatree")
    assert set(tree.children) == {"posterior", "sample_stats", "log_likelihood", "log_prior", "observed_data"}
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
    assert shown.startswith("Posterior (gaussian, 3 dimensions; 4,000 draws)\n  Good (ESS 100.0 %")
    assert re.search(r"\n  s\[1\] +\d", shown)
    assert "log evidence" in post._repr_html_()
    assert "\n  twice " in shown


def test_html_escapes_names(conjugate, gaussian, make):
    class Odd(conjugate):
        def log_terms(self, theta):
            return super().log_terms({"mu": theta["<b>"], "s": theta["s"]})

        def log_likelihood(self, theta):
            return super().log_likelihood({"mu": theta.get("<b>", theta.get("mu"))})

        def deterministic(self, theta):
            return {}

    odd = Odd(sites=(Site("<b>", (), constraints.real), Site("s", (2,), constraints.positive)))
    shown = make(model=odd)._repr_html_()
    assert "&lt;b&gt;</th>" in shown
    assert "<b></th>" not in shown


def test_repr_shortens_long_tables(make, conjugate):
    class Long(conjugate):
        def deterministic(self, theta):
            return {"v": theta["mu"] * np.ones((4, 7)), "huge": theta["mu"] * np.ones(5000)}

    shown = repr(make(model=Long()))
    assert "v[2, 2]" in shown
    assert "v[2, 3]" not in shown
    # 3 parameters and 17 of 28 components of v.
    assert shown.endswith("... and 5,011 more rows: post.summary() has all")


def test_refine_calls_the_refiner(make):
    calls = []
    post = make(refiner=lambda post, **options: calls.append((post, options)) or "new")
    assert post.refine(steps=7) == "new"
    assert calls == [(post, {"steps": 7, "key": 3, "training": None, "progress": True})]
    with pytest.raises(TypeError, match=r"refine no longer takes 'optimizer': write training=bf\.Training\(opt"):
        post.refine(optimizer=0.1)
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
    with pytest.raises(ArgumentError, match="the posterior density is zero at every draw"):
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
