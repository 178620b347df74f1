import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.melanoma import layers
from benchmarks.melanoma.cnn import augment, augmented, better_cnn, num_weights, paper_cnn
from bernflow.errors import ArgumentError
from bernflow.models.network import check_output, evaluate

# Measurements at a tiny scale: nightly, as what they take is compilation.
pytestmark = pytest.mark.slow

SMALL = (32, 32, 3)


def pictures(num=4, size=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (num, size, size, 3), dtype=np.uint8)


# Compiled as a whole: operation by operation, every test would compile dozens of functions.
@eqx.filter_jit
def train(network, images, key=0):
    return network.apply(network.weights, network.state, images, jax.random.key(key), True)


@eqx.filter_jit
def predict(network, images):
    return network(images)


def plain_tanh_norm_pool(values, bias, gamma, beta):
    """The same three layers one after the other, with an automatic gradient."""
    active = jnp.tanh(values + bias)
    mean, var = active.mean((0, 1, 2)), active.var((0, 1, 2))
    out = (active - mean) / jnp.sqrt(var + layers.EPSILON) * gamma + beta
    return lax.reduce_window(out, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), mean, var


def block_inputs(dtype=np.float32):
    rng = np.random.default_rng(3)
    values = rng.normal(size=(3, 8, 6, 5)).astype(dtype)
    # One channel with a negative slope, for which pooling takes the smallest input.
    gamma = np.array([1.0, -0.7, 0.3, 2.0, 1.5], dtype)
    return values, rng.normal(size=5).astype(dtype), gamma, rng.normal(size=5).astype(dtype)


def test_paper_cnn_has_the_papers_weights():
    network = paper_cnn(1)
    assert num_weights(network) == 419_489
    assert {leaf.dtype for leaf in jax.tree.leaves((network.weights, network.state))} == {np.dtype(np.float32)}
    assert check_output(network, pictures(2, 128)) == ()
    kernel = network.weights["conv1"]["kernel"]
    bound = np.sqrt(6.0 / (9 * 64))
    assert bound * 0.95 < np.abs(kernel).max() <= bound
    assert not np.any(network.weights["dense0"]["bias"])


def test_fused_layers_equal_plain_ones_and_so_do_their_gradients():
    with jax.enable_x64(True):
        arguments = block_inputs()
        weight = np.random.default_rng(4).normal(size=(3, 4, 3, 5))

        def total(function, *arguments):
            return jnp.sum(function(*arguments)[0] * weight)

        for ours, plain in zip(layers.tanh_norm_pool(*arguments), plain_tanh_norm_pool(*arguments), strict=True):
            np.testing.assert_allclose(ours, plain, atol=2e-6)
        grads = [
            jax.grad(lambda *a, f=f: total(f, *a), argnums=(0, 1, 2, 3))(*arguments)
            for f in (layers.tanh_norm_pool, plain_tanh_norm_pool)
        ]
        for ours, plain in zip(*grads, strict=True):
            np.testing.assert_allclose(ours, plain, atol=2e-5)


def test_equal_values_share_the_gradient():
    values = jnp.zeros((1, 2, 2, 1)).at[0, 0, 0, 0].set(-1.0)
    ones, zeros = jnp.ones(1), jnp.zeros(1)
    best, count = layers.pool(values, ones)
    assert (float(best[0, 0, 0, 0]), float(count[0, 0, 0, 0])) == (0.0, 3.0)
    grad = jax.grad(lambda v: layers.tanh_norm_pool(v, zeros, ones, zeros)[0].sum())(values)[0, :, :, 0]
    np.testing.assert_allclose(grad[0, 1], grad[1, 0], rtol=1e-6)
    np.testing.assert_allclose(grad[0, 1], grad[1, 1], rtol=1e-6)


def test_state_moves_in_training_and_is_frozen_afterward():
    network = paper_cnn(2, shape=SMALL)
    images = pictures(8)
    out, state = train(network, images, 1)
    assert out.shape == (8,)
    assert jax.tree.structure(state) == jax.tree.structure(network.state)
    values = layers.convolve(images / np.float32(255), network.weights["conv0"]["kernel"])
    active = np.tanh(values)
    np.testing.assert_allclose(state["conv0"]["mean"], 0.01 * active.mean((0, 1, 2)), atol=1e-6)
    np.testing.assert_allclose(state["conv0"]["var"], 0.99 + 0.01 * active.var((0, 1, 2)), atol=1e-6)
    trained = network.with_weights(network.weights, state)
    first = predict(trained, images)
    kept = eqx.filter_eval_shape(lambda n: n.apply(n.weights, n.state, images, jax.random.key(1), False)[1], trained)
    assert jax.tree.structure(kept) == jax.tree.structure(state)
    # Rows do not see each other, the key does not matter, and bytes are scaled.
    np.testing.assert_allclose(predict(trained, np.roll(images, 3, 0))[5], first[2], atol=1e-5)
    np.testing.assert_allclose(predict(trained, images / np.float32(255)), first, atol=1e-5)
    np.testing.assert_allclose(evaluate(trained, images[:5], block=8), first[:5], atol=1e-5)


def test_prediction_equals_training_with_the_statistics_of_the_batch():
    network = paper_cnn(5, shape=SMALL)
    weights = {
        name: {k: -v if k == "gamma" else v for k, v in own.items()} if name == "conv2" else own
        for name, own in network.weights.items()
    }
    values = np.random.default_rng(2).normal(size=(4, 4, 4, 64)).astype(np.float32)
    own = weights["conv2"]
    out, mean, var = layers.tanh_norm_pool(values, own["bias"], own["gamma"], own["beta"])
    frozen = layers.frozen_tanh_norm_pool(values, own["bias"], own, {"mean": mean, "var": var})
    np.testing.assert_allclose(frozen, out, atol=1e-6)


def test_dropout_follows_the_key():
    network = paper_cnn(2, shape=SMALL)
    images = pictures(8)
    outs = [train(network, images, k)[0] for k in (1, 1, 2)]
    np.testing.assert_array_equal(outs[0], outs[1])
    assert np.abs(outs[0] - outs[2]).max() > 1e-3
    kept = layers.dropout(jax.random.key(0), jnp.ones(20_000), 0.3)
    assert set(np.unique(kept)) == {np.float32(0.0), np.float32(1.0 / 0.7)}
    assert abs(float(kept.mean()) - 1.0) < 5 * np.sqrt(0.3 / 0.7 / 20_000)


@pytest.mark.parametrize(("make", "dtype"), [(paper_cnn, "float32"), (paper_cnn, "bfloat16"), (better_cnn, "bfloat16")])
def test_networks_learn(make, dtype):
    """A few steps of gradient descent tell bright pictures from dark ones, in both precisions."""
    network = make(1, dtype=dtype, shape=SMALL)
    target = np.arange(8) % 2
    images = (pictures(8) // 2 + 100 * target[:, None, None, None]).astype(np.uint8)

    @jax.jit
    def step(weights, state, key):
        def loss(weights):
            h, new = network.apply(weights, state, images, key, True)
            assert h.dtype == jnp.float32
            return jnp.mean(jax.nn.softplus(h) - target * h), new

        (value, state), grad = jax.value_and_grad(loss, has_aux=True)(weights)
        return jax.tree.map(lambda w, g: w - 0.02 * g, weights, grad), state, value

    weights, state = network.weights, network.state
    losses = []
    for key in jax.random.split(jax.random.key(0), 12):
        weights, state, value = step(weights, state, key)
        losses.append(float(value))
    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    assert {leaf.dtype for leaf in jax.tree.leaves((weights, state))} == {np.dtype(np.float32)}


def test_half_precision_is_close():
    images = pictures(8)
    exact, half = (paper_cnn(3, dtype=dtype, shape=SMALL) for dtype in ("float32", "bfloat16"))
    found = predict(half, images)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, predict(exact, images), atol=0.1)


def test_double_precision_around_it_changes_nothing():
    images = pictures(4)
    network = paper_cnn(3, shape=SMALL)
    expected = predict(network, images)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), network.weights)
        out, state = train(network.with_weights(wide, network.state), images)
        assert {leaf.dtype for leaf in jax.tree.leaves((out, state))} == {np.dtype(np.float32)}
        np.testing.assert_allclose(predict(network, images), expected, atol=1e-6)


def test_networks_made_alike_are_compiled_once():
    for make in (paper_cnn, better_cnn, lambda key, shape: augmented(paper_cnn(key, shape=shape))):
        first, second = (jax.tree.structure(make(key, shape=SMALL)) for key in (1, 2))
        assert first == second
        assert hash(first) == hash(second)


@pytest.mark.parametrize("make", [paper_cnn, better_cnn])
def test_wrong_arguments(make):
    with pytest.raises(ArgumentError, match="dtype='float16' is unknown: expected one of float32, bfloat16"):
        make(1, dtype="float16")
    with pytest.raises(ArgumentError, match=r"shape=\(120, 128, 3\): expected height and width, both multiples of"):
        make(1, shape=(120, 128, 3))


def test_better_cnn_is_small_and_starts_as_the_identity():
    network = better_cnn(1, shape=SMALL)
    assert 2_500_000 < num_weights(network) < 3_000_000
    out, state = eqx.filter_eval_shape(train, network, pictures())
    assert out.shape == (4,)
    assert jax.tree.structure(state) == jax.tree.structure(network.state)
    assert not np.any(network.weights["stage3b"]["second"]["gamma"])


def test_augment_turns_flips_and_relights():
    images = pictures(64, 8)
    turned = np.asarray(jax.jit(lambda key: augment(key, images, 0.0))(jax.random.key(0)))
    assert turned.dtype == np.uint8
    seen = set()
    for before, after in zip(images, turned, strict=True):
        positions = [np.rot90(flipped, k) for flipped in (before, before[::-1]) for k in range(4)]
        (position,) = [i for i, p in enumerate(positions) if np.array_equal(p, after)]
        seen.add(position)
    assert seen == set(range(8))
    lit = np.asarray(augment(jax.random.key(0), images, 0.1)).astype(float)
    change = lit.mean((1, 2, 3)) - images.mean((1, 2, 3))
    assert 5 < np.abs(change).max() < 26
    assert len(np.unique(change)) > 60


def test_augmentation_is_for_training_only():
    plain = paper_cnn(1, shape=SMALL)
    images = pictures()
    black = augmented(plain, _black)
    np.testing.assert_array_equal(predict(black, images), predict(plain, images))
    np.testing.assert_array_equal(train(black, images)[1]["conv0"]["mean"], 0.0)
    better = better_cnn(1, shape=SMALL, augment=_black)
    np.testing.assert_array_equal(train(better, images)[1]["stem"]["mean"], 0.0)


def _black(key, images):
    return jnp.zeros_like(images)
