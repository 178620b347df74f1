"""The paper's flow in TensorFlow Probability: its masked network, Bernstein polynomials and RMSprop.

The flow, the target and the optimizer are those of the family of the paper's text, in which the network has
activations and the inner affine map is trained: with the same weights both give the
same density (`tests/benchmarks/speed/test_tensorflow_flow.py`). TensorFlow is imported here alone.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import data
from bernflow.flows.bernstein import MIN_INCREMENT, log_binomials
from bernflow.flows.conditioner import hidden_degrees
from bernflow.flows.paper import HIDDEN_WIDTH, published_start

NEEDS = ("tensorflow", "tensorflow_probability", "tf_keras")
# The constants of the paper's optimizer.
LEARNING_RATE, RHO, EPSILON = 1e-3, 0.9, 1e-7
# The published code keeps t this far from 0 and 1.
MIN_T = 1e-5
LOG_2PI = float(np.log(2.0 * np.pi))
# How a step runs: as the paper's published code has it, as one compiled function, and that function through XLA.
MODES = ("published", "compiled", "xla")


def load() -> tuple[Any, Any, Any]:
    """Import TensorFlow, TensorFlow Probability and the Keras that it works with."""
    # Read when TensorFlow is imported: no banner, and the version of Keras that TensorFlow Probability is made for.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    import tensorflow as tf
    import tensorflow_probability as tfp
    import tf_keras

    return tf, tfp, tf_keras


class TensorflowFlow:
    """N(0, I) pushed forward by autoregressive Bernstein polynomials of sigmoid(softplus(alpha) z + beta).

    Args:
        dim: number of dimensions p.
        order: order M of the polynomials.
        width: units of each of the two hidden layers.
        beta_densities: evaluate the basis as densities of beta distributions, as the paper's published code does.
    """

    def __init__(self, dim: int, order: int, width: int = HIDDEN_WIDTH, beta_densities: bool = False):
        tf, tfp, _ = load()
        self.tf, self.dim, self.order = tf, dim, order
        self.alpha = tf.Variable(np.full(dim, np.log(np.expm1(1.0)), np.float32))
        self.beta = tf.Variable(np.zeros(dim, np.float32))
        self.network = tfp.bijectors.AutoregressiveNetwork(
            params=order + 1, event_shape=[dim], hidden_units=[width, width], activation="tanh"
        )
        self.network.build((None, dim))
        start = published_start(dim, order)
        self.network.trainable_variables[-1].assign(np.ravel(start).astype(np.float32))
        self._beta_densities = None
        if beta_densities:
            degrees = [np.arange(degree + 1, dtype=np.float32) for degree in (order, order - 1)]
            self._beta_densities = [tfp.distributions.Beta(i + 1.0, i[::-1] + 1.0) for i in degrees]
        self._log_binomials = [tf.constant(log_binomials(m), tf.float32) for m in (order, order - 1)]

    @property
    def variables(self) -> list[Any]:
        """Everything that is trained."""
        return [self.alpha, self.beta, *self.network.trainable_variables]

    def transform(self, z: Any) -> tuple[Any, Any]:
        """Map noise (S, p) to parameter vectors (S, p); return them with log q (S,)."""
        tf = self.tf
        scale = tf.nn.softplus(self.alpha)
        logit = scale * z + self.beta
        log_t, log_1mt = -tf.nn.softplus(-logit), -tf.nn.softplus(logit)
        raw = self.network(tf.exp(log_t))
        increment = tf.nn.softplus(raw[..., 1:]) + MIN_INCREMENT
        theta = tf.concat([raw[..., :1], raw[..., :1] + tf.cumsum(increment, axis=-1)], axis=-1)
        x = tf.reduce_sum(theta * self._basis(log_t, log_1mt, 0), -1)
        slope = self.order * tf.reduce_sum(increment * self._basis(log_t, log_1mt, 1), -1)
        log_det = tf.reduce_sum(tf.math.log(slope) + log_t + log_1mt + tf.math.log(scale), -1)
        return x, tf.reduce_sum(-0.5 * z**2 - 0.5 * LOG_2PI, -1) - log_det

    def _basis(self, log_t: Any, log_1mt: Any, which: int) -> Any:
        degree = self.order - which
        if self._beta_densities is not None:
            t = self.tf.clip_by_value(self.tf.exp(log_t), MIN_T, 1.0 - MIN_T)
            return self._beta_densities[which].prob(t[..., None]) / (degree + 1)
        i = np.arange(degree + 1, dtype=np.float32)
        return self.tf.exp(self._log_binomials[which] + i * log_t[..., None] + (degree - i) * log_1mt[..., None])

    def copy(self, flow: Any) -> None:
        """Take over the weights of a `PaperFlow`, masks applied."""
        w1, w2, out = _masked(flow.network)
        values = (flow.alpha, flow.beta, w1.T, flow.network.b1, w2.T, flow.network.b2, out, np.ravel(flow.bias))
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(np.asarray(value, np.float32))


def _masked(network: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weights of a `MaskedNetwork` with the forbidden ones zeroed; the read-out as (h, p k)."""
    width, dim = network.w1.shape
    degree = hidden_degrees(dim, width)
    w1 = np.asarray(network.w1) * (degree[:, None] >= np.arange(dim)[None, :])
    w2 = np.asarray(network.w2) * (degree[:, None] >= degree[None, :])
    return w1, w2, np.asarray(network.readout()).reshape(-1, width).T


def log_density(tf: Any, x: Any) -> Any:
    """Evaluate eight schools, non-centered, at x = (log tau, mu, effects), the order of bernflow; (S, 10) to (S,)."""
    y, sigma = (np.asarray(values, np.float32) for values in data.load_eight_schools())
    log_tau, mu, effects = x[:, 0], x[:, 1], x[:, 2:]
    tau = tf.exp(log_tau)
    log_prior = -0.5 * (mu / 5.0) ** 2 - np.log(5.0) - 0.5 * LOG_2PI
    # Half-Cauchy of scale 5, with the log-Jacobian of tau = exp(log tau).
    log_prior += np.log(2.0 / (np.pi * 5.0)) - tf.math.log1p((tau / 5.0) ** 2) + log_tau
    log_prior += tf.reduce_sum(-0.5 * effects**2 - 0.5 * LOG_2PI, -1)
    residual = (y - mu[:, None] - tau[:, None] * effects) / sigma
    return log_prior + tf.reduce_sum(-0.5 * residual**2 - np.log(sigma) - 0.5 * LOG_2PI, -1)


def make_step(flow: TensorflowFlow, num_particles: int, mode: str) -> Callable[[], Any]:
    """Return a function that takes one training step and returns the loss.

    Args:
        flow: what is trained.
        num_particles: draws per step, S.
        mode: "published": the loss is a tf.function, tape and optimizer (that of TensorFlow 2.1) are called from
            Python, and every loss is fetched, as in the paper's published code; "compiled": the whole step is a
            tf.function; "xla": that with jit_compile=True.
    """
    tf, _, tf_keras = load()
    if mode == "published":
        optimizer = tf_keras.optimizers.legacy.RMSprop(LEARNING_RATE, rho=RHO, epsilon=EPSILON)
    else:
        optimizer = tf_keras.optimizers.RMSprop(LEARNING_RATE, rho=RHO, epsilon=EPSILON)
        optimizer.build(flow.variables)

    def loss():
        x, log_q = flow.transform(tf.random.normal((num_particles, flow.dim)))
        return -tf.reduce_mean(log_density(tf, x) - log_q)

    inner = tf.function(loss) if mode == "published" else loss

    def step():
        with tf.GradientTape() as tape:
            value = inner()
        variables = flow.variables
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        return value

    return (lambda: step().numpy()) if mode == "published" else tf.function(step, jit_compile=mode == "xla")


def device_kind() -> str:
    """Say what TensorFlow computes on."""
    tf, _, _ = load()
    found = tf.config.list_physical_devices("GPU")
    if not found:
        return "cpu"
    return tf.config.experimental.get_device_details(found[0]).get("device_name", "gpu")
