"""Base noise of the flows, and the polynomial at which each of them starts."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.special import expit, ndtri

from bernflow.flows.base import normal_log_prob


@dataclass(frozen=True)
class BaseNoise:
    """A symmetric base density.

    Attributes:
        half_width: half-width c of the interval [-c, c] that the polynomial covers.
        sample: draws noise of a given shape from a key.
        log_prob: evaluates the log density of a vector.
        normal_quantile: maps noise to the standard normal variate of (nearly) the same quantile.
    """

    half_width: float
    sample: Callable[[Key[Array, ""], tuple[int, ...]], Float[Array, "..."]]
    log_prob: Callable[[Float[Array, " p"]], Float[Array, ""]]
    normal_quantile: Callable[[np.ndarray], np.ndarray]

    def start(self, order: int) -> np.ndarray:
        """Return coefficients theta_0..theta_M of a polynomial that makes the noise (nearly) standard normal."""
        return self.normal_quantile(np.linspace(-self.half_width, self.half_width, order + 1))


NOISES: dict[str, BaseNoise] = {
    "normal": BaseNoise(4.0, jax.random.normal, normal_log_prob, lambda z: z),
    # The exponential tails of a logistic density dominate those of log-scales and logits.
    "logistic": BaseNoise(
        8.0,
        jax.random.logistic,
        lambda z: -jnp.sum(jax.nn.softplus(z) + jax.nn.softplus(-z)),
        lambda z: ndtri(expit(z)),
    ),
}
