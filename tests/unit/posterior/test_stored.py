"""The content of a file besides the flow: draws for use without the model, and a test that detects other data."""

import numpy as np
import pytest
from numpyro.distributions import constraints

from bernflow.compare import compare_models
from bernflow.errors import ArgumentError, ModelError
from bernflow.models.base import Site
from bernflow.posterior import load
from bernflow.posterior.stored import SavedLayout


@pytest.fixture
def opaque(make, conjugate, build, tmp_path):
    """A posterior whose map to the parameters only its model knows, and its file."""
    model = conjugate(sites=(Site("mu", (), constraints.real), Site("s", (2,), None)))
    post = make(model=model)
    return post, post.save(tmp_path / "p.bernflow"), model


def test_a_posterior_is_read_without_its_model(opaque, tmp_path):
    post, path, _ = opaque
    again = load(path)
    assert isinstance(again.layout, SavedLayout)
    for name, values in post.draws().items():  # derived quantities among them
        np.testing.assert_array_equal(again.draws()[name], values)
    assert again.summary().equals(post.summary())
    assert repr(again) == repr(post)
    np.testing.assert_array_equal(again.draws(50)["s"], post.draws()["s"][:50])
    assert "twice" not in again.draws(5, deterministic=False)
    tree = again.to_arviz(kind="datatree")
    np.testing.assert_array_equal(tree.sample_stats["lp"], post.to_arviz(kind="datatree").sample_stats["lp"])
    again.plot()
    assert again.report(tmp_path / "report.html").stat().st_size > 10_000
    twice = load(again.save(tmp_path / "again"))
    np.testing.assert_array_equal(twice.draws()["s"], post.draws()["s"])


def test_other_keys_choose_among_the_draws(opaque):
    again = load(opaque[1])
    one, other = again.draws(100, key=5)["mu"], again.draws(100, key=6)["mu"]
    assert len(np.unique(one)) == 100
    assert not np.array_equal(one, other)
    assert set(one) <= set(again.draws()["mu"])


def test_what_needs_the_model_says_so(opaque):
    again = load(opaque[1])
    with pytest.warns(UserWarning, match="the file contains 4,000 draws, and more need the model"):
        assert len(again.draws(5000)["mu"]) == 4000
    with pytest.raises(ModelError, match=r"The map from R\^p to the parameters is known only to the model"):
        again.log_prob(again.draws(3))
    for call in (again.predict, again.log_weights, again.prior):
        with pytest.raises(ArgumentError, match=r"needs the model, which is not in the file"):
            call()
    with pytest.raises(ArgumentError, match=r"log likelihood, which is not in the file: pass the model to bf.load"):
        again.loo()


def test_log_likelihood_and_predictions_in_the_file_are_found(make, conjugate, build, tmp_path):
    class Program(conjugate):
        """Says what it derives as a Stan program does."""

        def deterministic(self, theta):
            return {"twice": 2 * theta["mu"], "y_rep": theta["mu"] * np.ones(4), "log_lik": self.pointwise(theta)}

        def pointwise(self, theta):
            return conjugate.log_likelihood(self, theta)["y"]

        def log_likelihood(self, theta):
            return {"log_lik": self.pointwise(theta)}

        def predicted_names(self):
            return ("y_rep",)

        def likelihood_names(self):
            return ("log_lik",)

    post = make(model=Program())
    again = load(post.save(tmp_path / "p"))
    assert again.roles == post.roles
    tree, expected = again.to_arviz(kind="datatree"), post.to_arviz(kind="datatree")
    for group in ("posterior", "posterior_predictive", "log_likelihood"):
        assert set(tree[group].data_vars) == set(expected[group].data_vars)
    assert again.loo().elpd == pytest.approx(post.loo().elpd, rel=1e-9)
    assert "log_likelihood" not in again.to_arviz(log_likelihood=False, kind="datatree").children
    found = compare_models({"loaded": again, "fitted": post})
    assert found.loc["loaded", "elpd_loo"] == pytest.approx(post.loo().elpd, rel=1e-9)


def test_figures_make_do_with_the_draws_of_the_file(opaque, recwarn):
    load(opaque[1]).plot("pairs")
    assert not recwarn.list


def test_a_warning_names_the_line_of_the_user(opaque):
    again = load(opaque[1])
    for call in (lambda: again.draws(5000), lambda: again.summary(num=5000)):
        with pytest.warns(UserWarning, match="the file contains 4,000 draws") as found:
            call()
        assert [warning.filename for warning in found] == [__file__]


def test_weighted_draws_are_stored_where_weights_correct_the_fit(make, build, tmp_path):
    post = make(shift=0.5)
    again = load(post.save(tmp_path / "p"))
    np.testing.assert_array_equal(again.draws()["mu"], post.draws()["mu"])
    assert "resampled by their importance weights" in repr(again)
    assert abs(again.draws()["mu"].mean() - 0.4) < 0.04
    raw = again.draws(4000, weighted=False, deterministic=False)["mu"]
    assert raw.mean() > 0.5


def test_weighted_draws_of_the_file_serve_other_keys_and_figures(make, build, tmp_path, recwarn):
    # The flow alone could draw for any key, but only without weights.
    again = load(make(shift=0.5).save(tmp_path / "p"))
    other = again.draws(100, key=5)["mu"]
    assert len(np.unique(other)) == 100
    assert set(other) <= set(again.draws()["mu"])
    again.plot("pairs")
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"the file contains 4,000 draws, and more need the model"):
        table = again.summary(num=5000, round_to="none")
    assert table.equals(again.summary(round_to="none")), "errors of means, too, are those of 4,000 draws"
    with pytest.raises(ArgumentError, match=r"weighted=True needs the model, which is not in the file"):
        load(make().save(tmp_path / "good")).draws(weighted=True)


def test_draws_that_lack_derived_quantities_say_so(make, build, tmp_path, recwarn):
    again = load(make().save(tmp_path / "p"))
    assert set(again.draws(4000)) == {"mu", "s", "twice"}
    again.plot("pairs", var_names=["mu", "twice"])
    again.draws(5000, deterministic=False)
    assert not recwarn.list
    for other in ({"num": 5000}, {"key": 7}):
        with pytest.warns(UserWarning, match=r"lack twice, which the file contains for its own 4,000 draws"):
            assert set(again.draws(**other)) == {"mu", "s"}


def test_large_derived_quantities_stay_out_of_the_file(make, conjugate, build, tmp_path):
    class Long(conjugate):
        def deterministic(self, theta):
            return {"twice": 2 * theta["mu"], "huge": theta["mu"] * np.ones(5000)}

    path = make(model=Long()).save(tmp_path / "p")
    assert path.stat().st_size < 1_000_000
    assert list(load(path).draws()) == ["mu", "s", "twice"]


def test_other_data_are_refused(make, conjugate, build, tmp_path):
    post = make()
    path = post.save(tmp_path / "p")
    same = load(path, model=conjugate(np.array([0.3, 1.2, -0.4, 0.9])))
    assert same.diagnostics == post.diagnostics
    other = conjugate(np.array([0.3, 1.2, -0.4, 0.95]))
    with pytest.raises(ArgumentError, match=r"differs from that of the fit by up to .* nats at 8 draws of the fit"):
        load(path, model=other)


def test_other_data_are_judged_anew(make, conjugate, build, tmp_path):
    path = make().save(tmp_path / "p")
    found = load(path, model=conjugate(np.array([3.3, 4.2, 2.6, 3.9])), check=False).diagnostics
    assert found.verdict == "poor"
    assert "the verdict on an earlier fit under another model or other data" in found.status
    assert load(path, model=conjugate(), check=False).diagnostics.verdict == "good"
