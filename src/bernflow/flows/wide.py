"""The Bernstein flow for many dimensions: a few of them lead, the others follow, one outer map mixes all."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.flows.affine import DiagonalAffine, TriangularAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.base import AbstractScoredFlow
from bernflow.flows.bernstein import centered_polynomial, increments, inverse_increments, invert_centered
from bernflow.flows.conditioner import Skip
from bernflow.flows.marginals import Marginals
from bernflow.flows.noise import NOISES
from bernflow.flows.tails import NUM_WEIGHTS, bend, unbend


class Followers(eqx.Module):
    """Dimensions that depend on a context y_c = T_c(z_c) but not on one another.

        y_j = exp(r_j + R(y_c)_j + (Q h)_j) (H_j(f_j(t_j)) + (S y_c)_j + (U h)_j),   h = hidden(z_c)

    The shape f_j is the same for all values of the context; location and scale are not.
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
        key1, key2, key3 = jax.random.split(key, 3)
        self.inner_log_scale = jnp.zeros(num)
        self.inner_shift = jnp.zeros(num)
        self.raw = jnp.tile(jnp.asarray(inverse_increments(np.diff(NOISES[noise].start(order)))), (num, 1))
        self.log_scale = jnp.zeros(num)
        self.w1 = jax.random.normal(key1, (width, context)) / np.sqrt(context)
        self.b1 = 0.3 * jax.random.normal(key3, (width,))
        self.w2 = jax.random.normal(key2, (width, width)) / np.sqrt(width)
        self.b2 = jnp.zeros(width)
        self.out = jnp.zeros((2, num, width))
        self.skip = Skip(num, context)
        self.tails = jnp.zeros((num, NUM_WEIGHTS))
        self.noise = noise

    def hidden(self, z: Float[Array, " c"]) -> Float[Array, " h"]:
        """Evaluate the last hidden layer at the noise of the context."""
        return jnp.tanh(self.w2 @ jnp.tanh(self.w1 @ z + self.b1) + self.b2)

    def conditioned(self, z: Float[Array, " c"], y: Float[Array, " c"]) -> tuple[Array, Array]:
        """Return the shift and the log-scale of every follower."""
        shift, log_scale = self.out @ self.hidden(z)
        more_shift, more_log_scale = self.skip.terms(y)
        return shift + more_shift, self.log_scale + log_scale + more_log_scale

    def shapes(self, z: Float[Array, " n"]) -> tuple[Array, Array]:
        """Evaluate H_j(f_j(t_j)) and the log of its derivative with respect to z_j."""
        width = 2.0 * NOISES[self.noise].half_width
        t = 0.5 + (jnp.exp(self.inner_log_scale) * z + self.inner_shift) / width
        value, slope = centered_polynomial(increments(self.raw), t)
        bent = bend(self.tails, value)
        return bent.value, jnp.log(slope) + bent.log_slope + self.inner_log_scale - np.log(width)

    def invert_shapes(self, value: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the noise at which the shapes take given values."""
        t = invert_centered(increments(self.raw), unbend(self.tails, value))
        v = NOISES[self.noise].half_width * (2.0 * t - 1.0)
        return (v - self.inner_shift) * jnp.exp(-self.inner_log_scale)


class WideBernsteinFlow(AbstractScoredFlow):
    """A `BernsteinFlow` of the first dimensions, where the scales of a hierarchy come first, and its `Followers`.

    The score costs a multiple of p (c + M + h) per draw, c the size of the context, instead of p^2 (p + h); only the
    outer affine map, which all draws share, is quadratic in p. A new flow is that map of standard normal noise.
    """

    leaders: BernsteinFlow
    followers: Followers
    outer: TriangularAffine | DiagonalAffine
    marginals: Marginals
    dim: int = eqx.field(static=True)

    def __init__(
        self,
        key: Key[Array, ""],
        outer: TriangularAffine | DiagonalAffine,
        *,
        order: int,
        width: int,
        context: int,
        noise: str = "normal",
    ):
        self.dim = outer.start_loc.shape[0]
        leader_key, follower_key = jax.random.split(key)
        # The outer map scales and shifts the leaders, too; theirs is there because every Bernstein flow has one.
        unit = DiagonalAffine(jnp.zeros(context), jnp.ones(context))
        self.leaders = BernsteinFlow(leader_key, unit, order=order, width=width, noise=noise)
        self.followers = Followers(follower_key, self.dim - context, context, order=order, width=width, noise=noise)
        self.outer = outer
        self.marginals = Marginals(outer.start_loc, jnp.linalg.norm(outer.matrix(), axis=1))

    @property
    def context(self) -> int:
        """Number of leading dimensions."""
        return self.leaders.dim

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
        shift, log_scale = self.followers.conditioned(first, y)
        value, log_slope = self.followers.shapes(rest)
        w, outer_log_det = self.outer.transform_and_log_det(jnp.concatenate([y, jnp.exp(log_scale) * (value + shift)]))
        x, marginal_log_slope = self.marginals.transform_and_log_slope(w)
        return x, log_det + outer_log_det + jnp.sum(log_slope + log_scale) + jnp.sum(marginal_log_slope)

    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise; return z and log |dz/dx|."""
        y = self.outer.inverse(self.marginals.inverse(x))
        first, rest = y[: self.context], y[self.context :]
        z, _ = self.leaders.inverse_and_log_det(first)
        shift, log_scale = self.followers.conditioned(z, first)
        z = jnp.concatenate([z, self.followers.invert_shapes(rest * jnp.exp(-log_scale) - shift)])
        return z, -self.transform_and_log_det(z)[1]

    def score(self, z: Float[Array, " p"]) -> Float[Array, " p"]:
        """Evaluate the gradient of log q with respect to x at x = T(z), exactly and without the inverse.

        In blocks of leaders and followers dy/dz = [[J, 0], [B, D]] with D diagonal and B = W J + V dh/dz, so that
        its transposed inverse applied to (a, b) is (J^-T (a - (dh/dz)^T V^T u) - W^T u, u) with u = b / D.
        """
        gradient = jax.grad(lambda u: self.base_log_prob(u) - self.transform_and_log_det(u)[1])(z)
        first, rest = z[: self.context], z[self.context :]
        y, _ = self.leaders.transform_and_log_det(first)
        shift, log_scale = self.followers.conditioned(first, y)
        value, log_slope = self.followers.shapes(rest)
        u = gradient[self.context :] * jnp.exp(-log_slope - log_scale)
        # What moves a follower: the shift by its scale, the log-scale by its value.
        effects = jnp.exp(log_scale) * jnp.stack([u, u * (value + shift)])
        by_hidden = jnp.einsum("kn,knh->h", effects, self.followers.out)
        _, pull = jax.vjp(self.followers.hidden, first)
        leading = self.leaders.pull_back(first, gradient[: self.context] - pull(by_hidden)[0])
        by_shift, by_scale = self.followers.skip.slopes(y)
        leading = leading - effects[0] @ by_shift - effects[1] @ by_scale
        w, _ = self.outer.transform_and_log_det(jnp.concatenate([y, jnp.exp(log_scale) * (value + shift)]))
        _, marginal_log_slope = self.marginals.transform_and_log_slope(w)
        return self.outer.pull_back(jnp.concatenate([leading, u])) * jnp.exp(-marginal_log_slope)

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved flow can be rebuilt."""
        return {
            "kind": "bernstein-wide",
            "dim": self.dim,
            "order": self.leaders.order,
            "noise": self.leaders.noise,
            "width": self.followers.b1.shape[0],
            "context": self.context,
            "outer": "diagonal" if isinstance(self.outer, DiagonalAffine) else "triangular",
        }
