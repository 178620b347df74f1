"""The Bernstein flow for many dimensions: a few leading ones, others that depend on them, and one outer map."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Key

from bernflow.flows.affine import Affine, DiagonalAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.base import AbstractScoredFlow, constant
from bernflow.flows.conditioner import Skip, random_layers
from bernflow.flows.free import AbstractFreeShapes, identity_shapes
from bernflow.flows.marginals import Marginals
from bernflow.flows.noise import NOISES
from bernflow.flows.tails import raw_powers


class Followers(AbstractFreeShapes):
    """Dimensions that depend on a context y_c = T_c(z_c) but not on one another.

        y_j = exp(r_j + R(y_c)_j + (Q h)_j) (H_j(f_j(t_j)) + (S y_c)_j + (U h)_j),   h = hidden(z_c)

    The shape f_j does not depend on the context; location and scale do.
    """

    inner_log_scale: Float[Array, " n"]
    inner_shift: Float[Array, " n"]
    raw: Float[Array, "n m"]
    log_scale: Float[Array, " n"]
    w1: Float[Array, "h c"]
    b1: Float[Array, " h"]
    w2: Float[Array, "h h"]
    b2: Float[Array, " h"]
    out: Float[Array, "2 n h"]
    skip: Skip
    tails: Float[Array, "n 4"]
    noise: str = eqx.field(static=True)

    def __init__(self, key: Key[Array, ""], num: int, context: int, *, order: int, width: int, noise: str):
        for name, value in identity_shapes(num, order, noise).items():
            setattr(self, name, value)
        self.log_scale = jnp.zeros(num)
        first, second, self.b1 = random_layers(key, context, width)
        self.w1 = first / np.sqrt(context)
        self.w2 = second / np.sqrt(width)
        self.b2 = jnp.zeros(width)
        self.out = jnp.zeros((2, num, width))
        self.skip = Skip(num, context)

    def hidden(self, z: Float[Array, " c"]) -> Float[Array, " h"]:
        """Evaluate the last hidden layer at the noise of the context."""
        return jnp.tanh(self.w2 @ jnp.tanh(self.w1 @ z + self.b1) + self.b2)

    def conditioned(self, hidden: Float[Array, " h"], y: Float[Array, " c"]) -> tuple[Array, Array]:
        """Return the shift and the log-scale of every follower."""
        shift, log_scale = self.out @ hidden
        more_shift, more_log_scale = self.skip.terms(y)
        return shift + more_shift, self.log_scale + log_scale + more_log_scale


class WideBernsteinFlow(AbstractScoredFlow):
    """A `BernsteinFlow` of the first dimensions, among them the scales of a hierarchy, and their `Followers`.

    The score costs O(p (c + M + h)) per draw, with c the size of the context, instead of O(p^2 (p + h)); only the outer
    affine map, which all draws share, may be quadratic in p. A new flow is that map of standard normal noise.

    With a rotation, the followers are coordinates along other axes than those of the outer map, chosen so that the
    leaders change their scales and not their axes.
    """

    leaders: BernsteinFlow
    followers: Followers
    rotation: Float[Array, "n n"] | None
    outer: Affine
    marginals: Marginals
    dim: int = eqx.field(static=True)

    def __init__(
        self,
        key: Key[Array, ""],
        outer: Affine,
        *,
        order: int,
        width: int,
        context: int,
        noise: str = "normal",
        rotated: bool = False,
    ):
        self.dim = outer.start_loc.shape[0]
        leader_key, follower_key = jax.random.split(key)
        # The outer map also scales and shifts the leaders; every Bernstein flow has an outer map, so theirs is the
        # identity.
        unit = DiagonalAffine(jnp.zeros(context), jnp.ones(context))
        self.leaders = BernsteinFlow(leader_key, unit, order=order, width=width, noise=noise)
        self.followers = Followers(follower_key, self.dim - context, context, order=order, width=width, noise=noise)
        self.rotation = jnp.eye(self.dim - context) if rotated else None
        self.outer = outer
        self.marginals = Marginals(outer.start_loc, outer.row_norms())

    @property
    def context(self) -> int:
        """Number of leading dimensions."""
        return self.leaders.dim

    def with_rotation(self, rotation: Float[Any, "*r n n"]) -> "WideBernsteinFlow":
        """Return the flow, or stacked flows, whose followers are coordinates along the columns of rotations."""
        return eqx.tree_at(lambda flow: flow.rotation, self, jnp.asarray(rotation), is_leaf=lambda node: node is None)

    def with_powers(self, powers: Float[Any, "*r p 2"]) -> "WideBernsteinFlow":
        """Return the flow, or stacked flows, with power-law tails."""
        leading, following = powers[..., : self.context, :], powers[..., self.context :, :]
        flow = eqx.tree_at(lambda flow: flow.leaders, self, self.leaders.with_powers(leading))
        if self.leaders.noise != "normal":
            return flow
        return eqx.tree_at(lambda flow: flow.followers.tails, flow, raw_powers(following))

    def sample_base(self, key: Key[Array, ""], num: int) -> Float[Array, "s p"]:
        """Draw base noise."""
        return NOISES[self.leaders.noise].sample(key, (num, self.dim))

    def base_log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density of the base noise."""
        return NOISES[self.leaders.noise].log_prob(z)

    def transform_and_log_det(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise to a parameter vector; return x and log |dx/dz|."""
        first, rest = z[: self.context], z[self.context :]
        y, log_det = self.leaders.transform_and_log_det(first)
        shift, log_scale = self.followers.conditioned(self.followers.hidden(first), y)
        shape = self.followers.shape(rest)
        following = jnp.exp(log_scale) * (shape.tailed.value + shift)
        w, outer_log_det = self.outer.transform_and_log_det(jnp.concatenate([y, self._rotated(following)]))
        x, marginal_log_slope = self.marginals.transform_and_log_slope(w)
        return x, log_det + outer_log_det + jnp.sum(shape.log_slope() + log_scale) + jnp.sum(marginal_log_slope)

    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise; return z and log |dz/dx|."""
        y = self.outer.inverse(self.marginals.inverse(x))
        first, rest = y[: self.context], y[self.context :]
        rest = rest if self.rotation is None else self.rotation.T @ rest
        z, _ = self.leaders.inverse_and_log_det(first)
        shift, log_scale = self.followers.conditioned(self.followers.hidden(z), first)
        z = jnp.concatenate([z, self.followers.invert_shapes(rest * jnp.exp(-log_scale) - shift)])
        return z, -self.transform_and_log_det(z)[1]

    def score(self, z: Float[Array, " p"]) -> Float[Array, " p"]:
        """Evaluate the gradient of log q with respect to x at x = T(z), exactly and without the inverse."""
        return self.transform_and_score(z)[2]

    def transform_and_score(
        self, z: Float[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " p"]]:
        """Return x = T(z), log |dx/dz| and the score at x; only x can be differentiated.

        In blocks of leaders and followers, dy/dz = [[J, 0], [B, D]] with D diagonal and B = W J + V dh/dz. Its
        transposed inverse applied to (a, b) is (J^-T (a - (dh/dz)^T V^T u) - W^T u, u) with u = b / D. The log scales r
        of the followers depend on the leaders in the same way; their gradient is added to V^T u and W^T u.
        """
        first, rest = z[: self.context], z[self.context :]
        state, slopes = self.leaders.forward_with_derivatives(first)
        y, log_det = self.leaders.apply_outer(state)
        hidden = self.followers.hidden(first)
        shift, log_scale = self.followers.conditioned(hidden, y)
        shape, shape_slopes, value = self.followers.shape_and_slopes(rest)
        following = jnp.exp(log_scale) * (value + shift)
        w, outer_log_det = self.outer.transform_and_log_det(jnp.concatenate([y, self._rotated(following)]))
        x, marginal_log_slope, marginal_by_w = self.marginals.transform_with_derivatives(w)
        log_slope = shape.log_slope() + log_scale
        log_det = log_det + outer_log_det + jnp.sum(log_slope) + jnp.sum(marginal_log_slope)

        fixed = constant(self)
        state, y, log_slope, following = stop_gradient((state, y, log_slope, following))
        noise_score = jax.grad(self.base_log_prob)(z)
        u = (noise_score[self.context :] - shape_slopes.log_slope_by_z) * jnp.exp(-log_slope)
        # Effects on a follower and the log of its slope: of the shift, and of the log-scale.
        by_shift = jnp.exp(stop_gradient(log_scale)) * u
        by_scale = following * u + 1.0
        by_hidden = by_shift @ fixed.followers.out[0] + by_scale @ fixed.followers.out[1]
        _, pull = jax.vjp(fixed.followers.hidden, first)
        jacobian, log_det_gradient = fixed.leaders.derivatives_of_y(state, slopes)
        gradient = noise_score[: self.context] - log_det_gradient - pull(by_hidden)[0]
        skip_shift, skip_scale = fixed.followers.skip.slopes(y)
        leading = fixed.leaders.pull_back(jacobian, gradient) - by_shift @ skip_shift - by_scale @ skip_scale
        score_w = fixed.outer.pull_back(jnp.concatenate([leading, self._rotated(u)]))
        return x, log_det, (score_w - marginal_by_w) * jnp.exp(-marginal_log_slope)

    def _rotated(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """Rotate coordinates of the followers, or a covector, to the axes of the outer map."""
        return v if self.rotation is None else stop_gradient(self.rotation) @ v

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved flow can be rebuilt."""
        return {
            "kind": "bernstein-wide",
            "dim": self.dim,
            "order": self.leaders.order,
            "noise": self.leaders.noise,
            "width": self.followers.b1.shape[0],
            "context": self.context,
            "rotated": self.rotation is not None,
            **self.outer.recipe(),
        }
