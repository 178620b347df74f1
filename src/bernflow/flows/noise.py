"""Base noise of the flows: where the polynomial starts from and how wide its interval is."""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.special import expit, ndtri

from bernflow.flows.base import normal_log_prob


class Noise(Protocol):
    """A symmetric base density."""

    @property
    def half_width(self) -> float:
        """Half-width c of the interval [-c, c] that the polynomial covers."""

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draw noise."""

    def log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density of a vector."""

    def start(self, order: int) -> np.ndarray:
        """Return the coefficients theta_0..theta_M that turn the noise into (nearly) standard normal variates."""


@dataclass(frozen=True)
class NormalNoise:
    """Standard normal noise; equally spaced coefficients make the flow the identity."""

    half_width: float = 4.0

    def sample(self, key, shape):
        """Draw noise."""
        return jax.random.normal(key, shape)

    def log_prob(self, z):
        """Evaluate the log density of a vector."""
        return normal_log_prob(z)

    def start(self, order):
        """Return equally spaced coefficients on [-c, c]."""
        return np.linspace(-self.half_width, self.half_width, order + 1)


@dataclass(frozen=True)
class LogisticNoise:
    """Logistic noise: exponential tails, which dominate those of log-scales and logits."""

    half_width: float = 8.0

    def sample(self, key, shape):
        """Draw noise."""
        return jax.random.logistic(key, shape)

    def log_prob(self, z):
        """Evaluate the log density of a vector."""
        return -jnp.sum(jax.nn.softplus(z) + jax.nn.softplus(-z))

    def start(self, order):
        """Return the normal quantiles of an equally spaced grid on [-c, c]."""
        return ndtri(expit(np.linspace(-self.half_width, self.half_width, order + 1)))


NOISES: dict[str, Noise] = {"normal": NormalNoise(), "logistic": LogisticNoise()}
