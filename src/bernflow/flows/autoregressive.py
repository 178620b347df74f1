"""The Bernstein flow: inner affine, polynomial, autoregressive conditioner, outer affine."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Key
from scipy.special import logit

from bernflow.flows.affine import Affine, DiagonalAffine
from bernflow.flows.base import AbstractScoredFlow, constant
from bernflow.flows.bernstein import increments, inverse_increments, invert_centered
from bernflow.flows.conditioner import MaskedLayers, MaskedNetwork, Skip
from bernflow.flows.noise import NOISES
from bernflow.flows.shape import (
    PolynomialInput,
    Shape,
    Slopes,
    polynomial_input,
    shape_of,
    slopes_of,
    value_with_derivatives,
)
from bernflow.flows.tails import NUM_WEIGHTS, invert_tails, raw_powers

# The conditioner gives dimension j a shift, a log-scale and the M increments of its polynomial.
SHIFT, LOG_SCALE, FIRST_INCREMENT = 0, 1, 2
# A logistic variate of this inverse scale is nearly standard normal.
LOGIT_PER_PROBIT = 1.6


class ConditionerOutput(NamedTuple):
    """The conditioner evaluated at one draw.

    Attributes:
        network: the network with its masks applied, or None.
        layers: activations of its two hidden layers.
        skip: the unsaturated terms with their masks applied, or None.
        out: output of the network plus bias, (p, k).
    """

    network: MaskedLayers | None
    layers: tuple[Float[Array, " h"], Float[Array, " h"]] | None
    skip: Skip | None
    out: Float[Array, "p k"]


class ForwardState(NamedTuple):
    """Intermediate values of the forward pass, up to exp(log_scale) * location, the input of the outer map."""

    conditioner: ConditionerOutput
    shape: Shape
    e: Float[Array, " p"]
    location: Float[Array, " p"]
    log_scale: Float[Array, " p"]


class BernsteinFlow(AbstractScoredFlow):
    """The paper's eq. 3 with a location, a scale and an outer affine map around the polynomial.

        e_j = s_j + H_j(f_j((exp(a_j) z_j + b_j + c) / 2c)),   y_j = exp(r_j + R(e)_j) (e + S e)_j,   x = outer(y)

    s_j, r_j and the coefficients of f_j depend on z_1..z_{j-1} through a masked network; R and S also depend on earlier
    dimensions only. H_j sets the weight of the tails. Two choices matter for hierarchical posteriors. First, the shift
    is multiplied by the scale of its dimension, so that in the neck of a funnel an error of the network shrinks with
    the neck. Second, the unsaturated terms are functions of e, not z, so that a log-scale that is linear in a parameter
    is exact (up to 8 units of e), whatever the marginal shape of that parameter. Without network and skip terms the
    dimensions are independent (mean field). A new flow is the outer map applied to standard normal noise.

    With bounded=True a sigmoid maps the noise into [0, 1], as in the paper, and the outermost coefficients bound the
    support. This is an ablation of the linear tails.
    """

    inner_log_scale: Float[Array, " p"]
    inner_shift: Float[Array, " p"]
    bias: Float[Array, "p k"]
    network: MaskedNetwork | None
    skip: Skip | None
    tails: Float[Array, "p 4"]
    outer: Affine
    noise: str = eqx.field(static=True)
    bounded: bool = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __init__(
        self,
        key: Key[Array, ""],
        outer: Affine,
        *,
        order: int,
        width: int,
        noise: str = "normal",
        conditional: bool = True,
        skip: bool = True,
        bounded: bool = False,
    ):
        dim = outer.start_loc.shape[0]
        self.dim = dim
        self.noise = noise
        self.bounded = bounded
        self.outer = outer
        self.inner_log_scale = jnp.zeros(dim)
        self.inner_shift = jnp.zeros(dim)
        start = inverse_increments(np.diff(_bounded_start(order) if bounded else NOISES[noise].start(order)))
        self.bias = jnp.tile(jnp.concatenate([jnp.zeros(FIRST_INCREMENT), jnp.asarray(start)]), (dim, 1))
        conditional = conditional and dim > 1  # one dimension has nothing to condition on
        self.network = MaskedNetwork(key, dim, order + FIRST_INCREMENT, width) if conditional else None
        self.skip = Skip(dim, dim) if conditional and skip else None
        self.tails = jnp.zeros((dim, NUM_WEIGHTS))

    @property
    def order(self) -> int:
        """Order M of the polynomials, which have M+1 coefficients."""
        return self.bias.shape[-1] - FIRST_INCREMENT

    def with_powers(self, powers: Float[Any, "*r p 2"]) -> "BernsteinFlow":
        """Return the flow, or stacked flows, with power-law tails; see `tails.raw_powers`."""
        if self.bounded or self.noise != "normal":
            return self
        return eqx.tree_at(lambda flow: flow.tails, self, raw_powers(powers))

    def sample_base(self, key: Key[Array, ""], num: int) -> Float[Array, "s p"]:
        """Draw base noise."""
        return NOISES[self.noise].sample(key, (num, self.dim))

    def base_log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density of the base noise."""
        return NOISES[self.noise].log_prob(z)

    def transform_and_log_det(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise to a parameter vector; return x and log |dx/dz|."""
        return self.apply_outer(self._forward(z))

    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise, one dimension after the other; return z and log |dz/dx|."""
        y = self.outer.inverse(x)
        network = None if self.network is None else self.network.masked()
        skip = None if self.skip is None else self.skip.strictly_lower()

        def body(j, state):
            z, e, inside = state
            out = self.bias[j]
            if network is not None:
                out = out + network.readout[j] @ network.layers(z)[1]
            # Entries j, j+1, ... of e are still zero, so `location` holds the contribution of earlier dimensions only.
            location, log_scale = _add_skip(skip, e, jnp.zeros_like(e))
            e_j = y[j] * jnp.exp(-out[LOG_SCALE] - log_scale[j]) - location[j]
            value = e_j - out[SHIFT] if self.bounded else invert_tails(self.tails[j], e_j - out[SHIFT])
            t = invert_centered(increments(out[FIRST_INCREMENT:]), value)
            z_j = (self._from_unit(t) - self.inner_shift[j]) * jnp.exp(-self.inner_log_scale[j])
            return z.at[j].set(z_j), e.at[j].set(e_j), inside & ((t > 0.0) & (t < 1.0) | (not self.bounded))

        z, _, inside = jax.lax.fori_loop(0, self.dim, body, (jnp.zeros_like(y), jnp.zeros_like(y), jnp.asarray(True)))
        return z, jnp.where(inside, -self.transform_and_log_det(z)[1], -jnp.inf)

    def score(self, z: Float[Array, " p"]) -> Float[Array, " p"]:
        """Evaluate the gradient of log q with respect to x at x = T(z), exactly and without the inverse.

        With log q(T(z)) = log f_Z(z) - log |J(z)|, the gradient is J^-T times its z-gradient.
        """
        state = self._forward(z)
        return self._score(state, self._slopes(state), jax.grad(self.base_log_prob)(z))

    def transform_and_score(
        self, z: Float[Array, " p"], noise_score: Float[Array, " p"] | None = None
    ) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " p"]]:
        """Return x = T(z), log |dx/dz| and the score at x; only x can be differentiated.

        Args:
            z: noise.
            noise_score: the gradient of its log density, if that is not the base noise.
        """
        state, slopes = self.forward_with_derivatives(z)
        noise_score = jax.grad(self.base_log_prob)(z) if noise_score is None else noise_score
        return *self.apply_outer(state), constant(self)._score(stop_gradient(state), slopes, noise_score)

    def _score(self, state: ForwardState, slopes: Slopes, noise_score: Float[Array, " p"]) -> Float[Array, " p"]:
        if self.network is None and self.skip is None and isinstance(self.outer, DiagonalAffine):
            # Independent dimensions: avoid a matrix, whose memory would be quadratic in p.
            slope = self.outer.row_norms() * (jnp.exp(state.log_scale) * jnp.exp(state.shape.log_slope()))
            return (noise_score - slopes.log_slope_by_z) * (1.0 / slope)
        jacobian, log_det_gradient = self.derivatives_of_y(state, slopes)
        return self.pull_back(jacobian, noise_score - log_det_gradient)

    def pull_back(self, jacobian_of_y: Float[Array, "p p"], covector: Float[Array, " p"]) -> Float[Array, " p"]:
        """Return J^-T applied to a gradient with respect to z, J = dx/dz: the gradient with respect to x."""
        # One triangular system per sample: solving with the outer matrix for all samples at once is far slower.
        return solve_triangular(self.outer.matrix() @ jacobian_of_y, covector, lower=True, trans="T")

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved flow can be rebuilt."""
        return {
            "kind": "bernstein",
            "dim": self.dim,
            "order": self.order,
            "noise": self.noise,
            "width": 0 if self.network is None else self.network.b1.shape[0],
            "skip": self.skip is not None,
            "bounded": self.bounded,
            **self.outer.recipe(),
        }

    def _forward(self, z: Float[Array, " p"]) -> ForwardState:
        """Run the forward pass up to the outer map."""
        conditioner = self._condition(z)
        shape = shape_of(conditioner.out[:, FIRST_INCREMENT:], self._tails, self._polynomial_input(z))
        return _forward_state(conditioner, shape, shape.tailed.value)

    def forward_with_derivatives(self, z: Float[Array, " p"]) -> tuple[ForwardState, Slopes]:
        """Run the forward pass with known derivatives; only the input of the outer map can be differentiated."""
        conditioner, fixed = self._condition(z), constant(self)
        raw, fixed_raw = conditioner.out[:, FIRST_INCREMENT:], stop_gradient(conditioner.out[:, FIRST_INCREMENT:])
        shape = shape_of(fixed_raw, fixed._tails, fixed._polynomial_input(z))
        slopes = slopes_of(shape, fixed_raw)
        return _forward_state(
            conditioner, shape, value_with_derivatives(shape, slopes, raw, self._polynomial_input(z).t, self._tails)
        ), slopes

    def apply_outer(self, state: ForwardState) -> tuple[Array, Array]:
        """Apply the outer map; return x and log |dx/dz|."""
        x, log_det = self.outer.transform_and_log_det(jnp.exp(state.log_scale) * state.location)
        return x, log_det + jnp.sum(state.shape.log_slope() + state.log_scale)

    def _condition(self, z: Float[Array, " p"]) -> ConditionerOutput:
        """Evaluate the conditioner."""
        skip = None if self.skip is None else self.skip.strictly_lower()
        if self.network is None:
            return ConditionerOutput(None, None, skip, self.bias)
        network = self.network.masked()
        layers = network.layers(z)
        return ConditionerOutput(network, layers, skip, self.bias + network.readout @ layers[1])

    @property
    def _tails(self) -> Float[Array, "p 4"] | None:
        return None if self.bounded else self.tails

    def _slopes(self, state: ForwardState) -> Slopes:
        return slopes_of(state.shape, state.conditioner.out[:, FIRST_INCREMENT:])

    def _polynomial_input(self, z: Float[Array, " p"]) -> PolynomialInput:
        """Map noise to the interval of the polynomial."""
        if not self.bounded:
            return polynomial_input(z, self.inner_log_scale, self.inner_shift, self.noise)
        u = LOGIT_PER_PROBIT * (jnp.exp(self.inner_log_scale) * z + self.inner_shift)
        log_rate = self.inner_log_scale + np.log(LOGIT_PER_PROBIT) - jax.nn.softplus(u) - jax.nn.softplus(-u)
        t = jax.nn.sigmoid(u)
        return PolynomialInput(t, log_rate, LOGIT_PER_PROBIT * jnp.exp(self.inner_log_scale) * (1.0 - 2.0 * t))

    def _from_unit(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """Invert `_polynomial_input`, up to scale and shift."""
        if not self.bounded:
            return NOISES[self.noise].half_width * (2.0 * t - 1.0)
        tiny = jnp.finfo(t.dtype).eps
        return jax.scipy.special.logit(jnp.clip(t, tiny, 1.0 - tiny)) / LOGIT_PER_PROBIT

    def derivatives_of_y(self, state: ForwardState, slopes: Slopes) -> tuple[Float[Array, "p p"], Float[Array, " p"]]:
        """Return dy/dz, which is triangular, and the gradient of log |dy/dz|.

        The off-diagonal part goes through the small hidden layer and the skip terms; e_j and its slope depend only on
        z_j and the outputs of dimension j.
        """
        network, layers, skip, _ = state.conditioner
        gradient = slopes.log_slope_by_z
        jacobian = jnp.diag(jnp.exp(state.shape.log_slope()))
        if network is not None and layers is not None:
            readout, hidden = network.readout, network.hidden_by_z(layers)
            of_shape = readout[:, FIRST_INCREMENT:]
            by_hidden = jnp.sum(readout[:, LOG_SCALE], 0)
            by_hidden = by_hidden + jnp.einsum("jk,jkh->h", slopes.log_slope_by_raw, of_shape)
            gradient += by_hidden @ hidden
            jacobian += (readout[:, SHIFT] + jnp.einsum("jk,jkh->jh", slopes.by_raw, of_shape)) @ hidden
        if skip is not None:
            shift, scale = skip.slopes(state.e)
            gradient += jnp.sum(scale, 0) @ jacobian
            jacobian += (shift + state.location[:, None] * scale) @ jacobian
        if network is not None:
            jacobian += state.location[:, None] * (readout[:, LOG_SCALE] @ hidden)
        return jnp.exp(state.log_scale)[:, None] * jacobian, gradient


def _forward_state(conditioner: ConditionerOutput, shape: Shape, value: Float[Array, " p"]) -> ForwardState:
    """Shift and scale a shape by the output of the conditioner."""
    e = conditioner.out[:, SHIFT] + value
    return ForwardState(conditioner, shape, e, *_add_skip(conditioner.skip, e, conditioner.out[:, LOG_SCALE]))


def _add_skip(skip: Skip | None, e: Float[Array, " p"], log_scale: Float[Array, " p"]) -> tuple[Array, Array]:
    """Add the unsaturated terms in e to the location and the log-scale."""
    if skip is None:
        return e, log_scale
    shift, scale = skip.terms(e)
    return e + shift, log_scale + scale


def _bounded_start(order: int) -> np.ndarray:
    """Return coefficients that make the flow with a sigmoid nearly the identity inside its support."""
    return logit((np.arange(order + 1) + 0.5) / (order + 1)) / LOGIT_PER_PROBIT
