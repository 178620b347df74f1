"""Features of the last layer of a network: the derivative of its output with respect to the weights of that layer."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bernflow.compiled import filter_jit
from bernflow.models.network import BLOCK_SIZE, Network

# Rows on which linearity is tested, and the size of the step relative to the weights: a function that is only nearly
# linear for small inputs, such as tanh, is not linear for a large step.
NUM_TEST_ROWS, TEST_STEP = 8, 30.0
# Deviations relative to the change, and to the output, which is rounded.
TOLERANCE, ROUNDING = 1e-3, 1e-5
# A change that varies between rows by less than so many times the deviation allowed is the same for all of them.
MIN_VARIATION = 10.0
# A wider last layer is reduced to this number of principal components.
MAX_FEATURES = 128


def find_last_layer(network: Network, inputs: np.ndarray) -> int | None:
    """Return the index of the largest array of weights in which the output is linear, or None.

    The test is numerical, so it works for every framework: a large step in the weights of a linear last layer
    changes the output exactly as the derivative predicts. Weights that shift all rows by the same number, such as a
    bias before that layer, have no features and do not count.

    Args:
        network: any network.
        inputs: some rows.
    """
    rows = jnp.asarray(inputs[:NUM_TEST_ROWS])
    leaves = jax.tree.leaves(eqx.filter(network.weights, eqx.is_inexact_array))
    order = sorted(range(len(leaves)), key=lambda i: -leaves[i].size)
    return next((i for i in order if leaves[i].ndim > 0 and _is_linear(network, rows, i)), None)


@filter_jit
def _change(network: Network, rows: Array, direction: PyTree) -> tuple[Array, Array, Array]:
    """Return the output, its change by a step in the weights, and the change that its derivative predicts."""
    weights, fixed = eqx.partition(network.weights, eqx.is_inexact_array)

    def function(weights: PyTree) -> Array:
        return network.with_weights(eqx.combine(weights, fixed), network.state)(rows).reshape(rows.shape[0], -1)

    out, slope = jax.jvp(function, (weights,), (direction,))
    return out, function(jax.tree.map(jnp.add, weights, direction)) - out, slope


def _is_linear(network: Network, rows: Array, number: int) -> bool:
    leaves, structure = jax.tree.flatten(eqx.filter(network.weights, eqx.is_inexact_array))
    scale = TEST_STEP * (float(jnp.sqrt(jnp.mean(leaves[number].astype(jnp.float32) ** 2))) + 0.1)
    noise = np.random.default_rng(number).normal(size=leaves[number].shape) * scale
    # A step in all weights that is zero but for one array: one compiled function serves all arrays.
    steps = [jnp.zeros_like(leaf) for leaf in leaves]
    steps[number] = jnp.asarray(noise, leaves[number].dtype)
    out, change, slope = map(np.asarray, _change(network, rows, jax.tree.unflatten(structure, steps)))
    varies = np.ptp(change, axis=0).max()
    allowed = TOLERANCE * np.abs(change).max() + ROUNDING * np.abs(out).max()
    return bool(varies > MIN_VARIATION * allowed and np.abs(change - slope).max() <= allowed)


def _of_layer(network: Network, rows: Array, number: int) -> tuple[Any, Array]:
    """Return the output as a function of one array of weights, and that array."""
    variable, fixed = eqx.partition(network.weights, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(variable)

    def function(leaf: Array) -> Array:
        weights = jax.tree.unflatten(structure, [*leaves[:number], leaf, *leaves[number + 1 :]])
        return network.with_weights(eqx.combine(weights, fixed), network.state)(rows).reshape(rows.shape[0], -1)

    return function, leaves[number]


def outputs_and_features(
    network: Network, rows: Array, number: int | None
) -> tuple[Float[Array, "n d"], Float[Array, "n f"]]:
    """Evaluate a frozen network on a batch: its output, and the features that its last layer multiplies by weights.

    The derivative is that of the first output; it is zero for weights that affect only other outputs of the layer.
    """
    if number is None:
        out = network(rows).reshape(rows.shape[0], -1)
        return out, jnp.zeros((rows.shape[0], 0), out.dtype)
    function, weights = _of_layer(network, rows, number)
    out, linear = jax.linearize(function, weights)
    basis = jnp.eye(weights.size, dtype=weights.dtype).reshape(-1, *weights.shape)
    # The nonlinear part runs once; only the last layer is repeated.
    return out, jax.vmap(lambda direction: linear(direction)[:, 0], out_axes=1)(basis)


@filter_jit
def _block(network: Network, rows: Array, number: int | None) -> tuple[Array, Array]:
    return outputs_and_features(network, rows, number)


def evaluate_features(
    network: Network, inputs: np.ndarray, number: int | None, block: int = BLOCK_SIZE
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n f"]]:
    """Evaluate output and features of many rows, in blocks; copies of the last row pad the last block."""
    outputs, features = [], []
    for start in range(0, len(inputs), block):
        rows = np.minimum(np.arange(start, start + block), len(inputs) - 1)
        out, part = _block(network, jnp.asarray(inputs[rows]), number)
        outputs.append(np.asarray(out, np.float64)[: len(inputs) - start])
        features.append(np.asarray(part, np.float32)[: len(inputs) - start])
    return np.concatenate(outputs), np.concatenate(features)


class Reduction(eqx.Module):
    """Centers and scales output and features by their values on the training rows, and reduces wide layers.

    Attributes:
        mean: of output and features together.
        scale: of the same; infinite for a constant column, which becomes a column of zeros.
        rotation: principal components of the scaled features, or None if there are few of them.
    """

    mean: Float[Array, " c"]
    scale: Float[Array, " c"]
    rotation: Float[Array, "f r"] | None

    def __call__(self, out: Any, features: Any) -> tuple[Any, Any]:
        """Return scaled output (n, d) and features (n, r)."""
        both = (jnp.concatenate([out, features.astype(out.dtype)], 1) - self.mean) / self.scale
        first, rest = both[:, : out.shape[1]], both[:, out.shape[1] :]
        return first, rest if self.rotation is None else rest @ self.rotation


def find_reduction(
    out: Float[Array, "n d"],
    features: Float[Array, "n f"],
    weight: Float[Array, " n"],
    max_features: int = MAX_FEATURES,
) -> Reduction:
    """Find the scaling from all rows on which output and features are used; rows of weight zero do not count."""
    both, share = jnp.concatenate([out, features.astype(out.dtype)], 1), (weight / jnp.sum(weight))[:, None]
    mean = jnp.sum(share * both, 0)
    spread = jnp.sqrt(jnp.sum(share * (both - mean) ** 2, 0))
    typical = jnp.max(spread, initial=1e-12)
    plain = Reduction(mean, jnp.where(spread > 1e-6 * typical, spread, jnp.inf), None)
    if features.shape[1] <= max_features:
        return plain
    scaled = plain(out, features)[1]
    _, vectors = jnp.linalg.eigh((scaled * share).T @ scaled)
    return Reduction(plain.mean, plain.scale, vectors[:, -max_features:])
