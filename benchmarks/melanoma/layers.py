"""Layers of the melanoma networks as plain functions: NHWC, statistics in single precision, large arrays read once."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key, UInt8

# Batch normalization as in Keras.
EPSILON = 1e-3
Tree = dict[str, Any]


def glorot(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    """Draw weights uniformly in the bounds of Glorot and Bengio; `shape` ends with (inputs, outputs)."""
    field = 1
    for length in shape[:-2]:
        field *= length
    bound = (6.0 / (field * (shape[-2] + shape[-1]))) ** 0.5
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def he(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    """Draw normal weights with variance 2 / fan-in, for rectified units."""
    field = 1
    for length in shape[:-1]:
        field *= length
    return jax.random.normal(key, shape, jnp.float32) * (2.0 / field) ** 0.5


def norm_weights(num: int, scale: float = 1.0) -> Tree:
    """Return scale and shift of a batch normalization."""
    return {"gamma": jnp.full(num, scale, jnp.float32), "beta": jnp.zeros(num, jnp.float32)}


def norm_state(num: int) -> Tree:
    """Return the running mean and variance of a batch normalization before training."""
    return {"mean": jnp.zeros(num, jnp.float32), "var": jnp.ones(num, jnp.float32)}


def as_unit(images: Array, dtype: Any) -> Array:
    """Bring pictures to [0, 1]: those of unsigned bytes are divided by 255, others are taken as they are."""
    if images.dtype == jnp.uint8:
        return (images.astype(jnp.float32) * jnp.float32(1 / 255)).astype(dtype)
    return images.astype(dtype)


def convolve(inputs: Array, kernel: Array, stride: int = 1) -> Array:
    """Convolve (B, H, W, C) with a kernel (k, k, C, D) and padding "same", in the type of the inputs."""
    return lax.conv_general_dilated(
        inputs,
        kernel.astype(inputs.dtype),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def moments(values: Array) -> tuple[Array, Array]:
    """Return mean and variance of every channel in one pass over the values, summed in single precision."""
    axes = tuple(range(values.ndim - 1))
    values = values.astype(jnp.float32)
    mean = jnp.mean(values, axes)
    # Rounding can bring the difference below zero for a constant channel.
    return mean, jnp.maximum(jnp.mean(jnp.square(values), axes) - jnp.square(mean), 0.0)


def running(state: Tree, mean: Array, var: Array, momentum: float) -> Tree:
    """Return the new running statistics; no gradient goes through them."""
    mean, var = lax.stop_gradient((mean, var))
    return {
        "mean": momentum * state["mean"] + (1.0 - momentum) * mean,
        "var": momentum * state["var"] + (1.0 - momentum) * var,
    }


def batch_norm(weights: Tree, state: Tree, values: Array, training: bool, momentum: float) -> tuple[Array, Tree]:
    """Normalize by the batch in training and by the running statistics otherwise."""
    mean, var = moments(values) if training else (state["mean"], state["var"])
    slope = weights["gamma"].astype(jnp.float32) * lax.rsqrt(var + EPSILON)
    out = (values.astype(jnp.float32) - mean) * slope + weights["beta"].astype(jnp.float32)
    return out.astype(values.dtype), running(state, mean, var, momentum) if training else state


def dropout(key: Key[Array, ""], values: Array, rate: float) -> Array:
    """Set a fraction `rate` of the values to zero and scale up the others."""
    kept = jax.random.bernoulli(key, 1.0 - rate, values.shape)
    return jnp.where(kept, values / (1.0 - rate), 0.0).astype(values.dtype)


def pool(values: Float[Array, "b h w c"], sign: Float[Array, " c"]) -> tuple[Array, Array]:
    """Return the largest (sign 1) or smallest (sign -1) value of every 2x2 window, and how many values are equal to it.

    Written with four views rather than as a windowed reduction, whose gradient is slow on a GPU.
    """
    b, h, w, c = values.shape
    windows = values.reshape(b, h // 2, 2, w // 2, 2, c)
    corners = [windows[:, :, i, :, j] for i in (0, 1) for j in (0, 1)]
    high = jnp.maximum(jnp.maximum(corners[0], corners[1]), jnp.maximum(corners[2], corners[3]))
    low = jnp.minimum(jnp.minimum(corners[0], corners[1]), jnp.minimum(corners[2], corners[3]))
    best = jnp.where(sign > 0, high, low)
    return best, sum((corner == best).astype(values.dtype) for corner in corners)  # type: ignore[return-value]


@jax.custom_vjp
def tanh_norm_pool(values: Array, bias: Array, gamma: Array, beta: Array) -> tuple[Array, Array, Array]:
    """Apply tanh(. + bias), batch normalization by the batch and 2x2 max pooling to (B, H, W, C), as one operation.

    Tanh is increasing and the normalization is increasing or, for gamma < 0, decreasing, so that the pooled value is
    that of the largest or smallest input of the window. Only the inputs are kept for the gradient, and each pass reads
    the large array once: an automatic gradient would write four arrays of its size.

    Returns:
        the pooled values (B, H/2, W/2, C), and mean and variance of the batch (C,), through which no gradient goes.
    """
    return _forward(values, bias, gamma, beta)[0]


def _forward(values: Array, bias: Array, gamma: Array, beta: Array) -> tuple[tuple[Array, Array, Array], tuple]:
    active = jnp.tanh(values.astype(jnp.float32) + bias)
    mean, var = moments(active)
    third = jnp.mean(active * jnp.square(active), (0, 1, 2))
    best, count = pool(values, _sign(gamma))
    scale = lax.rsqrt(var + EPSILON)
    out = (jnp.tanh(best.astype(jnp.float32) + bias) - mean) * (scale * gamma) + beta
    return (out.astype(values.dtype), mean, var), (values, bias, gamma, mean, var, third, best, count)


def _backward(saved: tuple, gradients: tuple[Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
    values, bias, gamma, mean, var, third, best, count = saved
    b, h, w, c = values.shape
    axes, num = (0, 1, 2), b * h * w
    grad = gradients[0].astype(jnp.float32)
    scale = lax.rsqrt(var + EPSILON)
    # Sums over the pooled values are enough for the normalization: the other values have no gradient of their own.
    pooled = jnp.tanh(best.astype(jnp.float32) + bias)
    grad_beta = jnp.sum(grad, axes)
    grad_gamma = jnp.sum(grad * (pooled - mean) * scale, axes)
    share = (grad / count.astype(jnp.float32)).astype(values.dtype)
    # The windows as broadcasts, so that the large arrays are one read and one write in one loop.
    windows = values.reshape(b, h // 2, 2, w // 2, 2, c)
    active = jnp.tanh(windows.astype(jnp.float32) + bias)
    spread = jnp.where(windows == best[:, :, None, :, None], share[:, :, None, :, None].astype(jnp.float32), 0.0)
    inner = spread - grad_beta / num - (active - mean) * (scale * grad_gamma / num)
    grad_values = (inner * (gamma * scale) * (1.0 - jnp.square(active))).astype(values.dtype)
    # The sum of grad_values by the moments of `active`, E t, E t^2 and E t^3, which saves another pass over it.
    second = var + jnp.square(mean)
    total = jnp.sum(grad * (1.0 - jnp.square(pooled)), axes)
    total = total - grad_beta * (1.0 - second) + scale * grad_gamma * (third - mean * second)
    return grad_values.reshape(values.shape), gamma * scale * total, grad_gamma, grad_beta


tanh_norm_pool.defvjp(_forward, _backward)


def frozen_tanh_norm_pool(values: Array, bias: Array, weights: Tree, state: Tree) -> Array:
    """Apply the same with the running statistics."""
    best, _ = pool(values, _sign(weights["gamma"]))
    slope = weights["gamma"] * lax.rsqrt(state["var"] + EPSILON)
    out = (jnp.tanh(best.astype(jnp.float32) + bias) - state["mean"]) * slope + weights["beta"]
    return out.astype(values.dtype)


def _sign(gamma: Array) -> Array:
    return jnp.where(gamma < 0, -1, 1)


def augment(key: Key[Array, ""], images: UInt8[Array, "b s s c"], strength: float = 0.1) -> UInt8[Array, "b s s c"]:
    """Flip and turn every picture at random, and change brightness and contrast a little.

    Two flips and a transposition, each with probability one half, give the eight positions of a square.

    Args:
        key: key of this batch.
        images: square pictures of unsigned bytes.
        strength: brightness moves by up to this fraction of the range, contrast by up to this factor.
    """
    num = images.shape[0]
    flips_key, light_key = jax.random.split(key)
    flips = jax.random.bernoulli(flips_key, 0.5, (3, num, 1, 1, 1))
    images = jnp.where(flips[0], images[:, ::-1], images)
    images = jnp.where(flips[1], images[:, :, ::-1], images)
    images = jnp.where(flips[2], images.swapaxes(1, 2), images)
    light = jax.random.uniform(light_key, (2, num, 1, 1, 1), jnp.float32, -strength, strength)
    pixels = images.astype(jnp.float32)
    middle = jnp.mean(pixels, (1, 2, 3), keepdims=True)
    pixels = (pixels - middle) * (1.0 + light[0]) + middle + 255.0 * light[1]
    return jnp.clip(jnp.round(pixels), 0.0, 255.0).astype(jnp.uint8)
