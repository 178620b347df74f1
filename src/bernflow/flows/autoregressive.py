"""The Bernstein flow: inner affine, polynomial, autoregressive conditioner, outer affine."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Key

from bernflow.flows.affine import DiagonalAffine, TriangularAffine
from bernflow.flows.base import AbstractScoredFlow
from bernflow.flows.bernstein import centered_polynomial, increments, inverse_increments, invert_centered
from bernflow.flows.conditioner import LinearSkip, MaskedNetwork
from bernflow.flows.noise import NOISES

# The conditioner gives dimension j a shift, a log-scale and the M increments of its polynomial.
SHIFT, LOG_SCALE, FIRST_INCREMENT = 0, 1, 2


class BernsteinFlow(AbstractScoredFlow):
    """y_j = s_j + exp(r_j) f_j((exp(a_j) z_j + b_j + c) / 2c), x = outer(y) (the paper's eq. 3, extended).

    s_j, r_j and the coefficients of f_j depend on z_1..z_{j-1} through a masked network; s_j and r_j also linearly.
    Without network and skip every dimension stands alone (mean field). A new flow is the outer map applied to
    standard normal noise.
    """

    inner_log_scale: Float[Array, " p"]
    inner_shift: Float[Array, " p"]
    bias: Float[Array, "p k"]
    network: MaskedNetwork | None
    skip: LinearSkip | None
    outer: TriangularAffine | DiagonalAffine
    noise: str = eqx.field(static=True)
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
    ):
        dim = outer.start_loc.shape[0]
        self.dim = dim
        self.noise = noise
        self.outer = outer
        self.inner_log_scale = jnp.zeros(dim)
        self.inner_shift = jnp.zeros(dim)
        start = inverse_increments(np.diff(NOISES[noise].start(order)))
        self.bias = jnp.tile(jnp.concatenate([jnp.zeros(FIRST_INCREMENT), jnp.asarray(start)]), (dim, 1))
        conditional = conditional and dim > 1  # one dimension has nothing to condition on
        self.network = MaskedNetwork(key, dim, order + FIRST_INCREMENT, width) if conditional else None
        self.skip = LinearSkip(dim) if conditional and skip else None

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
        y, log_slope = jax.vmap(self._dimension)(self._parameters(z), z, self.inner_log_scale, self.inner_shift)
        x, log_det = self.outer.transform_and_log_det(y)
        return x, log_det + jnp.sum(log_slope)

    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise, one dimension after the other; return z and log |dz/dx|."""
        y = self.outer.inverse(x)
        half_width = NOISES[self.noise].half_width

        def body(j, z):
            out = self._parameters_of(z, j)
            t = invert_centered(increments(out[FIRST_INCREMENT:]), y[j] * jnp.exp(-out[LOG_SCALE]) - out[SHIFT])
            v = half_width * (2.0 * t - 1.0)
            return z.at[j].set((v - self.inner_shift[j]) * jnp.exp(-self.inner_log_scale[j]))

        z = jax.lax.fori_loop(0, self.dim, body, jnp.zeros_like(y))
        return z, -self.transform_and_log_det(z)[1]

    def score(self, z: Float[Array, " p"]) -> Float[Array, " p"]:
        """Evaluate the gradient of log q with respect to x at x = T(z), exactly and without the inverse.

        With log q(T(z)) = log f_Z(z) - log |J(z)|, the gradient is J^-T times its z-gradient. J_y is triangular: its
        off-diagonal part goes through the small hidden layer and the skip terms, so it costs one Jacobian of the
        hidden layer and one triangular solve.
        """
        gradient = jax.grad(lambda u: self.base_log_prob(u) - self.transform_and_log_det(u)[1])(z)
        return self.outer.pull_back(solve_triangular(self._jacobian_of_y(z), gradient, lower=True, trans="T"))

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved flow can be rebuilt."""
        return {
            "kind": "bernstein",
            "dim": self.dim,
            "order": self.order,
            "noise": self.noise,
            "width": 0 if self.network is None else self.network.b1.shape[0],
            "skip": self.skip is not None,
            "outer": "diagonal" if isinstance(self.outer, DiagonalAffine) else "triangular",
        }

    def _dimension(self, out, z, inner_log_scale, inner_shift):
        """Evaluate y_j and log dy_j/dz_j for one dimension, given what the conditioner says."""
        half_width = NOISES[self.noise].half_width
        t = 0.5 + (jnp.exp(inner_log_scale) * z + inner_shift) / (2.0 * half_width)
        value, slope = centered_polynomial(increments(out[FIRST_INCREMENT:]), t)
        y = jnp.exp(out[LOG_SCALE]) * (out[SHIFT] + value)
        return y, out[LOG_SCALE] + jnp.log(slope) + inner_log_scale - np.log(2.0 * half_width)

    def _parameters(self, z: Float[Array, " p"]) -> Float[Array, "p k"]:
        """Return shift, log-scale and raw increments of every dimension."""
        out = self.bias
        if self.network is not None:
            out = out + self.network.readout() @ self.network.hidden(z)
        if self.skip is not None:
            shift, log_scale = self.skip.matrices()
            out = out.at[:, SHIFT].add(shift @ z).at[:, LOG_SCALE].add(log_scale @ z)
        return out

    def _parameters_of(self, z: Float[Array, " p"], j: Array) -> Float[Array, " k"]:
        """Return the row of `_parameters` for one dimension without computing the others."""
        out = self.bias[j]
        if self.network is not None:
            out = out + self.network.readout()[j] @ self.network.hidden(z)
        if self.skip is not None:
            shift, log_scale = self.skip.matrices()
            out = out.at[SHIFT].add(shift[j] @ z).at[LOG_SCALE].add(log_scale[j] @ z)
        return out

    def _jacobian_of_y(self, z: Float[Array, " p"]) -> Float[Array, "p p"]:
        inner = (self.inner_log_scale, self.inner_shift)
        out = self._parameters(z)
        _, log_slope = jax.vmap(self._dimension)(out, z, *inner)
        jacobian = jnp.diag(jnp.exp(log_slope))
        if self.network is None:
            return jacobian
        by_output = jax.vmap(jax.grad(lambda *args: self._dimension(*args)[0]))(out, z, *inner)
        by_hidden = jnp.einsum("jk,jkh->jh", by_output, self.network.readout())
        jacobian += by_hidden @ jax.jacfwd(self.network.hidden)(z)
        if self.skip is not None:
            shift, log_scale = self.skip.matrices()
            jacobian += by_output[:, SHIFT, None] * shift + by_output[:, LOG_SCALE, None] * log_scale
        return jacobian
