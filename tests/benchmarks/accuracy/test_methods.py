"""Every method on a target of two dimensions: what it draws, and the density that it claims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.accuracy import judge
from benchmarks.accuracy.columns import to_columns
from benchmarks.accuracy.density import Density
from benchmarks.accuracy.methods import METHODS, numpyro_guides, our_start, ours
from benchmarks.accuracy.methods.base import Fitted, Method, RefusedError
from benchmarks.accuracy.methods.blackjax_pathfinder import _usable
from benchmarks.targets import BENCHMARKS, Benchmark
from bernflow.fit.engine import num_starts

# Measurements at a tiny scale: nightly, as what they take is compilation.
pytestmark = pytest.mark.slow

NUM = 4000
GUIDE = {"steps": 600, "learning_rate": 0.05}
FEW = {
    "nuts": {"warmup": 200, "samples": 250},
    "pymc-advi": {"steps": 3000},
    "pymc-fullrank": {"steps": 3000},
    "blackjax-pathfinder": {"num_paths": 2},
    "pathfinder-psis": {"num_paths": 2},
    "bernflow": {},
    "bernflow-thorough": {},
    "start-fullrank": {},
    "start": {},
}
BY_BERNFLOW = (*ours.OURS, "start", ours.FULL_RANK, ours.PAPER, ours.PAPER_TEXT)
WITH_VERDICT = (*BY_BERNFLOW, "nuts", "blackjax-pathfinder", "pathfinder-psis")


def fitted(name, benchmark):
    method = METHODS[name]
    if method.missing():
        pytest.skip(method.missing())
    settings = method.chosen(benchmark, quick=True)
    few = FEW.get(name, GUIDE if name.startswith(("Auto", "start-IAF", "start-BNAF")) else {"steps": 300})
    return method.fit(benchmark, 0, {**settings, **few})


@pytest.mark.parametrize("name", METHODS)
def test_draws_and_density(name, gaussian):
    fit = fitted(name, gaussian)
    drawn = fit.draw(NUM, 1)
    assert isinstance(fit, Fitted)
    assert set(drawn.sites) >= {"a", "b", "twice"}
    assert fit.gradients > 0
    assert fit.seconds > 0
    shape = (4, 250) if name == "nuts" else (NUM,)
    assert all(values.shape == shape and values.dtype == np.float64 for values in drawn.sites.values())
    np.testing.assert_allclose(drawn.sites["twice"], 2 * drawn.sites["b"])
    assert (fit.verdict is not None) == (name in WITH_VERDICT)
    if name in ("nuts", "pathfinder-psis"):
        assert drawn.log_weights is None
        assert drawn.chains == (name == "nuts")
        return
    # Weights of a normalized density have mean one, whatever was fitted: a wrong Jacobian or a wrong order of the
    # dimensions would show here. Five errors of the mean, and 5 % for heavy tails of fits that are not finished.
    weights = np.exp(drawn.log_weights)
    error = np.std(weights) / np.sqrt(NUM)
    assert np.mean(weights) == pytest.approx(1.0, abs=5 * error + 0.05)
    assert judge.score(drawn.log_weights, 0.0)["kl"] < 2.0


def test_our_start_is_that_of_a_normal_in_model_order(gaussian):
    """The target is a normal one on the reals: its start is the target itself, whatever our order of the dimensions."""
    with jax.enable_x64(True):
        start = our_start.find(gaussian, 0)
    np.testing.assert_allclose(start.loc, [1.0, -0.5], atol=1e-6)
    np.testing.assert_allclose(start.factor @ start.factor.T, np.diag([0.25, 2.25]), atol=1e-6)
    drawn = METHODS["start"].fit(gaussian, 0, {}).draw(500, 1)
    np.testing.assert_allclose(drawn.log_weights, 0.0, atol=1e-5)


def test_other_seeds_give_other_draws(gaussian):
    fit = fitted("AutoDiagonalNormal", gaussian)
    assert not np.array_equal(fit.draw(10, 1).sites["a"], fit.draw(10, 2).sites["a"])


def test_a_density_is_on_the_reals_and_in_model_order(gaussian):
    with jax.enable_x64(True):
        density = Density(gaussian)
        x = np.array([[0.3, 0.7], [-1.0, 2.0]])
        mean, sd = np.array([1.0, -0.5]), np.array([0.5, 1.5])
        expected = -0.5 * np.sum(((x - mean) / sd) ** 2 + np.log(2 * np.pi * sd**2), axis=1)
        np.testing.assert_allclose(density.evaluate(x), expected)
        np.testing.assert_allclose(density.constrain(x)["a"], np.exp(x[:, 1]))
        np.testing.assert_allclose(density.constrain(x)["b"], x[:, 0])
    assert (density.dim, density.sites) == (2, ("b", "a"))


def test_a_density_that_is_not_a_number_counts_as_zero():
    def model():
        import numpyro

        x = numpyro.sample("x", numpyro.distributions.Normal(0.0, 1.0))
        numpyro.factor("odd", jnp.where(x > 5.0, jnp.nan, 0.0))

    with jax.enable_x64(True):
        assert Density(Benchmark("odd", "Odd", model, tuple)).evaluate(np.array([[6.0], [0.0]]))[0] == -np.inf


@pytest.mark.parametrize("name", ["AutoIAFNormal", "AutoBNAFNormal"])
def test_flows_of_numpyro_refuse_one_dimension(name):
    with pytest.raises(RefusedError, match="refuses 1-D"):
        METHODS[name].fit(BENCHMARKS["bernoulli"], 0, {"steps": 10, "num_particles": 2, "learning_rate": 1e-2})


def test_an_evaluation_that_contradicts_the_training_is_refused():
    losses = np.tile([2.9, 3.1], 250)
    numpyro_guides._check_against_training(np.full(100, -3.1), losses)
    with pytest.raises(Exception, match=r"The evaluated ELBO -5.0000 contradicts that of the training, -3.0000"):
        numpyro_guides._check_against_training(np.full(100, -5.0), losses)


def test_a_training_that_ended_in_nothing_says_so():
    nothing = np.full(100, np.nan)
    with pytest.raises(RefusedError, match="training gave NaN"):
        numpyro_guides._check_against_training(nothing, nothing)


def test_pathfinder_without_a_usable_path():
    pytest.importorskip("blackjax")
    from blackjax.vi.multipathfinder import MultipathfinderState

    nothing = MultipathfinderState(None, jnp.full((2, 5, 3), jnp.nan), jnp.zeros((2, 5)), jnp.zeros((2, 5)))
    with pytest.raises(Exception, match="No path of Pathfinder has found a normal"):
        _usable(nothing)


def test_settings_follow_tier_budget_and_target(gaussian):
    guide = METHODS["AutoIAFNormal"]
    assert guide.chosen(gaussian, quick=False)["steps"] == 20_000
    assert guide.chosen(gaussian, quick=True)["steps"] == 5_000
    assert guide.chosen(gaussian, quick=True, budget=96_005)["steps"] == 9_600
    assert METHODS["pymc-advi"].chosen(gaussian, quick=False, budget=7)["steps"] == 7
    assert METHODS["bernflow"].chosen(gaussian, quick=False) == {}
    assert METHODS["bernflow-thorough"].chosen(gaussian, quick=False) == {"tolerance": 0}
    for name in ("bernflow", "bernflow-choices", "blackjax-pathfinder", "nuts"):
        assert METHODS[name].chosen(gaussian, quick=False, budget=1000) is None
    choices = METHODS["bernflow-choices"]
    assert choices.chosen(gaussian, quick=False) == {"tolerance": 0, "order": 5}
    assert choices.applies(gaussian)
    assert not choices.applies(BENCHMARKS["funnel"])


def test_a_fit_that_ends_at_its_start_has_cost_something():
    # 60 iterations of every path, each with a gradient and a Hessian of two columns.
    assert ours.most_of_start(2, 1) == 60 * num_starts(2) * 3
    assert ours.most_of_start(2, 32) == 60 * 128 * 3


def test_what_is_not_installed_says_so():
    method = Method("x", "X", lambda *a: None, "", needs=("no_such_package", "peers"))
    assert method.missing() == "no_such_package is not installed: pip install 'bernflow[peers]'"
    assert METHODS["bernflow"].missing() is None


def test_columns_are_named_from_one():
    sites = {"a": np.zeros((5, 2, 3)), "b": np.zeros(5)}
    assert list(to_columns(sites)) == ["a[1,1]", "a[1,2]", "a[1,3]", "a[2,1]", "a[2,2]", "a[2,3]", "b"]
    assert list(to_columns({"a": np.zeros((4, 5, 2))}, lead=2)) == ["a[1]", "a[2]"]
