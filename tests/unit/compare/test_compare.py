import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.diagnostics import judge
from bernflow.errors import ArgumentError
from bernflow.flows.affine import DiagonalAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.posterior import Posterior
from bernflow.posterior.export import to_datatree
from bernflow.precision import use_precision
from bernflow.target import layout_of

NUM = 4000


def normal_draws(seed, shift=0.0, scale=1.0, num=NUM):
    rng = np.random.default_rng(seed)
    return {"a": shift + scale * rng.normal(size=num), "b": 3.0 + 2.0 * rng.normal(size=(num, 2))}


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


@pytest.fixture(scope="module")
def posterior():
    # The Gaussian family is exact here, and quickly compiled.
    return bf.fit(model, np.array([0.3, 1.2, -0.4]), family="gaussian", steps=250, progress=False)


@pytest.fixture(scope="module")
def run(posterior):
    return posterior.to_nuts(num=500, warmup=100, chains=2, progress=False)


@pytest.fixture(scope="module")
def exact(posterior):
    # Precision 1 + 3, mean sum(y) / 4.
    return {"mu": 1.1 / 4 + 0.5 * np.random.default_rng(0).normal(size=NUM)}


def test_draws_of_one_distribution_agree():
    found = bf.compare({"x": normal_draws(0), "y": normal_draws(1)})
    assert found.reference == "x"
    assert found.agrees == {"y": True}
    table = found.table()
    assert list(table.index) == [("y", "a"), ("y", "b[0]"), ("y", "b[1]")]
    assert np.all(table["ks"] < table["ks_limit"])
    assert np.all(table["wasserstein"] < 0.1)
    # Two halves of 2,000 draws in three dimensions; chance makes both alike.
    joint = found.joints["y"]
    assert joint.distance == pytest.approx(joint.floor, rel=0.5)


@pytest.mark.parametrize(("shift", "scale"), [(0.2, 1.0), (0.0, 1.15)])
def test_other_distributions_differ(shift, scale):
    found = bf.compare({"x": normal_draws(0), "y": normal_draws(1, shift, scale)})
    assert found.agrees == {"y": False}
    assert found.status.endswith("y differs in a.")
    row = found.table().loc["y", "a"]
    # Errors of two samples of 4,000 draws: 0.022 of the mean, 0.016 of the sd; four of them.
    assert row["mean_diff"] == pytest.approx(shift, abs=4 * 0.023)
    assert row["sd_diff"] == pytest.approx(scale - 1, abs=4 * 0.017)
    assert row["wasserstein"] > 0.1
    assert found.joints["y"].distance > 1.2 * found.joints["y"].floor


def test_a_shift_may_be_allowed():
    found = bf.compare({"x": normal_draws(0), "y": normal_draws(1, 0.2)}, max_shift=0.3)
    assert found.agrees == {"y": True}
    assert "within 4 standard errors + 0.3 sd of x" in found.status


def test_the_old_name_of_the_allowed_shift_is_an_error_that_names_the_new_one():
    with pytest.raises(TypeError, match=r"bf\.compare no longer takes 'tolerance': write max_shift=0\.3\.$"):
        bf.compare({"x": normal_draws(0), "y": normal_draws(1)}, tolerance=0.3)


def test_fit_nuts_tree_and_draws(posterior, run, exact):
    entries = {"fit": posterior, "nuts": run, "tree": run.to_arviz(), "own": posterior.to_arviz(2000), "exact": exact}
    found = bf.compare(entries)
    assert found.reference == "nuts"
    assert found.agrees == {"fit": True, "tree": True, "own": True, "exact": True}
    assert found.entries["own"].independent
    assert not found.entries["tree"].independent
    # One run of chains has an error of its own, whatever the form.
    assert found.table().loc[("tree", "mu"), "mean_diff"] == 0.0
    overview = found.overview()
    assert list(overview["verdict"]) == ["good", run.diagnostics.verdict, "", "", ""]
    assert overview.loc["fit", "log_evidence"] == posterior.diagnostics.log_evidence
    assert overview.loc["nuts", "rhat"] == run.diagnostics.rhat
    assert np.isnan(overview.loc["nuts", "khat"])
    assert np.isfinite(overview["elpd_loo"]).tolist() == [True, True, True, True, False]
    assert set(found.loo.index) == {"fit", "nuts", "tree", "own"}


def test_leave_one_out_is_that_of_the_exact_posterior(posterior, exact):
    y = np.array([0.3, 1.2, -0.4])
    # Without one of three observations the posterior of mu is N(sum of the others / 3, 1 / 3).
    means = (y.sum() - y) / 3
    expected = dist.Normal(means, np.sqrt(1 + 1 / 3)).log_prob(y).sum()
    found = bf.compare({"fit": posterior, "exact": exact})
    # 4,000 draws know each of three terms to about a hundredth.
    assert found.overview().loc["fit", "elpd_loo"] == pytest.approx(float(expected), abs=0.06)
    assert found.loo is None
    assert np.isnan(bf.compare({"fit": posterior, "exact": exact}, loo=False).overview().loc["fit", "elpd_loo"])


@pytest.mark.parametrize("asked", [{}, {"weighted": False}])
def test_fits_are_compared_by_the_draws_that_they_give(exact, asked):
    """A fit whose error the weights correct agrees with the posterior, unless its own draws are asked for."""
    with use_precision("float64"):
        own = bf.Model(
            prior={"mu": dist.Normal(0.0, 1.0)},
            likelihood=lambda theta: dist.Normal(theta["mu"], 1.0),
            y=np.array([0.3, 1.2, -0.4]),
        )
        shifted = LocationScale(DiagonalAffine(jnp.array([0.275 + 0.5]), jnp.array([0.5])))  # by one sd
        post = Posterior(shifted, layout_of(own), own, judge(np.zeros(2000), num_resamples=2))
        post.diagnostics = judge(post.log_weights(20_000), num_resamples=5)
    assert post.diagnostics.weights_correct
    found = bf.compare({"exact": exact, "fit": post}, **asked)
    assert found.agrees == {"fit": not asked}
    # Resampled from 4 proposals per draw with an ESS of exp(-1); errors in units of the reference's sd.
    worth = 1.0 if asked else 1 / (np.e / 4 + 0.75)
    assert found.table()["mean_se"].item() == pytest.approx(np.sqrt((1 + 1 / worth) / NUM), rel=0.05)
    assert found.table()["ks_limit"].item() == pytest.approx(2.23 * np.sqrt((1 + 1 / worth) / NUM), rel=0.05)


def test_components_have_the_labels_of_the_tables():
    with use_precision("float64"):
        own = named_model()
        q = LocationScale(DiagonalAffine(jnp.zeros(2), jnp.ones(2)))
        post = Posterior(q, layout_of(own), own, judge(np.zeros(2000), num_resamples=2))
    draws = np.random.default_rng(0).normal(size=(NUM, 2))
    found = bf.compare({"draws": {"level": draws}, "fit": post}, loo=False)
    assert [label for _, label in found.table().index] == ["level[north]", "level[south]"]
    assert list(post.summary().index) == ["level[north]", "level[south]"]


def named_model():
    class Named(bf.Model):
        def dims(self):
            return {"level": ("place",)}

        def coords(self):
            return {"place": ["north", "south"]}

    return Named(
        prior={"level": dist.Normal(0.0, 1.0).expand([2]).to_event(1)}, log_likelihood=lambda theta: jnp.zeros(())
    )


def test_models_without_common_parameters(posterior):
    found = bf.compare({"fit": posterior, "other": normal_draws(0)}, var_names=[])
    assert found.components == []
    assert found.status == "No parameters were compared, only evidence and predictive accuracy."
    assert len(found.table()) == 0
    assert "log evidence" in repr(found)
    assert "differences" not in repr(found)
    assert "Comparison" in found._repr_html_()


def test_the_same_key_gives_the_same_result(posterior, exact):
    first, second, third = (
        bf.compare({"exact": exact, "fit": posterior}, key=key, loo=False).table() for key in (0, 0, 1)
    )
    assert first.equals(second)
    assert not first.equals(third)


def test_text_and_html():
    found = bf.compare({"x": normal_draws(0), "<y>": normal_draws(1, 0.2)}, reference="x")
    text = repr(found)
    assert text.startswith("Comparison (2 posteriors, 3 components, reference x)\n  Differ (means and sds within 4")
    assert "sliced W" in text
    assert "k-hat" not in text  # nobody has one
    html = found._repr_html_()
    assert "✖ Differ" in html
    assert "&lt;y&gt;" in html
    assert "<y>" not in html


def test_constants_are_left_out():
    first, second = normal_draws(0), normal_draws(1)
    for draws in (first, second):
        draws["c"] = np.ones(NUM)
    assert [c.label for c in bf.compare({"x": first, "y": second}).components] == ["a", "b[0]", "b[1]"]


def test_chains_count_by_their_effective_number():
    rng = np.random.default_rng(0)
    chain = rng.normal(size=(4, 1000))
    for t in range(1, 1000):
        chain[:, t] = 0.9 * chain[:, t - 1] + np.sqrt(1 - 0.9**2) * chain[:, t]
    tree = to_datatree({"posterior": {"a": chain}}, by_chain=True)
    found = bf.compare({"draws": {"a": rng.normal(size=NUM)}, "chains": tree})
    flat = bf.compare({"draws": {"a": rng.normal(size=NUM)}, "chains": {"a": chain.ravel()}})
    assert found.table()["mean_se"].iloc[0] > 2 * flat.table()["mean_se"].iloc[0]
    assert found.table()["ks_limit"].iloc[0] > 2 * flat.table()["ks_limit"].iloc[0]


def tree_without(group):
    tree = to_datatree({"posterior": normal_draws(0)})
    del tree[group]
    return tree


@pytest.mark.parametrize(
    ("entries", "kwargs", "words"),
    [
        ({"x": normal_draws(0)}, {}, r"at least two posteriors by name, .* got 1 of them"),
        ([normal_draws(0)], {}, "got a list"),
        ({"x": normal_draws(0), "y": 3}, {}, "'y' is a builtins.int: expected a posterior of bf.fit"),
        ({"x": normal_draws(0), "y": {}}, {}, "'y' is an empty dict"),
        ({"x": normal_draws(0), "y": {"a": np.zeros(NUM)}}, {}, "the parameters of 'x' are a, b, those of 'y' are a:"),
        ({"x": normal_draws(0), "y": normal_draws(1)}, {"var_names": "z"}, "'x' lacks 'z'; it has a, b"),
        (
            {"x": normal_draws(0), "y": {**normal_draws(1), "b": np.zeros((NUM, 3))}},
            {},
            r"'b' has shape \(2,\) in 'x', \(3,\) in 'y': expected one shape",
        ),
        ({"x": normal_draws(0), "y": normal_draws(1, num=50)}, {}, "'y' has 50 draws: expected at least 100"),
        ({"x": {"a": np.zeros(200), "b": np.zeros(300)}, "y": {}}, {}, "different numbers of draws"),
        ({"x": {"a": 3.0}, "y": {}}, {}, r"'a' of shape \(\) and type float64: expected draws"),
        ({"x": normal_draws(0), "y": normal_draws(1)}, {"reference": "z"}, "reference='z': expected one of 'x', 'y'"),
        ({"x": normal_draws(0), "y": normal_draws(1)}, {"max_shift": -1}, "max_shift=-1: expected a number"),
        ({"x": normal_draws(0), "y": normal_draws(1)}, {"num": 0}, "num=0: expected a positive integer"),
        ({"x": tree_without("posterior"), "y": {}}, {}, r"the DataTree 'x' has the groups .*: expected one called"),
    ],
)
def test_arguments_are_checked(entries, kwargs, words):
    with pytest.raises(ArgumentError, match=words):
        bf.compare(entries, **kwargs)


def test_a_tree_needs_chains_and_draws():
    tree = to_datatree({"posterior": normal_draws(0)})
    tree["posterior"] = tree["posterior"].to_dataset().rename({"draw": "number"})
    with pytest.raises(ArgumentError, match="expected chain and draw among them"):
        bf.compare({"x": tree, "y": normal_draws(0)})


def test_derived_quantities_of_a_tree_are_not_compared(posterior, run):
    tree = run.to_arviz()
    tree["posterior"]["extra"] = tree["posterior"]["mu"] * 2
    found = bf.compare({"fit": posterior, "tree": tree}, loo=False)
    assert [c.name for c in found.components] == ["mu"]
