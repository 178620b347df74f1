import json
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError
from bernflow.fit.api import _continued
from bernflow.flows.mixture import Mixture
from bernflow.posterior import Posterior


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"family": "planr"}, "family='planr' is unknown: expected one of bernstein,"),
        ({"order": 5}, r"bf.fit no longer takes 'order': write training=bf\.Training\(order=5\)"),
        ({"num_particles": 8, "base": None}, r"write training=bf\.Training\(num_particles=8, base=None\)"),
        ({"training": {"order": 5}}, "training=.*: expected options such as bf.Training"),
        ({"training": True}, r"training=True: expected .* by model_kwargs=\{'training': \.\.\.\}"),
        ({"family": "gaussian", "training": bf.Training(order=5)}, "order=5: the family 'gaussian' has no polynomial"),
        ({"key": "seed"}, "key='seed' is not a random key: expected an integer seed"),
        ({"model_kwargs": [1]}, r"model_kwargs=\[1\]: expected a dict of keyword arguments for the model"),
    ],
)
def test_wrong_arguments_are_named_before_any_work(given, message, model, y):
    before = model.num_traces
    with pytest.raises(ArgumentError, match=message):
        bf.fit(model, y, **given)
    assert model.num_traces == before


def test_unknown_keywords_are_errors(model, y):
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_step'"):
        bf.fit(model, y, num_step=5)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'z': it is neither an option of bf.fit nor"):
        bf.fit(model, y, z=y)


def test_the_fit_is_good_and_its_figures_agree(posterior):
    found = posterior.diagnostics
    assert found.verdict == "good"
    assert found.elbo <= found.log_evidence + 3 * found.elbo_se
    assert posterior.history["elbo"][-1] == pytest.approx(found.elbo, abs=0.1)
    assert posterior.precision == "float64"


def test_settings_are_json(posterior):
    found = json.loads(json.dumps(posterior.settings))
    assert found["family"] == "bernstein"
    assert found["order"] == 20
    assert found["wall_seconds"] > 0
    assert set(found["versions"]) >= {"bernflow", "jax"}


def test_the_users_precision_is_left_alone(posterior):
    assert not jax.config.jax_enable_x64
    assert jnp.ones(3).dtype == np.float32
    posterior.draws(10)
    posterior.log_prob(posterior.draws(10))
    assert jnp.ones(3).dtype == np.float32


def test_poor_fits_warn_and_return(gaussian_model):
    with pytest.warns(UserWarning, match="bernflow: Poor") as caught:
        post = bf.fit(gaussian_model, family="gaussian", steps=100, progress=False)
    assert post.diagnostics.verdict == "poor"
    assert caught[0].filename == __file__, "the warning points at the user's line"
    assert post.draws(5)["x"].shape == (5, 2)


@pytest.mark.parametrize("optimizer", [0.02, optax.adam(0.02)], ids=["rate", "optax"])
@pytest.mark.parametrize("precision", ["float32"])
def test_optimizers(gaussian_model, optimizer, precision):
    post = bf.fit(
        gaussian_model,
        family="gaussian-fullrank",
        steps=100,
        training=bf.Training(optimizer=optimizer, precision=precision),
        progress=False,
    )
    assert post.diagnostics.verdict == "good"
    assert post.settings["precision"] == precision
    assert not jax.config.jax_enable_x64
    assert np.corrcoef(post.draws(4000)["x"].T)[0, 1] == pytest.approx(0.95, abs=0.02)


def test_refine_trains_on(posterior):
    finer = posterior.refine(steps=250, progress=False)
    old, new = posterior.diagnostics, finer.diagnostics
    assert new.elbo > old.elbo - 3 * np.hypot(old.elbo_se, new.elbo_se) - 1e-3
    assert finer.settings["steps"] == posterior.settings["steps"] + 250
    num = len(posterior.history["step"])
    np.testing.assert_array_equal(finer.history["elbo"][:num], posterior.history["elbo"])
    assert finer.history["step"][-1] == finer.settings["steps"]
    assert np.all(np.diff(finer.history["step"]) > 0)
    assert finer.settings["family"] == posterior.settings["family"]


def test_refine_takes_another_optimizer_but_not_another_flow(posterior):
    made = posterior.settings
    kept = {"num_particles": made["num_particles"], "precision": made["precision"]}
    assert _continued(posterior, None) == bf.Training(optimizer=made["learning_rate"], **kept)
    assert _continued(posterior, bf.Training(optimizer=1e-4)) == bf.Training(optimizer=1e-4, **kept)
    with pytest.raises(ArgumentError, match="got order=5 in training=, which is that of the posterior: give optimizer"):
        posterior.refine(training=bf.Training(order=5))
    with pytest.raises(ArgumentError, match=r"training=0\.1: expected options such as bf\.Training"):
        posterior.refine(training=0.1)


@pytest.mark.filterwarnings("ignore:bernflow. Poor")
def test_refining_ends_where_nothing_is_gained(model, y):
    # A Gaussian is far from this posterior, and no training changes that.
    post = bf.fit(model, y, family="gaussian", steps=1000, progress=False)
    again = post.refine(progress=False)
    assert again.settings["steps"] == 2000
    assert again.diagnostics.status.endswith("Refining it by 1,000 steps did not raise the ELBO.")


def test_save_and_load(posterior, model, y, tmp_path):
    path = posterior.save(tmp_path / "fit.bernflow")
    for loaded in (bf.load(path), bf.load(path, model, y)):
        assert loaded.diagnostics == posterior.diagnostics
        assert loaded.settings == posterior.settings
        for name, values in posterior.draws(50).items():
            np.testing.assert_array_equal(loaded.draws(50)[name], values)
        np.testing.assert_array_equal(loaded.log_prob(loaded.draws(50)), posterior.log_prob(posterior.draws(50)))
    np.testing.assert_array_equal(loaded.draws(50, weighted=True)["s"], posterior.draws(50, weighted=True)["s"])
    assert loaded.refine(steps=5, progress=False).settings["steps"] == posterior.settings["steps"] + 5
    with pytest.raises(ArgumentError, match=r"differs from that of the fit by up to .* nats at 8 draws of the fit"):
        bf.load(path, model, y + 1.0)
    with pytest.warns(UserWarning, match="bernflow: Poor"):
        judged = bf.load(path, model, y + 1.0, check=False).diagnostics
    assert judged.verdict == "poor"
    assert "the verdict on an earlier fit under another model or other data" in judged.status


def mixed(posterior, weight):
    """The same posterior as a mixture of itself, one part of it moved."""
    with jax.enable_x64(True):
        moved = eqx.tree_at(lambda flow: flow.outer.shift, posterior.distribution, replace_fn=lambda shift: shift + 1.0)
        mixture = Mixture((posterior.distribution, moved), jnp.log(jnp.array([1.0 - weight, weight])))
    return Posterior(
        mixture,
        posterior.layout,
        posterior.model,
        posterior.diagnostics,
        posterior.history,
        posterior.settings,
        posterior._refiner,
    )


def test_a_mixture_is_refined_as_a_whole(posterior):
    before = mixed(posterior, 0.4)
    after = before.refine(steps=200, progress=False)
    assert isinstance(after.distribution, Mixture)
    assert np.sum(np.exp(after.distribution.log_weights)) == pytest.approx(1.0)
    # The part that lies off is moved back or loses its weight.
    distance_before, distance_after = (
        post.diagnostics.log_evidence - np.mean(post.log_weights(4000, 0)) for post in (posterior, after)
    )
    off = posterior.diagnostics.log_evidence - np.mean(before.log_weights(4000, 0))
    assert off > 0.05
    assert distance_after < max(0.2 * off, 2.0 * distance_before)
    assert after.settings["steps"] == posterior.settings["steps"] + 200
    # Two parts of 16 draws each.
    assert after.settings["training_gradients"] == posterior.settings["training_gradients"] + 200 * 32


def test_a_mixture_of_flows_without_a_score_cannot_be_refined(model, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is poor
        other = bf.fit(model, y, family="bernstein-paper", training=bf.Training(order=4), steps=2, progress=False)
    other.distribution = Mixture((other.distribution, other.distribution), jnp.zeros(2))
    with pytest.raises(ArgumentError, match=r"whose flows know their score.*'bernstein-paper' do not: call bf\.fit"):
        other.refine(steps=5)
