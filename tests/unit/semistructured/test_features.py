import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow.models.network import as_network
from bernflow.semistructured.features import evaluate_features, find_last_layer, find_reduction

from .test_estimator import nnx_network


def test_features_times_weights_are_the_output():
    module = eqx.nn.MLP(6, "scalar", 10, 2, key=jax.random.key(0))
    network, inputs = as_network(module), np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    number = find_last_layer(network, inputs)
    out, features = evaluate_features(network, inputs, number, block=8)
    assert features.shape == (20, 10)
    last = module.layers[-1]
    np.testing.assert_allclose(features @ last.weight[0] + last.bias, out[:, 0], atol=1e-5)


def test_the_features_of_flax():
    pytest.importorskip("flax")
    inputs = np.random.default_rng(0).normal(size=(20, 8, 8)).astype(np.float32)
    network = as_network(nnx_network())
    _, features = evaluate_features(network, inputs, find_last_layer(network, inputs))
    np.testing.assert_allclose(features, inputs.reshape(20, -1), atol=1e-6)


def test_several_outputs_have_the_features_of_one():
    module = eqx.nn.MLP(6, 3, 10, 1, key=jax.random.key(0))
    network, inputs = as_network(module), np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    out, features = evaluate_features(network, inputs, find_last_layer(network, inputs))
    assert out.shape == (20, 3)
    used = features[:, np.ptp(features, axis=0) > 0]
    np.testing.assert_allclose(used @ module.layers[-1].weight[0] + module.layers[-1].bias[0], out[:, 0], atol=1e-5)


def test_a_network_without_a_linear_last_layer():
    module = eqx.nn.MLP(6, "scalar", 10, 1, final_activation=jnp.tanh, key=jax.random.key(0))
    network, inputs = as_network(module), np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    assert find_last_layer(network, inputs) is None
    assert evaluate_features(network, inputs, None)[1].shape == (20, 0)


class Normalized(eqx.Module):
    """A network whose last layer has as many weights as the shift of the normalization before it."""

    hidden: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.hidden, self.norm = eqx.nn.Linear(6, 10, key=first), eqx.nn.LayerNorm(10)
        self.last = eqx.nn.Linear(10, "scalar", key=second)

    def __call__(self, x):
        return self.last(self.norm(jnp.tanh(self.hidden(x))))


def test_a_shift_before_the_last_layer_is_not_the_last_layer():
    inputs = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    network = as_network(Normalized(jax.random.key(0)))
    out, features = evaluate_features(network, inputs, find_last_layer(network, inputs))
    assert np.all(np.ptp(features, axis=0) > 0)
    # The features span the output, up to a constant.
    columns = np.concatenate([features, np.ones((20, 1))], 1)
    np.testing.assert_allclose(columns @ np.linalg.lstsq(columns, out[:, 0])[0], out[:, 0], atol=1e-5)


def test_a_layer_that_is_only_nearly_linear_is_not_the_last_layer():
    module = eqx.nn.MLP(6, "scalar", 10, 2, activation=jnp.tanh, key=jax.random.key(0))
    network = as_network(module)
    inputs = 1e-3 * np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    leaves = jax.tree.leaves(eqx.filter(network.weights, eqx.is_inexact_array))
    assert leaves[find_last_layer(network, inputs)] is module.layers[-1].weight


def test_a_wide_layer_is_reduced_to_its_principal_components():
    rng = np.random.default_rng(0)
    features = jnp.asarray(rng.normal(size=(100, 3)) @ rng.normal(size=(3, 40)))
    reduction = find_reduction(jnp.ones((100, 1)), features, jnp.ones(100), max_features=3)
    reduced = np.asarray(reduction(jnp.ones((100, 1)), features)[1])
    assert reduced.shape == (100, 3)
    scaled = (features - features.mean(0)) / features.std(0)
    assert np.sum(reduced**2) == pytest.approx(float(np.sum(scaled**2)), rel=1e-4)
