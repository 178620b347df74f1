import re
import sys
import warnings
from contextlib import redirect_stderr

import arviz_stats
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import distributions as dist

import bernflow as bf
from bernflow.diagnostics import judge
from bernflow.diagnostics.chains import convergence
from bernflow.errors import ArgumentError
from bernflow.flows import Spec, build_bernstein, build_paper
from bernflow.flows.affine import DiagonalAffine
from bernflow.flows.external import given_flow, named_flow
from bernflow.flows.gaussian import LocationScale
from bernflow.flows.mixture import Mixture
from bernflow.posterior import Posterior, chains, sampling
from bernflow.posterior.tables import Axes
from bernflow.target import Target

# One number of chains and one warmup for all: what is compiled for the first test serves the others.
RUN = {"num": 1000, "warmup": 150, "chains": 4, "progress": False}
ODD = 120  # no multiple of a chunk
KEY = jax.random.key(0)
TRACES = []


def whitened(loc=(0.0, 0.0, 0.4), scale=(0.5, 0.5, 0.45)):
    with jax.enable_x64(True):
        return LocationScale(DiagonalAffine(jnp.array(loc), jnp.array(scale)))


@pytest.fixture(scope="module")
def kept():
    """Keep a class and runs for several tests."""
    return {}


@pytest.fixture
def make_post(make, conjugate, kept):
    """Make the exact posterior of a model whose data can spoil it: one compiled program serves all."""
    if "model" not in kept:

        class Spoiled(conjugate):
            cliff: np.ndarray
            least: np.ndarray

            def __init__(self, y, cliff, least):
                super().__init__(y)
                self.cliff, self.least = np.array(cliff), np.array(least)

            def log_terms(self, theta):
                TRACES.append(theta)
                never = jnp.where(theta["mu"] < self.least, -jnp.inf, 0.0)
                # The density falls off so steeply beyond mu = 0.5 that trajectories break there.
                return super().log_terms(theta) | {"more": never - self.cliff * jnp.maximum(theta["mu"] - 0.5, 0.0)}

        kept["model"] = Spoiled

    def build(y=(0.3, 1.2, -0.4, 0.9), cliff=0.0, least=-np.inf, flow=None):
        found = make()
        found.model = kept["model"](np.array(y), cliff, least)
        found.distribution = flow or whitened()
        return found

    return build


@pytest.fixture
def post(make_post):
    return make_post()


@pytest.fixture(params=["numpyro", "blackjax"])
def run(request, post, kept):
    if request.param == "blackjax":
        pytest.importorskip("blackjax")
    if request.param not in kept:
        kept[request.param] = post.to_nuts(**RUN, sampler=request.param)
    return kept[request.param]


def test_draws_are_named_and_constrained(run):
    draws = run.draws()
    assert {name: v.shape for name, v in draws.items()} == {"mu": (4, 1000), "s": (4, 1000, 2), "twice": (4, 1000)}
    assert all(isinstance(v, np.ndarray) and v.dtype == np.float64 for v in draws.values())
    assert np.all(draws["s"] > 0)
    np.testing.assert_allclose(draws["twice"], 2 * draws["mu"])
    np.testing.assert_allclose(np.log(draws["s"]), run.x[..., :2])
    assert list(run.draws(deterministic=False)) == ["mu", "s"]
    assert len({float(v) for v in draws["mu"][:, 0]}) == 4  # chains start apart


def test_arviz_gets_chains_and_statistics(run, post):
    tree = run.to_arviz(kind="datatree")
    assert set(tree.children) == {"posterior", "sample_stats", "log_prior", "log_likelihood", "observed_data"}
    assert tree.posterior.sizes == {"chain": 4, "draw": 1000, "s_dim_0": 2}
    names = {"lp", "diverging", "n_steps", "tree_depth", "acceptance_rate", "step_size", "energy"}
    assert set(tree.sample_stats.data_vars) == names
    assert tree.log_likelihood["y"].shape == (4, 1000, 4)
    with jax.enable_x64(True):
        expected = sampling.log_density(post.layout, post.model, run.x.reshape(-1, 3))
    np.testing.assert_allclose(tree.sample_stats["lp"].values.ravel(), expected, rtol=1e-8)
    stats = run.stats
    assert np.all((2 ** (stats["tree_depth"] - 1) <= stats["n_steps"]) & (stats["n_steps"] < 2 ** stats["tree_depth"]))
    assert np.all((stats["acceptance_rate"] > 0) & (stats["acceptance_rate"] <= 1))
    assert np.unique(stats["step_size"]).size == 4  # one for each chain, fixed after the warmup
    assert np.isfinite(arviz_stats.loo(tree).elpd)


def test_summary_has_the_figures_of_the_verdict(run):
    table = run.summary()
    assert list(table.index) == ["mu", "s[0]", "s[1]", "twice"]
    assert table["r_hat"].astype(float).max() == pytest.approx(run.diagnostics.rhat, abs=1e-6)
    assert table["ess_bulk"].astype(float).min() == pytest.approx(run.diagnostics.ess_bulk, rel=1e-6)


def test_repr_says_verdict_cost_and_table(run):
    shown = repr(run)
    assert shown.startswith(f"NutsRun ({run.settings['sampler']}, 4 chains of 1000 draws after 150 of warmup)")
    assert run.diagnostics.status in re.sub(r"\n +", " ", shown)
    assert f"{run.num_gradients:,} gradients" in shown
    assert "s[1]" in shown
    assert "R-hat   ESS bulk   ESS tail" in shown


def test_the_same_key_gives_the_same_draws(run, post):
    sampler = run.settings["sampler"]
    again, fewer, other = (
        post.to_nuts(**{**RUN, **more}, sampler=sampler).x for more in ({}, {"num": 10 * ODD - 250}, {"key": 5})
    )
    np.testing.assert_array_equal(again, run.x)
    np.testing.assert_array_equal(fewer, run.x[:, : 10 * ODD - 250])
    assert not np.array_equal(other, run.x)


def test_another_run_compiles_nothing(run, make_post):
    TRACES.clear()
    # Other data, another fit, other numbers and another key.
    post = make_post(y=(2.3, 3.2, 1.6, 2.9), flow=whitened(loc=(0.0, 0.0, 2.0)))
    found = post.to_nuts(**{**RUN, "num": 10 * ODD, "key": 7}, sampler=run.settings["sampler"])
    assert TRACES == []
    # The sum of y is greater by 8, so that the mean of mu is by 8/5.
    assert found.draws()["mu"].mean() == pytest.approx(2.0, abs=5 * 0.45 / np.sqrt(found.diagnostics.ess_bulk))


@pytest.mark.parametrize("sampler", ["numpyro", pytest.param("blackjax", marks=pytest.mark.slow)])
def test_gradients_are_counted(make, conjugate, sampler):
    evaluated = []

    class Counting(conjugate):
        def log_terms(self, theta):
            jax.debug.callback(lambda mu: evaluated.append(0), theta["mu"])
            return super().log_terms(theta)

    post = make()
    post.model, post.distribution = Counting(), whitened(scale=(0.4, 0.4, 0.3))
    # One chain: several run in step, and those that are done are evaluated along.
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a short run need not converge
        found = post.to_nuts(70, warmup=30, chains=1, sampler=sampler, progress=False)
    jax.effects_barrier()
    assert found.num_gradients == len(evaluated)
    assert found.num_gradients > np.sum(found.stats["n_steps"]) + 30


def test_poor_chains_are_called_so_aloud(post):
    with pytest.warns(UserWarning, match=r"bernflow: Poor \(R-hat nan.*the chains disagree about mu"):
        run = post.to_nuts(**{**RUN, "num": 3})
    assert run.diagnostics.verdict == "poor"


def test_divergences_are_called_out_aloud(make_post):
    with pytest.warns(UserWarning, match=r"bernflow: Poor .*of 4000 trajectories diverged.*raise target_accept"):
        run = make_post(cliff=1e6).to_nuts(**RUN)
    assert run.diagnostics.num_divergent == np.sum(run.stats["diverging"]) > 4


def test_a_progress_bar_counts_draws(post, terminal):
    with redirect_stderr(terminal):
        post.to_nuts(**{**RUN, "progress": True})
    shown = terminal.getvalue()
    assert "1150/1150" in shown
    assert "divergences" in shown


def test_a_mixture_of_one_is_one_flow(post):
    alone = post.to_nuts(**RUN).x
    post.distribution = Mixture((whitened(),), jnp.zeros(1))
    np.testing.assert_array_equal(post.to_nuts(**RUN).x, alone)


def bounded(build, **options):
    spec = Spec(dim=3, order=5, noise="normal", width=4)
    return lambda: build(KEY, spec, jnp.zeros(3), jnp.eye(3), **options)


def tanh():
    bijections = pytest.importorskip("flowjax.bijections")
    return given_flow(bijections.Chain([bijections.Affine(jnp.zeros(3), jnp.ones(3)), bijections.Tanh((3,))]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (bounded(build_paper), "has a bounded range, outside which NUTS would never draw.* such as 'bernstein'"),
        (bounded(build_paper, variant="f3"), "has a bounded range"),
        (bounded(build_bernstein, bounded=True), "has a bounded range"),
        (tanh, "has a bounded range"),
        (
            lambda: Mixture((whitened(), whitened()), jnp.zeros(2)),
            r"a mixture of 2: NUTS chains stay in the mode .*post\.draws\(weighted=True\).*components=1",
        ),
    ],
)
def test_unsuitable_flows_are_refused(post, build, message):
    with jax.enable_x64(True):
        post.distribution = build()
    with pytest.raises(ArgumentError, match=message):
        post.to_nuts(**RUN)


def test_a_distribution_without_a_map_is_refused(make):
    with pytest.raises(ArgumentError, match="needs a flow, and this posterior is a Gaussian, which does not map"):
        make().to_nuts(**RUN)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num": 0}, "num=0: expected a positive integer"),
        ({"warmup": -3}, "warmup=-3: expected a positive integer"),
        ({"chains": 2.5}, "chains=2.5: expected a positive integer"),
        ({"sampler": "stan"}, "sampler='stan' is unknown: expected one of numpyro, blackjax"),
        ({"target_accept": 1.0}, r"target_accept=1\.0: expected a probability between 0 and 1"),
        ({"target_accept": "high"}, "target_accept='high': expected a probability"),
        ({"key": "seed"}, "key='seed' is not a random key"),
    ],
)
def test_wrong_arguments_are_named(post, given, message):
    with pytest.raises(ArgumentError, match=message):
        post.to_nuts(**{**RUN, **given})


def test_the_model_is_needed(post):
    post.model = None
    with pytest.raises(ArgumentError, match=r"to_nuts needs the model.*bf\.load\(path, model=\.\.\.\)"):
        post.to_nuts(**RUN)


def test_a_missing_blackjax_is_named(post, monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(ArgumentError, match=r"blackjax, which is not installed: pip install 'bernflow\[peers\]'"):
        post.to_nuts(**RUN, sampler="blackjax")


def test_nowhere_to_start_is_said(make_post):
    with pytest.raises(ArgumentError, match=r"found 0 starting points for 4 chains: at the other 32 draws"):
        make_post(least=1e6).to_nuts(**RUN)


def test_starts_are_looked_for_among_draws(make_post):
    # Three of four draws of the fit are impossible.
    with pytest.warns(UserWarning, match="trajectories diverged"):  # at the edge
        run = make_post(least=0.7).to_nuts(**RUN)
    assert run.draws()["mu"].min() >= 0.7


def own_flow():
    bijections = pytest.importorskip("flowjax.bijections")
    return given_flow(bijections.Affine(jnp.zeros(3), jnp.ones(3)))


@pytest.mark.parametrize(
    "build",
    [
        own_flow,
        pytest.param(lambda: named_flow(KEY, "planar", 3), marks=pytest.mark.slow, id="planar"),
        pytest.param(lambda: named_flow(KEY, "realnvp", 3), marks=pytest.mark.slow, id="realnvp"),
    ],
)
def test_flows_of_flowjax_serve(post, build):
    pytest.importorskip("flowjax")
    with jax.enable_x64(True):
        post.distribution = build()
    run = post.to_nuts(**RUN)
    # 5 standard errors of the worst effective number.
    assert abs(run.draws()["mu"].mean() - 0.4) < 5 * 0.45 / np.sqrt(run.diagnostics.ess_bulk)


@pytest.mark.slow
def test_a_network_is_frozen():
    """What a joint fit hands out is the posterior of all rows given the network."""
    rng = np.random.default_rng(0)
    y, images = rng.normal(size=40) + 1.0, rng.normal(size=(40, 2))
    model = bf.Model(
        prior={"b": dist.Normal(0.0, 1.0)},
        likelihood=lambda theta, h: dist.Normal(theta["b"] + 0.1 * h, 1.0),
        y=y,
        network=eqx.nn.MLP(2, "scalar", 4, 1, key=KEY),
        images=images,
    )
    with jax.enable_x64(True):
        target = Target(model.frozen(*model.trained()))
        flow = LocationScale(DiagonalAffine(jnp.zeros(1), jnp.ones(1)))
        post = Posterior(flow, target.layout, target.model, judge(np.zeros(1000)))
    run = post.to_nuts(**RUN)
    h = np.asarray(jax.vmap(eqx.nn.MLP(2, "scalar", 4, 1, key=KEY))(images))
    exact = np.sum(y - 0.1 * h) / 41
    assert abs(run.draws()["b"].mean() - exact) < 5 / np.sqrt(41 * run.diagnostics.ess_bulk)


def test_constant_components_are_not_judged():
    rng = np.random.default_rng(0)
    factor = np.zeros((2, 50, 2, 2))
    factor[..., 0, 0] = 1.0
    factor[..., 1, :] = rng.normal(size=(2, 50, 2))
    names, values = chains._varying({"L": factor, "m": rng.normal(size=(2, 50))}, Axes())
    assert names == ["L[1, 0]", "L[1, 1]", "m"]
    assert values.shape == (3, 2, 50)
    names, values = chains._varying({"stuck": np.ones((2, 50))}, Axes())
    assert names == ["every parameter"]
    assert np.isnan(values).all()


def test_long_tables_are_shortened(run):
    names, values = [f"v[{i}]" for i in range(22)], np.random.default_rng(0).normal(size=(22, 4, 100))
    shown = chains._text(run.settings, run.diagnostics, 10, names, values, convergence(values))
    assert "v[19]" in shown
    assert shown.endswith("... and 2 more rows: run.summary() has all")
