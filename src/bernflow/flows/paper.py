"""The flow of the paper, f = f_BP o sigmoid o affine, for comparison: as it was published, and as its text has it.

The outer coefficients bound its support, and there is no outer affine map and no linear term. The scripts that the
authors published with their results differ from the text of the paper: the constants of the inner affine map are not
trained, the conditioner is a function of the noise itself and has no activation, and the number that the text calls the
order M is that of the coefficients, M + 1 in the text. The ablations of the paper's appendix are variants of the text.
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
HIDDEN_WIDTH = 10
PUBLISHED = "published"
# The first dimension starts at 20 Phi(u) - 10 for equally spaced u in [0, 1], that is from 0 to 6.83. The scripts name
# the range from -10 to 10, which the distribution function of noise within [0, 1] would cover.
START_LOW, START_HIGH = -10.0, 10.0
# Below this, log(softplus(u)) and its inverse are taken by their expansions.
SMALL = -15.0


class PaperFlow(AbstractFlow):
    """theta_j = sum_i vartheta_i^j(z_1..z_{j-1}) B_{i,M}(t_j), eq. 3 of the paper.

    Attributes:
        variant: how noise becomes t in [0, 1], and what the conditioner is. "published": t = sigmoid(log(2) z), and the
            conditioner is linear in z; "f1": t = sigmoid(softplus(alpha) z + beta) with alpha and beta trained, "f2":
            t = sigmoid(z), both with z ~ N(0, 1); "f3": t ~ truncated normal; in these the conditioner is a network of
            two tanh layers on t.
        num_scales: the first dimensions, whose parameters are positive: those are the softplus of what the polynomials
            give, and x is their logarithm.
    """

    alpha: Float[Array, " p"] | None
    beta: Float[Array, " p"] | None
    bias: Float[Array, "p m_plus_1"]
    network: MaskedNetwork | None
    variant: str = eqx.field(static=True)
    num_scales: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __init__(
        self,
        key: Key[Array, ""],
        dim: int,
        *,
        order: int,
        variant: str = PUBLISHED,
        start_range: float | None = None,
        num_scales: int = 0,
    ):
        """Start as the published scripts do, or from a straight line over [-start_range, start_range]."""
        self.dim = dim
        self.variant = variant
        self.num_scales = num_scales
        is_published = variant == PUBLISHED
        self.alpha = None if is_published else jnp.full(dim, np.log(np.expm1(1.0)))
        self.beta = None if is_published else jnp.zeros(dim)
        self.bias = jnp.asarray(published_start(dim, order) if start_range is None else _line(dim, order, start_range))
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

    def mirror(self, z: Float[Array, "*s p"]) -> None:
        """Return None: the paper's draws are independent."""

    def base_log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density of the base noise."""
        if self.variant != "f3":
            return normal_log_prob(z)
        mass = 1.0 - 2.0 * ndtr(-(LOCATION - BOUND) / SCALE)
        log_prob = -0.5 * ((z - LOCATION) / SCALE) ** 2 - 0.5 * LOG_2PI - np.log(SCALE * mass)
        return jnp.sum(jnp.where((z >= BOUND) & (z <= 1.0 - BOUND), log_prob, -jnp.inf))

    def transform_and_log_det(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise to a parameter vector; return x and log |dx/dz|."""
        t, log_t, log_1mt, log_slope = self._unit_interval(z)
        value, slope = _evaluate(self._parameters(z, t), t, log_t, log_1mt)
        x, log_det = self._to_logs(value)
        return x, log_det + jnp.sum(jnp.log(slope) + log_slope)

    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise; outside the bounded support log |dz/dx| is -inf."""
        value = self._from_logs(x)

        def body(j, state):
            z, t, inside = state
            row = self.bias[j]
            if self.network is not None:
                row = row + self.network.readout()[j] @ self._hidden(z, t)
            low = row[0]
            high = low + jnp.sum(increments(row[1:]))
            start = (value[j] - low) / (high - low)
            root = invert_increasing(_evaluate_at, row, jnp.clip(value[j], low, high), start, jnp.ones_like(start))
            found = inside & (value[j] > low) & (value[j] < high)
            t = t.at[j].set(root)
            return jnp.where(found, self._noise(t), 0.0), t, found

        middle = jnp.full_like(x, 0.5)
        z, _, inside = jax.lax.fori_loop(0, self.dim, body, (self._noise(middle), middle, jnp.asarray(True)))
        z = jnp.where(inside, z, 0.0)
        return z, jnp.where(inside, -self.transform_and_log_det(z)[1], -jnp.inf)

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved flow can be rebuilt."""
        sizes = {"dim": self.dim, "order": self.order, "num_scales": self.num_scales}
        return {"kind": "bernstein-paper", "variant": self.variant, **sizes}

    def _affine(self) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        """Return scale and shift of the inner map."""
        if self.variant == "f1":
            assert self.alpha is not None
            assert self.beta is not None
            return jax.nn.softplus(self.alpha), self.beta
        # softplus(0) in the scripts, where it is not trained.
        return jnp.full(self.dim, np.log(2.0) if self.variant == PUBLISHED else 1.0), jnp.zeros(self.dim)

    def _unit_interval(self, z):
        """Return t, log t, log(1-t) and log dt/dz; from a logit, no clipping is needed."""
        if self.variant == "f3":
            return z, jnp.log(z), jnp.log1p(-z), jnp.zeros_like(z)
        scale, shift = self._affine()
        logit = scale * z + shift
        log_t, log_1mt = -jax.nn.softplus(-logit), -jax.nn.softplus(logit)
        return jnp.exp(log_t), log_t, log_1mt, log_t + log_1mt + jnp.log(scale)

    def _noise(self, t: Float[Array, " p"]) -> Float[Array, " p"]:
        """Return the noise of t."""
        if self.variant == "f3":
            return t
        scale, shift = self._affine()
        return (jnp.log(t) - jnp.log1p(-t) - shift) / scale

    def _parameters(self, z: Float[Array, " p"], t: Float[Array, " p"]) -> Float[Array, "p m_plus_1"]:
        if self.network is None:
            return self.bias
        return self.bias + self.network.readout() @ self._hidden(z, t)

    def _hidden(self, z: Float[Array, " p"], t: Float[Array, " p"]) -> Float[Array, " h"]:
        assert self.network is not None
        if self.variant != PUBLISHED:
            return self.network.hidden(t)
        layers = self.network.masked()
        return layers.second @ (layers.first @ z + layers.b1) + layers.b2

    def _to_logs(self, value: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map what the polynomials give to x; return it with the log-determinant."""
        first, rest = value[: self.num_scales], value[self.num_scales :]
        large = jnp.maximum(first, SMALL)
        log_soft = jnp.log(jax.nn.softplus(large))
        x = jnp.where(first > SMALL, log_soft, first - 0.5 * jnp.exp(jnp.minimum(first, SMALL)))
        # The slope of log(softplus(u)) is sigmoid(u) / softplus(u).
        return jnp.concatenate([x, rest]), jnp.sum(-jax.nn.softplus(-first) - x)

    def _from_logs(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        first, rest = x[: self.num_scales], x[self.num_scales :]
        theta = jnp.exp(jnp.maximum(first, SMALL))
        value = jnp.where(first > SMALL, theta + jnp.log(-jnp.expm1(-theta)), first + 0.5 * jnp.exp(first))
        return jnp.concatenate([value, rest])


def _line(dim: int, order: int, reach: float) -> np.ndarray:
    """Return unconstrained coefficients of a straight line from -reach to reach."""
    line = inverse_increments(np.full(order, 2.0 * reach / order))
    return np.tile(np.concatenate([[-reach], line]), (dim, 1))


def published_start(dim: int, order: int) -> np.ndarray:
    """Return the start of the scripts: the other dimensions begin where the network, without biases, sets them."""
    start = np.zeros((dim, order + 1))
    first = (START_HIGH - START_LOW) * ndtr(np.linspace(0.0, 1.0, order + 1)) + START_LOW
    start[0] = np.concatenate([first[:1], inverse_increments(np.diff(first))])
    return start


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
