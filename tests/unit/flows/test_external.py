"""Flows of flowjax as families, and ours inside flowjax."""

import sys
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError, FileFormatError
from bernflow.fit.settings import RMSPROP, resolve_settings
from bernflow.flows import FAMILIES
from bernflow.flows.base import AbstractFlow
from bernflow.flows.external import FlowjaxFlow, as_flowjax, check_given, given_flow, named_flow
from bernflow.flows.families import PAPER_LEARNING_RATE, Spec
from bernflow.keys import as_key, grid, spawn
from bernflow.posterior import sampling

pytest.importorskip("flowjax")
import paramax
from flowjax import bijections, distributions, flows

COVARIANCE = np.array([[1.0, 0.8, 0.0], [0.8, 1.0, 0.3], [0.0, 0.3, 1.0]])
LOG_EVIDENCE = 0.5 * np.linalg.slogdet(2 * np.pi * COVARIANCE)[1]
KEY = jax.random.key(7)


@pytest.fixture(scope="module")
def gaussian():
    precision = np.linalg.inv(COVARIANCE)

    def logp(theta):
        return -0.5 * (theta["x"] - 1) @ precision @ (theta["x"] - 1)

    return bf.from_log_density(logp, init={"x": np.zeros(3)})


@pytest.fixture(scope="module")
def line():
    return bf.from_log_density(lambda theta: -0.5 * theta["x"] ** 2, init={"x": 0.0})


def regression(y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(b[0] + b[1] * np.linspace(-1, 1, len(y)), s), obs=y)


Y = np.array([0.3, 1.2, 0.4, 1.9])


@pytest.fixture(scope="module")
def realnvp(gaussian):
    training = bf.Training(optimizer=3e-3)
    return bf.fit(gaussian, family="realnvp", restarts=2, steps=700, training=training, progress=False)


@pytest.fixture(scope="module")
def planar():
    # In single precision, to show that what is built in one precision is judged, saved and loaded in the other.
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a short fit may be poor
        training = bf.Training(precision="float32")
        return bf.fit(regression, Y, family="planar", steps=500, training=training, progress=False)


@pytest.fixture(scope="module")
def own():
    """Fit a user's own distribution: a trainable base, a triangular map, and a shift that is not trained."""
    shift = paramax.non_trainable(bijections.Loc(0.5 * jnp.ones(3)))
    chain = bijections.Chain([bijections.TriangularAffine(jnp.zeros(3), jnp.eye(3)), shift])
    model = bf.from_log_density(
        lambda theta: -0.5 * (theta["x"] - 1) @ np.linalg.inv(COVARIANCE) @ (theta["x"] - 1), init={"x": np.zeros(3)}
    )
    family = distributions.Transformed(distributions.Normal(jnp.zeros(3)), chain)
    return bf.fit(model, family=family, steps=1000, progress=False)


def integers(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf) and leaf.dtype.kind == "i"]


def test_realnvp_nears_a_correlated_gaussian(realnvp):
    elbo = realnvp.history["elbo"]
    assert elbo[-1] > elbo[0] + 0.3
    assert realnvp.diagnostics.elbo == pytest.approx(LOG_EVIDENCE, abs=0.1)
    assert realnvp.diagnostics.missing_mass == pytest.approx(0.0, abs=0.05)
    with jax.enable_x64(True):
        x, log_q = sampling.sample(realnvp.distribution, KEY, 10)
    np.testing.assert_allclose(realnvp.log_prob({"x": x}), log_q, rtol=1e-5)


def test_permutations_are_not_trained(realnvp):
    restart_keys = grid(spawn(as_key(0), 3)[1], (2,))
    starts = [named_flow(key, "realnvp", 3) for key in restart_keys]
    found = integers(realnvp.distribution)
    assert len(found) == 2
    assert any(all(map(np.array_equal, found, integers(start))) for start in starts)
    np.testing.assert_array_equal(np.sort(found[0]), np.tile(np.arange(3), (8, 1)))


def test_files_keep_the_permutations(realnvp, gaussian, tmp_path):
    loaded = bf.load(realnvp.save(tmp_path / "realnvp.bf"), gaussian)
    assert loaded.distribution.recipe() == {"kind": "flowjax", "name": "realnvp", "dim": 3}
    np.testing.assert_array_equal(loaded.draws(50)["x"], realnvp.draws(50)["x"])


def test_all_but_the_density_of_a_planar_flow(planar, tmp_path):
    assert planar.settings["family"] == "planar"
    assert np.isfinite(planar.diagnostics.elbo)
    draws = planar.draws(100, weighted=True)
    assert draws["b"].shape == (100, 2)
    assert planar.predict(num=20)["y"].shape == (20, len(Y))
    assert len(planar.summary()) == 3
    assert np.isfinite(planar.log_weights(100)).all()
    loaded = bf.load(planar.save(tmp_path / "planar.bf"), regression, Y)
    np.testing.assert_array_equal(loaded.draws(20)["b"], planar.draws(20)["b"])
    with pytest.raises(ArgumentError, match="cannot invert the planar flow, so its density is known only at its draws"):
        planar.log_prob(draws)


def test_a_planar_flow_fits_one_dimension(line):
    post = bf.fit(line, family="planar", steps=1500, training=bf.Training(optimizer=1e-2), progress=False)
    assert post.diagnostics.elbo == pytest.approx(0.5 * np.log(2 * np.pi), abs=0.2)


def test_own_distributions_are_trained_as_flowjax_would(own, tmp_path):
    assert own.settings["family"] == "flowjax:Transformed"
    assert own.settings["learning_rate"] == 1e-2
    assert own.diagnostics.verdict == "good"
    normal, triangular, shift = own.distribution.bijection.bijections
    np.testing.assert_array_equal(paramax.unwrap(shift).loc, 0.5)
    assert not np.allclose(normal.loc, 0.0)
    assert not np.allclose(triangular.loc, 0.0)
    with jax.enable_x64(True):
        x, log_q = own.distribution.sample_and_log_prob(KEY, 5)
        np.testing.assert_allclose(own.distribution.to_flowjax().log_prob(x), log_q, rtol=1e-6)


def test_own_distributions_cannot_be_saved(own, tmp_path):
    with pytest.raises(ArgumentError, match=r"your own flowjax object \(Chain\) cannot be saved: .* execute code"):
        own.save(tmp_path / "own.bf")
    assert not list(tmp_path.iterdir())


def test_own_distributions_can_be_refined(own):
    after = own.refine(steps=250, progress=False)
    assert after.settings["family"] == "flowjax:Transformed"
    assert after.settings["steps"] == 1250
    assert after.diagnostics.verdict == "good"


@pytest.mark.filterwarnings("ignore:bernflow. Poor")
def test_own_bijections_start_where_they_are(gaussian):
    base = distributions.StandardNormal((3,))
    maf = flows.masked_autoregressive_flow(KEY, base_dist=base, flow_layers=1, nn_width=8, invert=False).bijection
    # Built in single precision, fitted in double.
    post = bf.fit(gaussian, family=maf, steps=1, training=bf.Training(optimizer=1e-30), progress=False)
    assert post.settings["family"] == "flowjax:Scan"
    expected = maf.transform(jnp.ones(3))
    with jax.enable_x64(True):
        found = post.distribution.transform_and_log_det(jnp.ones(3))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_frozen_parts_are_found():
    base = distributions.Normal(jnp.ones(2), 2.0 * jnp.ones(2))
    flow = distributions.Transformed(base, bijections.Affine(jnp.zeros(2)))
    frozen = eqx.tree_at(lambda d: d.base_dist, flow, replace_fn=paramax.NonTrainable)
    check_given(frozen, 2)
    wrapped = given_flow(frozen)

    def loss(wrapped):
        return jnp.sum(wrapped.transform_and_log_det(jnp.ones(2))[0])

    normal, affine = eqx.filter_grad(loss)(wrapped).bijection.bijections
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(normal))
    assert np.all(affine.loc == 1.0)
    assert np.all(wrapped.transform_and_log_det(jnp.ones(2))[0] == 3.0)


def conditional():
    return flows.planar_flow(
        KEY, base_dist=distributions.StandardNormal((3,)), cond_dim=2, width_size=4, depth=1, invert=False
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: distributions.Normal(jnp.zeros(2)),
            r"flowjax:Normal has shape \(2,\); this posterior needs shape \(3,\)",
        ),
        (lambda: bijections.Affine(), r"flowjax:Affine has shape \(\); this posterior needs shape \(3,\)"),
        (
            conditional,
            r"flowjax:Transformed is conditional, with a condition of shape \(2,\): expected an unconditional",
        ),
        (lambda: distributions.StandardNormal((3,)), "flowjax:StandardNormal has nothing to train"),
        (lambda: paramax.non_trainable(bijections.Affine(jnp.ones(3))), "flowjax:Affine has nothing to train"),
        (
            lambda: distributions.Gumbel(jnp.zeros(3)),
            "flowjax:Gumbel has base noise _StandardGumbel, which is not symmetric about zero",
        ),
        (
            lambda: flows.planar_flow(KEY, base_dist=distributions.StandardNormal((3,)), flow_layers=1),
            "flowjax:Transformed cannot be sampled, .*: build it with invert=False",
        ),
    ],
)
def test_unsuitable_objects_are_named_before_training(make, message, gaussian):
    with pytest.raises(ArgumentError, match=message):
        bf.fit(gaussian, family=make())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"restarts": 2}, r"restarts=2, components=1: the family 'flowjax:Affine' has one start only, since all"),
        ({"components": 2}, r"restarts=8, components=2: the family 'flowjax:Affine' has one start only"),
        ({"family": "planar", "restarts": 3}, r"restarts=3.*'planar' has one start only, since .* cannot invert"),
        ({"family": "planar", "training": bf.Training(order=3)}, "order=3: the family 'planar' has no polynomial"),
        ({"training": bf.Training(order=3)}, "order=3: the family 'flowjax:Affine' has no polynomial"),
        ({"training": bf.Training(base="logistic")}, "base='logistic': the family 'flowjax:Affine' has its own"),
        ({"family": "flowjax:Affine"}, "family='flowjax:Affine' is unknown"),
        ({"family": "planar:f2"}, "family='planar:f2' is unknown"),
    ],
)
def test_unsuitable_choices_are_named(given, message, gaussian):
    with pytest.raises(ArgumentError, match=message):
        bf.fit(gaussian, **{"family": bijections.Affine(jnp.ones(3)), **given})


def test_one_dimension_has_nothing_to_couple(line):
    with pytest.raises(ArgumentError, match=r"'realnvp' needs at least 2 dimensions, and this posterior has 1"):
        bf.fit(line, family="realnvp")


def test_a_missing_flowjax_is_named(monkeypatch, planar, gaussian, tmp_path):
    path = planar.save(tmp_path / "planar.bf")
    monkeypatch.setitem(sys.modules, "flowjax.flows", None)
    with pytest.raises(ArgumentError, match=r"flowjax, which is not installed: pip install 'bernflow\[peers\]'"):
        bf.fit(gaussian, family="planar")
    with pytest.raises(FileFormatError, match=r"planar.bf: .*pip install 'bernflow\[peers\]'"):
        bf.load(path)


@pytest.mark.parametrize("name", ["planar", "realnvp"])
def test_rivals_are_trained_as_in_the_paper(name):
    found = resolve_settings(family=name, components=1)
    assert (found.steps, found.num_particles, found.learning_rate) == (100_000, 10, PAPER_LEARNING_RATE)
    assert found.optimizer is RMSPROP
    assert not found.family.use_start


@pytest.mark.parametrize("name", ["planar", "realnvp"])
def test_rivals_start_as_flowjax_starts_them(name):
    base = distributions.Normal(jnp.zeros(3))
    if name == "planar":
        theirs = flows.planar_flow(KEY, base_dist=base, flow_layers=10, invert=False)
    else:
        theirs = flows.coupling_flow(KEY, base_dist=base, flow_layers=8, nn_width=32, invert=False)
    ours = named_flow(KEY, name, 3)
    z = jnp.array([0.3, -1.0, 2.0])
    found, expected = (b.transform_and_log_det(z) for b in (ours, theirs.bijection))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    np.testing.assert_allclose(ours.base_log_prob(z), base.log_prob(z), rtol=1e-6)
    # The same functions inside: a second fit compiles nothing.
    other = named_flow(jax.random.key(8), name, 3)
    assert isinstance(other, FlowjaxFlow)
    assert eqx.tree_equal(*(eqx.filter(f, eqx.is_array, inverse=True) for f in (ours, other)))


def test_our_flows_are_bijections_of_flowjax():
    spec = Spec(dim=2, order=5, noise="normal", width=4)
    flow = FAMILIES["bernstein"].build(KEY, spec, jnp.array([1.0, -1.0]), jnp.array([[1.0, 0.0], [0.5, 2.0]]))
    assert isinstance(flow, AbstractFlow)
    inside = as_flowjax(flow)
    assert isinstance(inside, bijections.AbstractBijection)
    assert inside.shape == (2,)
    theirs = distributions.Transformed(distributions.StandardNormal((2,)), inside)
    x = jnp.array([[0.0, 0.0], [2.0, -3.0]])
    found, expected = eqx.filter_jit(lambda theirs, flow, x: (theirs.log_prob(x), flow.log_prob(x)))(theirs, flow, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(theirs.bijection.transform(jnp.ones(2)), flow.transform_and_log_det(jnp.ones(2))[0])
    with pytest.raises(ArgumentError, match=r"as_flowjax\(Affine\): expected one flow"):
        as_flowjax(bijections.Affine())
