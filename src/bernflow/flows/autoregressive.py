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

from bernflow.flows.affine import DiagonalAffine, TriangularAffine
from bernflow.flows.base import AbstractScoredFlow
from bernflow.flows.bernstein import (
    Terms,
    centered_terms,
    increments,
    increments_by_raw,
    inverse_increments,
    invert_centered,
    log_slope_by_t,
)
from bernflow.flows.conditioner import Masked, MaskedNetwork, Skip
from bernflow.flows.noise import NOISES
from bernflow.flows.tails import NUM_WEIGHTS, Bent, bend, unbend

# The conditioner gives dimension j a shift, a log-scale and the M increments of its polynomial.
SHIFT, LOG_SCALE, FIRST_INCREMENT = 0, 1, 2
# A logistic variate of this inverse scale is nearly standard normal.
LOGIT_PER_PROBIT = 1.6


class Rate(NamedTuple):
    """Log of dt/dz, t being where the polynomial is evaluated, and the derivative of that log."""

    log: Float[Array, " p"]
    log_by_z: Float[Array, " p"] | float


class Shape(NamedTuple):
    """H(f(t)) of every dimension, and what it is made of.

    Attributes:
        t: where the polynomial is evaluated.
        rate: how t moves with z.
        terms: what the polynomial is made of at t.
        increment: increments of its coefficients, (p, M).
        slope: f'(t).
        bent: H(f(t)).
    """

    t: Float[Array, " p"]
    rate: Rate
    terms: Terms
    increment: Float[Array, "p m"]
    slope: Float[Array, " p"]
    bent: Bent

    def log_slope(self) -> Float[Array, " p"]:
        """Return log dH(f(t))/dz."""
        return jnp.log(self.slope) + self.rate.log + self.bent.log_slope


class Slopes(NamedTuple):
    """Derivatives of a `Shape`: of its value with respect to the raw increments and t, of its log slope also to z."""

    by_raw: Float[Array, "p m"]
    by_t: Float[Array, " p"]
    log_slope_by_raw: Float[Array, "p m"]
    log_slope_by_z: Float[Array, " p"]


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
    outer: TriangularAffine | DiagonalAffine
    noise: str = eqx.field(static=True)
    bounded: bool = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __init__(
        self,
        key: Key[Array, ""],
        outer: TriangularAffine | DiagonalAffine,
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

    def sample_base(self, key: Key[Array, ""], num: int) -> Float[Array, "s p"]:
        """Draw base noise."""
        return NOISES[self.noise].sample(key, (num, self.dim))

    def base_log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density of the base noise."""
        return NOISES[self.noise].log_prob(z)

    def transform_and_log_det(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise to a parameter vector; return x and log |dx/dz|."""
        return self._arrive(self._follow(z))

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
        return self._score(way, self._slopes(way.shape, way.known.out), z)

    def _score(self, way: Way, slopes: Slopes, z: Float[Array, " p"]) -> Float[Array, " p"]:
        jacobian, log_det_gradient = self._derivatives_of_y(way, slopes)
        return self._solve(jacobian, jax.grad(self.base_log_prob)(z) - log_det_gradient)

    def transform_and_score(
        self, z: Float[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " p"]]:
        """Return x = T(z), log |dx/dz| and the score at x, of which x alone can be differentiated.

        The score needs the derivatives of the polynomials with their tails, so that these are told to automatic
        differentiation, too, which would find them again. The way is gone once.
        """
        known = self._conditioned(z)
        fixed, fixed_known = _constant(self), stop_gradient(known)
        shape = fixed._shape(fixed_known.out, z)
        slopes = fixed._slopes(shape, fixed_known.out)
        t, _ = self._to_unit(z)
        e = fixed_known.out[:, SHIFT] + shape.bent.value
        e = _moving(e, known.out[:, SHIFT : SHIFT + 1], jnp.ones_like(e)[:, None])
        e = _moving(e, known.out[:, FIRST_INCREMENT:], slopes.by_raw)
        e = _moving(e, t[:, None], slopes.by_t[:, None])
        e = _moving(e, self.tails, shape.bent.by_tails)
        location, log_scale = _skipped(known.skip, e, known.out[:, LOG_SCALE])
        way = Way(known, shape, e, location, log_scale)
        return *self._arrive(way), fixed._score(stop_gradient(way), slopes, z)

    def pull_back(self, z: Float[Array, " p"], covector: Float[Array, " p"]) -> Float[Array, " p"]:
        """Return J^-T applied to a gradient with respect to z: the gradient with respect to x."""
        way = self._follow(z)
        return self._solve(self._derivatives_of_y(way, self._slopes(way.shape, way.known.out))[0], covector)

    def _solve(self, jacobian_of_y: Float[Array, "p p"], covector: Float[Array, " p"]) -> Float[Array, " p"]:
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
            "outer": "diagonal" if isinstance(self.outer, DiagonalAffine) else "triangular",
        }

    def _follow(self, z: Float[Array, " p"]) -> Way:
        """Go the way of a draw up to the outer map."""
        known = self._conditioned(z)
        shape = self._shape(known.out, z)
        e = known.out[:, SHIFT] + shape.bent.value
        return Way(known, shape, e, *_skipped(known.skip, e, known.out[:, LOG_SCALE]))

    def _arrive(self, way: Way) -> tuple[Array, Array]:
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

    def _shape(self, out: Float[Array, "p k"], z: Float[Array, " p"]) -> Shape:
        """Evaluate polynomials and tails, given what the conditioner says."""
        t, rate = self._to_unit(z)
        terms = centered_terms(self.order, t)
        increment = increments(out[:, FIRST_INCREMENT:])
        u = jnp.sum(increment * terms.effects, -1)
        slope = self.order * jnp.sum(increment * terms.basis, -1)
        zeros = jnp.zeros_like(u)
        bent = Bent(u, zeros, zeros, jnp.zeros_like(self.tails)) if self.bounded else bend(self.tails, u)
        return Shape(t, rate, terms, increment, slope, bent)

    def _slopes(self, shape: Shape, out: Float[Array, "p k"]) -> Slopes:
        """Differentiate polynomials and tails."""
        growth = increments_by_raw(out[:, FIRST_INCREMENT:])
        by_effects = growth * shape.terms.effects
        bend_slope, by_u = jnp.exp(shape.bent.log_slope), shape.bent.log_slope_by_u
        by_t = log_slope_by_t(shape.increment, shape.terms, shape.t) + by_u * shape.slope
        return Slopes(
            bend_slope[:, None] * by_effects,
            bend_slope * shape.slope,
            (self.order / shape.slope)[:, None] * growth * shape.terms.basis + by_u[:, None] * by_effects,
            jnp.exp(shape.rate.log) * by_t + shape.rate.log_by_z,
        )

    def _to_unit(self, z: Float[Array, " p"]) -> tuple[Array, Rate]:
        """Map noise to the interval of the polynomial."""
        v = jnp.exp(self.inner_log_scale) * z + self.inner_shift
        if not self.bounded:
            width = 2.0 * NOISES[self.noise].half_width
            return 0.5 + v / width, Rate(self.inner_log_scale - np.log(width), 0.0)
        u = LOGIT_PER_PROBIT * v
        log_rate = self.inner_log_scale + np.log(LOGIT_PER_PROBIT) - jax.nn.softplus(u) - jax.nn.softplus(-u)
        t = jax.nn.sigmoid(u)
        return t, Rate(log_rate, LOGIT_PER_PROBIT * jnp.exp(self.inner_log_scale) * (1.0 - 2.0 * t))

    def _from_unit(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """Invert `_to_unit`."""
        if not self.bounded:
            return NOISES[self.noise].half_width * (2.0 * t - 1.0)
        tiny = jnp.finfo(t.dtype).eps
        return jax.scipy.special.logit(jnp.clip(t, tiny, 1.0 - tiny)) / LOGIT_PER_PROBIT

    def _derivatives_of_y(self, way: Way, slopes: Slopes) -> tuple[Float[Array, "p p"], Float[Array, " p"]]:
        """Return dy/dz, which is triangular, and the gradient of log |dy/dz|.

        Written out rather than left to automatic differentiation, which takes a quarter longer, to run as well as to
        compile. What lies off the diagonal goes through the small hidden layer and the skip terms; e_j and its slope
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


@jax.custom_jvp
def _moving(value: Float[Array, " p"], moved: Float[Array, "p n"], slope: Float[Array, "p n"]) -> Float[Array, " p"]:
    """Return the value, which moves with `moved` by a known slope."""
    return value


@_moving.defjvp
def _moving_jvp(primals, tangents):
    (value, _, slope), (by_value, by_moved, _) = primals, tangents
    return value, by_value + jnp.sum(slope * by_moved, -1)


def _skipped(skip: Skip | None, e: Float[Array, " p"], log_scale: Float[Array, " p"]) -> tuple[Array, Array]:
    """Add the unsaturated terms in e to the location and the log-scale."""
    if skip is None:
        return e, log_scale
    shift, scale = skip.terms(e)
    return e + shift, log_scale + scale


def _constant(flow: BernsteinFlow) -> BernsteinFlow:
    """Return a flow that is not differentiated."""
    return jax.tree.map(lambda leaf: stop_gradient(leaf) if eqx.is_array(leaf) else leaf, flow)


def _bounded_start(order: int) -> np.ndarray:
    """Return coefficients that make the flow with a sigmoid nearly the identity, as far as it reaches."""
    return logit((np.arange(order + 1) + 0.5) / (order + 1)) / LOGIT_PER_PROBIT
