"""One dense block of locals given the globals: a Gaussian whose mean and factor are interpolated."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bernflow.flows.base import Fixed
from bernflow.flows.drift import Drift
from bernflow.flows.free import AbstractFreeShapes, identity_shapes
from bernflow.flows.kernels import Interpolant
from bernflow.flows.structure import Structure

# The least size of a block whose moments are interpolated.
MIN_SIZE = 9
# Number of functions of the globals: per global, its bounds, and a bound on the total size of their matrices.
PER_GLOBAL, MAX_FUNCTIONS, MIN_FUNCTIONS, MAX_NUMBERS = 16, 64, 8, 2**22
# Number of interpolation points: this factor times (number of globals + 1)^2, and its bound.
POINT_FACTOR, MAX_POINTS = 8, 256


def is_one_dense_block(structure: Structure) -> bool:
    """Tell whether the locals form one block that is too large for natural parameters."""
    return len(structure.blocks) == 1 and structure.size >= MIN_SIZE


def num_functions(structure: Structure) -> int:
    """Choose the number of functions of the globals, fewer for larger blocks."""
    wanted = min(MAX_FUNCTIONS, PER_GLOBAL * structure.num_leaders)
    return max(MIN_FUNCTIONS, min(wanted, MAX_NUMBERS // structure.size**2))


def num_points(num_leaders: int) -> int:
    """Choose the number of points of the interpolation."""
    return min(MAX_POINTS, POINT_FACTOR * (num_leaders + 1) ** 2)


class DenseParameters(NamedTuple):
    """Parameters of a dense block given the globals.

    Attributes:
        functions: interpolated functions of the globals; the strictly lower part of the factor is linear in them.
        mean: the mean in whitened coordinates.
        log_diagonal: logs of the row scales of the factor in whitened coordinates.
        shift: shift of the noise.
        log_scale: log scale of the noise.
    """

    functions: Float[Array, " r"]
    mean: Float[Array, " n"]
    log_diagonal: Float[Array, " n"]
    shift: Float[Array, " n"]
    log_scale: Float[Array, " n"]


class DenseConditional(AbstractFreeShapes):
    """A dense block of locals given standardized globals u.

        l = center + F (mean(u) + d(u) * (I + L(u)) z),   z = exp(r(u)) (H(f(t)) + shift(u)),

    with a fixed lower triangular matrix F and a strictly lower triangular L. Mean, log d and L are linear in a few
    interpolated functions of u, which are fitted to moments of the target and not trained. The forward pass consists of
    matrix products. The inverse solves a triangular system by a loop, because two simultaneous LAPACK calls inside one
    compiled function can deadlock on few cores.
    """

    functions: Fixed[Interpolant]
    center: Fixed[Float[Array, " n"]]
    factor: Fixed[Float[Array, "n n"]]
    inverse: Fixed[Float[Array, "n n"]]
    mean: Fixed[Float[Array, "r n"]]
    log_diagonal: Fixed[Float[Array, "r n"]]
    columns: Fixed[Float[Array, "r n n"]]
    drift: Drift
    inner_log_scale: Float[Array, " n"]
    inner_shift: Float[Array, " n"]
    raw: Float[Array, "n m"]
    tails: Float[Array, "n 4"]
    noise: str = eqx.field(static=True)
    structure: Structure = eqx.field(static=True)

    def __init__(self, key: Key[Array, ""], structure: Structure, *, order: int, width: int, noise: str):
        num, context = structure.num_locals, structure.num_leaders
        functions, points = num_functions(structure), num_points(context)
        self.structure = structure
        reach = jnp.asarray([[-1.0], [1.0]]) * jnp.ones((2, context))
        weights = jnp.zeros((points + 1 + context, functions))
        self.functions = Fixed(Interpolant(jnp.zeros((points, context)), jnp.ones(context), reach, weights))
        self.center, self.factor, self.inverse = Fixed(jnp.zeros(num)), Fixed(jnp.eye(num)), Fixed(jnp.eye(num))
        self.mean, self.log_diagonal = Fixed(jnp.zeros((functions, num))), Fixed(jnp.zeros((functions, num)))
        # Entry [r, j, i] is row i and column j of the matrix of function r.
        self.columns = Fixed(jnp.zeros((functions, num, num)))
        self.drift = Drift(key, num, context, width)
        for name, value in identity_shapes(num, order, noise).items():
            setattr(self, name, value)

    def parameters(self, g: Float[Array, " c"], u: Float[Array, " c"]) -> DenseParameters:
        """Evaluate the parameters of the locals at globals g, which are u when standardized."""
        functions = self.functions.value(u)
        return DenseParameters(
            functions, functions @ self.mean.value, functions @ self.log_diagonal.value, *self.drift(u)
        )

    def color(self, params: DenseParameters, value: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """Map values of the shapes to locals l; return l and log |dl/dvalue|."""
        z = jnp.exp(params.log_scale) * (value + params.shift)
        products = (params.functions[:, None] * z).ravel() @ self.columns.value.reshape(-1, z.shape[0])
        y = params.mean + jnp.exp(params.log_diagonal) * (z + products)
        return self.center.value + self.factor.value @ y, self._log_det(params)

    def whiten(self, params: DenseParameters, local: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """Map locals to values of the shapes; return them and log |dl/dvalue|."""
        y = self.inverse.value @ (local - self.center.value)

        def step(j, z):
            return z - z[j] * (params.functions @ self.columns.value[:, j])

        z = jax.lax.fori_loop(0, y.shape[0], step, (y - params.mean) * jnp.exp(-params.log_diagonal))
        return jnp.exp(-params.log_scale) * z - params.shift, self._log_det(params)

    def pull_back(
        self,
        params: Callable[[Float[Array, " c"]], DenseParameters],
        g: Float[Array, " c"],
        local: Float[Array, " n"],
        value: Float[Array, " n"],
        by_value: Float[Array, " n"],
    ) -> tuple[Float[Array, " c"], Float[Array, " n"]]:
        """Return the gradient of log q(l | g) with respect to g and to l.

        At a fixed value, both l(g, value) and the determinant change with g. The gradient at a fixed l subtracts the
        effect of the change of l.

        Args:
            params: the parameters of the locals as a function of the globals.
            g: the globals.
            local: the locals.
            value: values of the shapes.
            by_value: gradient of log f with respect to them, f their density.
        """
        here = params(g)
        by_local = self._solve_transposed(here, jnp.exp(-here.log_scale) * by_value)
        _, pull = jax.vjp(lambda g: self.color(params(g), value), g)
        return -pull((by_local, jnp.ones_like(by_local[0])))[0], by_local

    def _solve_transposed(self, params: DenseParameters, z: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return F^-T diag(1/d) (I + L)^-T z."""
        num = z.shape[0]

        def step(k, x):
            j = num - 1 - k
            return x.at[j].add(-(params.functions @ self.columns.value[:, j]) @ x)

        x = jax.lax.fori_loop(0, num, step, z)
        return self.inverse.value.T @ (jnp.exp(-params.log_diagonal) * x)

    def recipe(self) -> dict[str, Any]:
        """Return no further entries: the structure describes the block completely."""
        return {}

    def _log_det(self, params: DenseParameters) -> Float[Array, ""]:
        fixed = jnp.sum(jnp.log(jnp.diagonal(self.factor.value)))
        return fixed + jnp.sum(params.log_diagonal) + jnp.sum(params.log_scale)
