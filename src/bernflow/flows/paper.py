"""The flow as the paper's text describes it, f = f_BP o sigmoid o affine, for comparison.

The outer coefficients bound its support, there is no outer affine map and no linear term, and the conditioner is a
function of the noise after the sigmoid. The ablations of the paper's appendix are its variants.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.special import ndtr

from bernflow.flows.base import LOG_2PI, AbstractFlow, normal_log_prob
from bernflow.flows.bernstein import basis_from_logs, increments, inverse_increments, invert_increasing, polynomial
from bernflow.flows.conditioner import MaskedNetwork

# The truncated normal of the appendix.
LOCATION, SCALE, BOUND = 0.5, 0.15, 1e-4
# The polynomials start as a straight line from -START_RANGE to START_RANGE.
START_RANGE = 10.0
HIDDEN_WIDTH = 10


class PaperFlow(AbstractFlow):
    """theta_j = sum_i vartheta_i^j(z_1..z_{j-1}) B_{i,M}(t_j), eq. 3 of the paper.

    Attributes:
        variant: how noise becomes t in [0, 1]. "f1": t = sigmoid(softplus(alpha) z + beta), "f2": t = sigmoid(z), both
            with z ~ N(0, 1); "f3": t ~ truncated normal.
    """

    alpha: Float[Array, " p"]
    beta: Float[Array, " p"]
    bias: Float[Array, "p m_plus_1"]
    network: MaskedNetwork | None
    variant: str = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __init__(
        self, key: Key[Array, ""], dim: int, *, order: int, variant: str = "f1", start_range: float = START_RANGE
    ):
        self.dim = dim
        self.variant = variant
        self.alpha = jnp.full(dim, np.log(np.expm1(1.0)))
        self.beta = jnp.zeros(dim)
        line = inverse_increments(np.full(order, 2.0 * start_range / order))
        self.bias = jnp.tile(jnp.concatenate([jnp.array([-start_range]), jnp.asarray(line)]), (dim, 1))
        self.network = MaskedNetwork(key, dim, order + 1, HIDDEN_WIDTH, glorot=True) if dim > 1 else None

    @property
    def order(self) -> int:
        """Order M of the polynomials, which have M+1 coefficients."""
        return self.bias.shape[-1] - 1

    def sample_base(self, key: Key[Array, ""], num: int) -> Float[Array, "s p"]:
        """Draw base noise."""
        if self.variant != "f3":
            return jax.random.normal(key, (num, self.dim))
        bound = (LOCATION - BOUND) / SCALE
        return LOCATION + SCALE * jax.random.truncated_normal(key, -bound, bound, (num, self.dim))

    def mirror(self, z: Float[Array, "*s p"]) -> Float[Array, "*s p"]:
        """Return the reflection of z; the noise of f3 is symmetric about 1/2."""
        return 2.0 * LOCATION - z if self.variant == "f3" else -z

    def base_log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density of the base noise."""
        if self.variant != "f3":
            return normal_log_prob(z)
        mass = 1.0 - 2.0 * ndtr(-(LOCATION - BOUND) / SCALE)
        log_prob = -0.5 * ((z - LOCATION) / SCALE) ** 2 - 0.5 * LOG_2PI - np.log(SCALE * mass)
        return jnp.sum(jnp.where((z >= BOUND) & (z <= 1.0 - BOUND), log_prob, -jnp.inf))

    def transform_and_log_det(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise to a parameter vector; return x and log |dx/dz|."""
        t, log_t, log_1mt, log_slope = self._unit_interval(z, self.alpha, self.beta)
        value, slope = _evaluate(self._parameters(t), t, log_t, log_1mt)
        return value, jnp.sum(jnp.log(slope) + log_slope)

    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise; outside the bounded support log |dz/dx| is -inf."""

        def body(j, state):
            t, inside = state
            row = self.bias[j]
            if self.network is not None:
                row = row + self.network.readout()[j] @ self.network.hidden(t)
            low = row[0]
            high = low + jnp.sum(increments(row[1:]))
            start = (x[j] - low) / (high - low)
            root = invert_increasing(_evaluate_at, row, jnp.clip(x[j], low, high), start, jnp.ones_like(start))
            return t.at[j].set(root), inside & (x[j] > low) & (x[j] < high)

        t, inside = jax.lax.fori_loop(0, self.dim, body, (jnp.full_like(x, 0.5), jnp.asarray(True)))
        if self.variant == "f3":
            z = t
        else:
            logit = jnp.log(t) - jnp.log1p(-t)
            z = logit if self.variant == "f2" else (logit - self.beta) / jax.nn.softplus(self.alpha)
        z = jnp.where(inside, z, 0.0)
        return z, jnp.where(inside, -self.transform_and_log_det(z)[1], -jnp.inf)

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved flow can be rebuilt."""
        return {"kind": "bernstein-paper", "dim": self.dim, "order": self.order, "variant": self.variant}

    def _unit_interval(self, z, alpha, beta):
        """Return t, log t, log(1-t) and log dt/dz; from a logit, no clipping is needed."""
        if self.variant == "f3":
            return z, jnp.log(z), jnp.log1p(-z), jnp.zeros_like(z)
        scale = jax.nn.softplus(alpha) if self.variant == "f1" else jnp.ones_like(alpha)
        logit = scale * z + beta if self.variant == "f1" else z
        log_t, log_1mt = -jax.nn.softplus(-logit), -jax.nn.softplus(logit)
        return jnp.exp(log_t), log_t, log_1mt, log_t + log_1mt + jnp.log(scale)

    def _parameters(self, t: Float[Array, " p"]) -> Float[Array, "p m_plus_1"]:
        if self.network is None:
            return self.bias
        return self.bias + self.network.readout() @ self.network.hidden(t)


def _evaluate_at(row: Float[Array, " k"], t: Float[Array, ""]) -> tuple[Array, Array]:
    """Evaluate polynomial and slope anywhere in [0, 1], including the ends."""
    tiny, eps = jnp.finfo(t.dtype).tiny, jnp.finfo(t.dtype).eps
    return _evaluate(row, t, jnp.log(jnp.maximum(t, tiny)), jnp.log1p(-jnp.minimum(t, 1.0 - eps)))


def _evaluate(raw, t, log_t, log_1mt):
    """Evaluate the polynomial with theta_0 = raw_0 and softplus increments, and its slope in t."""
    order = raw.shape[-1] - 1
    cumulative = np.tril(np.ones((order + 1, order)), -1).T
    value, slope = polynomial(increments(raw[..., 1:]), t, basis_from_logs(log_t, log_1mt, order - 1), cumulative)
    return raw[..., 0] + value, slope
