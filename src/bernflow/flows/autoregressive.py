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
from bernflow.flows.conditioner import Masked, MaskedNetwork, Skip
from bernflow.flows.noise import NOISES
from bernflow.flows.shape import Place, Shape, Slopes, place_of, shape_of, slopes_of, told
from bernflow.flows.tails import NUM_WEIGHTS, raw_powers, unbend

# The conditioner gives dimension j a shift, a log-scale and the M increments of its polynomial.
SHIFT, LOG_SCALE, FIRST_INCREMENT = 0, 1, 2
# A logistic variate of this inverse scale is nearly standard normal.
LOGIT_PER_PROBIT = 1.6


class Conditioned(NamedTuple):
    """What a draw knows of its earlier dimensions.

    Attributes:
        network: the conditioner without its forbidden weights; None without one.
        layers: both of its hidden layers.
        skip: the unsaturated terms without the forbidden ones; None without them.
        out: what the network says, (p, k).
    """

    network: Masked | None
    layers: tuple[Float[Array, " h"], Float[Array, " h"]] | None
    skip: Skip | None
    out: Float[Array, "p k"]


class Way(NamedTuple):
    """All that a draw meets on its way from noise to the outer map, to which exp(log_scale) location is given."""

    known: Conditioned
    shape: Shape
    e: Float[Array, " p"]
    location: Float[Array, " p"]
    log_scale: Float[Array, " p"]


class BernsteinFlow(AbstractScoredFlow):
    """The paper's eq. 3 with a location, a scale and an outer affine map around the polynomial.

        e_j = s_j + H_j(f_j((exp(a_j) z_j + b_j + c) / 2c)),   y_j = exp(r_j + R(e)_j) (e + S e)_j,   x = outer(y)

    s_j, r_j and the coefficients of f_j depend on z_1..z_{j-1} through a masked network; R and S see only the earlier
    dimensions, too. H_j gives the tails their weight. Two choices matter for hierarchical posteriors. The shift is
    scaled with its dimension, so that in the neck of a funnel an error of the network shrinks with the neck. And the
    unsaturated terms see e, not z, so that a log-scale linear in a parameter is exact, up to 8 units of e, whatever the
    marginal shape of that parameter. Without network and skip every dimension stands alone (mean field). A new flow is
    the outer map applied to standard normal noise.

    With bounded=True a sigmoid maps the noise into [0, 1], as in the paper, and the support ends with the outermost
    coefficients: it is there to show what the linear tails are worth.
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
        """Return the flow, or stacked flows, with tails that fall like powers; see `tails.raw_powers`."""
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
        return self.arrive(self._follow(z))

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
            # Entries of e from j on are still zero, and `location` holds only what the earlier dimensions add.
            location, log_scale = _skipped(skip, e, jnp.zeros_like(e))
            e_j = y[j] * jnp.exp(-out[LOG_SCALE] - log_scale[j]) - location[j]
            value = e_j - out[SHIFT] if self.bounded else unbend(self.tails[j], e_j - out[SHIFT])
            t = invert_centered(increments(out[FIRST_INCREMENT:]), value)
            z_j = (self._from_unit(t) - self.inner_shift[j]) * jnp.exp(-self.inner_log_scale[j])
            return z.at[j].set(z_j), e.at[j].set(e_j), inside & ((t > 0.0) & (t < 1.0) | (not self.bounded))

        z, _, inside = jax.lax.fori_loop(0, self.dim, body, (jnp.zeros_like(y), jnp.zeros_like(y), jnp.asarray(True)))
        return z, jnp.where(inside, -self.transform_and_log_det(z)[1], -jnp.inf)

    def score(self, z: Float[Array, " p"]) -> Float[Array, " p"]:
        """Evaluate the gradient of log q with respect to x at x = T(z), exactly and without the inverse.

        With log q(T(z)) = log f_Z(z) - log |J(z)|, the gradient is J^-T times its z-gradient.
        """
        way = self._follow(z)
        return self._score(way, self._slopes(way), z)

    def transform_and_score(
        self, z: Float[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " p"]]:
        """Return x = T(z), log |dx/dz| and the score at x, of which x alone can be differentiated."""
        way, slopes = self.follow_told(z)
        return *self.arrive(way), constant(self)._score(stop_gradient(way), slopes, z)

    def _score(self, way: Way, slopes: Slopes, z: Float[Array, " p"]) -> Float[Array, " p"]:
        noise_score = jax.grad(self.base_log_prob)(z)
        if self.network is None and self.skip is None and isinstance(self.outer, DiagonalAffine):
            # Every dimension stands alone: no matrix, whose memory would be quadratic in p.
            slope = self.outer.row_norms() * (jnp.exp(way.log_scale) * jnp.exp(way.shape.log_slope()))
            return (noise_score - slopes.log_slope_by_z) * (1.0 / slope)
        jacobian, log_det_gradient = self.derivatives_of_y(way, slopes)
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

    def _follow(self, z: Float[Array, " p"]) -> Way:
        """Go the way of a draw up to the outer map."""
        known = self._conditioned(z)
        shape = shape_of(known.out[:, FIRST_INCREMENT:], self._tails, self._place(z))
        return _way(known, shape, shape.bent.value)

    def follow_told(self, z: Float[Array, " p"]) -> tuple[Way, Slopes]:
        """Go the way of a draw, of which what is given to the outer map alone can be differentiated, quickly."""
        known, fixed = self._conditioned(z), constant(self)
        raw, fixed_raw = known.out[:, FIRST_INCREMENT:], stop_gradient(known.out[:, FIRST_INCREMENT:])
        shape = shape_of(fixed_raw, fixed._tails, fixed._place(z))
        slopes = slopes_of(shape, fixed_raw)
        return _way(known, shape, told(shape, slopes, raw, self._place(z).t, self._tails)), slopes

    def arrive(self, way: Way) -> tuple[Array, Array]:
        """Apply the outer map; return x and log |dx/dz|."""
        x, log_det = self.outer.transform_and_log_det(jnp.exp(way.log_scale) * way.location)
        return x, log_det + jnp.sum(way.shape.log_slope() + way.log_scale)

    def _conditioned(self, z: Float[Array, " p"]) -> Conditioned:
        """Ask the conditioner."""
        skip = None if self.skip is None else self.skip.strictly_lower()
        if self.network is None:
            return Conditioned(None, None, skip, self.bias)
        network = self.network.masked()
        layers = network.layers(z)
        return Conditioned(network, layers, skip, self.bias + network.readout @ layers[1])

    @property
    def _tails(self) -> Float[Array, "p 4"] | None:
        return None if self.bounded else self.tails

    def _slopes(self, way: Way) -> Slopes:
        return slopes_of(way.shape, way.known.out[:, FIRST_INCREMENT:])

    def _place(self, z: Float[Array, " p"]) -> Place:
        """Map noise to the interval of the polynomial."""
        if not self.bounded:
            return place_of(z, self.inner_log_scale, self.inner_shift, self.noise)
        u = LOGIT_PER_PROBIT * (jnp.exp(self.inner_log_scale) * z + self.inner_shift)
        log_rate = self.inner_log_scale + np.log(LOGIT_PER_PROBIT) - jax.nn.softplus(u) - jax.nn.softplus(-u)
        t = jax.nn.sigmoid(u)
        return Place(t, log_rate, LOGIT_PER_PROBIT * jnp.exp(self.inner_log_scale) * (1.0 - 2.0 * t))

    def _from_unit(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """Invert `_place`, up to scale and shift."""
        if not self.bounded:
            return NOISES[self.noise].half_width * (2.0 * t - 1.0)
        tiny = jnp.finfo(t.dtype).eps
        return jax.scipy.special.logit(jnp.clip(t, tiny, 1.0 - tiny)) / LOGIT_PER_PROBIT

    def derivatives_of_y(self, way: Way, slopes: Slopes) -> tuple[Float[Array, "p p"], Float[Array, " p"]]:
        """Return dy/dz, which is triangular, and the gradient of log |dy/dz|.

        What lies off the diagonal goes through the small hidden layer and the skip terms; e_j and its slope
        depend on z_j and on the outputs of dimension j alone.
        """
        network, layers, skip, _ = way.known
        gradient = slopes.log_slope_by_z
        jacobian = jnp.diag(jnp.exp(way.shape.log_slope()))
        if network is not None and layers is not None:
            readout, hidden = network.readout, network.hidden_by_z(layers)
            of_shape = readout[:, FIRST_INCREMENT:]
            by_hidden = jnp.sum(readout[:, LOG_SCALE], 0)
            by_hidden = by_hidden + jnp.einsum("jk,jkh->h", slopes.log_slope_by_raw, of_shape)
            gradient += by_hidden @ hidden
            jacobian += (readout[:, SHIFT] + jnp.einsum("jk,jkh->jh", slopes.by_raw, of_shape)) @ hidden
        if skip is not None:
            shift, scale = skip.slopes(way.e)
            gradient += jnp.sum(scale, 0) @ jacobian
            jacobian += (shift + way.location[:, None] * scale) @ jacobian
        if network is not None:
            jacobian += way.location[:, None] * (readout[:, LOG_SCALE] @ hidden)
        return jnp.exp(way.log_scale)[:, None] * jacobian, gradient


def _way(known: Conditioned, shape: Shape, value: Float[Array, " p"]) -> Way:
    """Shift and scale a shape by what is known of the earlier dimensions."""
    e = known.out[:, SHIFT] + value
    return Way(known, shape, e, *_skipped(known.skip, e, known.out[:, LOG_SCALE]))


def _skipped(skip: Skip | None, e: Float[Array, " p"], log_scale: Float[Array, " p"]) -> tuple[Array, Array]:
    """Add the unsaturated terms in e to the location and the log-scale."""
    if skip is None:
        return e, log_scale
    shift, scale = skip.terms(e)
    return e + shift, log_scale + scale


def _bounded_start(order: int) -> np.ndarray:
    """Return coefficients that make the flow with a sigmoid nearly the identity, as far as it reaches."""
    return logit((np.arange(order + 1) + 0.5) / (order + 1)) / LOGIT_PER_PROBIT
