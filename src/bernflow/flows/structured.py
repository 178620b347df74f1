"""The Bernstein flow of a hierarchical posterior: a flow of the globals, and locals in blocks given them."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Key

from bernflow.flows.affine import TriangularAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.base import AbstractScoredFlow, constant
from bernflow.flows.conditioner import LINEAR_UNTIL, random_layers
from bernflow.flows.free import AbstractFreeShapes, identity_shapes
from bernflow.flows.noise import NOISES
from bernflow.flows.structure import Structure

# Blocks of up to this size are solved by unrolled substitution.
MAX_UNROLLED = 6
# Directions in which the matrices of all blocks vary with the globals.
RANK = 8
# Matrices of larger blocks stay what the curvature says: the noise of training so many entries would add up.
MAX_TRAINED = 16


class Given(NamedTuple):
    """What the globals say of the locals.

    Attributes:
        loc: location.
        shift: shift of the shapes, in units of their scale.
        log_scale: log of the scale.
        mix: strictly lower triangular K of every block.
        carry: dependence of every block on the one before it; None without a chain.
    """

    loc: Float[Array, " n"]
    shift: Float[Array, " n"]
    log_scale: Float[Array, " n"]
    mix: Float[Array, "b s s"] | None
    carry: Float[Array, "b s s"] | None


class Conditional(AbstractFreeShapes):
    """The locals given the standardized globals u.

        l = b + A u + F exp(r) e',   e'_b = (I + K_b) e_b + C_b e'_{b-1},   e = H(f(t)) + shift

    with a triangular factor F of every block at the start, which is not trained: in its units directions of large and
    small variance are alike.

    r, K, C and the shift are linear in the features (u, hidden(u)), so that they can be fitted by regression; K and C
    vary along a few directions only. The shapes H(f(t)) do not depend on the globals. Without mixing and carrying all
    locals are independent given u.
    """

    loc: Float[Array, " n"]
    slope: Float[Array, "n c"]
    start_factor: Float[Array, "b s s"]
    start_inverse: Float[Array, "b s s"]
    shift: Float[Array, " n"]
    log_scale: Float[Array, " n"]
    mix: Float[Array, "b s s"] | None
    carry: Float[Array, "b s s"] | None
    w1: Float[Array, "h c"]
    b1: Float[Array, " h"]
    w2: Float[Array, "h h"]
    b2: Float[Array, " h"]
    shift_out: Float[Array, "n f"]
    log_scale_out: Float[Array, "n f"]
    mix_basis: Float[Array, "k b s s"] | None
    mix_out: Float[Array, "k f"] | None
    carry_basis: Float[Array, "k b s s"] | None
    carry_out: Float[Array, "k f"] | None
    inner_log_scale: Float[Array, " n"]
    inner_shift: Float[Array, " n"]
    raw: Float[Array, "n m"]
    tails: Float[Array, "n 4"]
    noise: str = eqx.field(static=True)

    def __init__(self, key: Key[Array, ""], structure: Structure, *, order: int, width: int, noise: str):
        num, context = structure.num_locals, structure.num_leaders
        blocks = (len(structure.blocks), structure.size, structure.size)
        features = context + width
        self.loc, self.shift, self.log_scale = jnp.zeros(num), jnp.zeros(num), jnp.zeros(num)
        self.slope = jnp.zeros((num, context))
        self.start_factor = self.start_inverse = jnp.tile(jnp.eye(structure.size), (len(structure.blocks), 1, 1))
        has_mix = structure.size > 1
        self.mix = jnp.zeros(blocks) if has_mix else None
        self.carry = jnp.zeros(blocks) if structure.chained else None
        first, second, self.b1 = random_layers(key, context, width)
        self.w1, self.w2 = first / np.sqrt(context), second / np.sqrt(width)
        self.b2 = jnp.zeros(width)
        self.shift_out, self.log_scale_out = jnp.zeros((num, features)), jnp.zeros((num, features))
        self.mix_basis = jnp.zeros((RANK, *blocks)) if has_mix else None
        self.mix_out = jnp.zeros((RANK, features)) if has_mix else None
        self.carry_basis = jnp.zeros((RANK, *blocks)) if structure.chained else None
        self.carry_out = jnp.zeros((RANK, features)) if structure.chained else None
        for name, value in identity_shapes(num, order, noise).items():
            setattr(self, name, value)

    def features(self, u: Float[Array, "... c"]) -> Float[Array, "... f"]:
        """Return what everything but the location is linear in: u, slower far out, and the last hidden layer."""
        hidden = jnp.tanh(jnp.tanh(u @ self.w1.T + self.b1) @ self.w2.T + self.b2)
        beyond = jnp.maximum(jnp.abs(u) - LINEAR_UNTIL, 0.0)
        linear = jnp.clip(u, -LINEAR_UNTIL, LINEAR_UNTIL) + jnp.sign(u) * jnp.log1p(beyond)
        return jnp.concatenate([linear, hidden], -1)

    def given(self, u: Float[Array, " c"]) -> Given:
        """Evaluate what the globals say of the locals."""
        features = self.features(u)
        mix = _combined(self.mix, self.mix_basis, self.mix_out, features)
        mix = None if mix is None else jnp.tril(mix, -1)
        carry = _combined(self.carry, self.carry_basis, self.carry_out, features)
        log_scale = self.log_scale + self.log_scale_out @ features
        shift = self.shift + self.shift_out @ features
        return Given(self.loc + self.slope @ u, shift, log_scale, mix, carry)

    def color(self, y: Float[Array, "b s"]) -> Float[Array, "b s"]:
        """Multiply by the fixed factor of every block."""
        return jnp.einsum("bij,bj->bi", stop_gradient(self.start_factor), y)

    def whiten(self, y: Float[Array, "b s"]) -> Float[Array, "b s"]:
        """Undo `color`."""
        return jnp.einsum("bij,bj->bi", stop_gradient(self.start_inverse), y)

    def whiten_transposed(self, y: Float[Array, "b s"]) -> Float[Array, "b s"]:
        """Multiply by the inverse transposed, as a score."""
        return jnp.einsum("bij,bi->bj", stop_gradient(self.start_inverse), y)

    def log_det(self) -> Float[Array, ""]:
        """Return the log determinant of the fixed factors."""
        return stop_gradient(jnp.sum(jnp.log(jnp.diagonal(self.start_factor, axis1=1, axis2=2))))


def _combined(
    center: Float[Array, "b s s"] | None,
    basis: Float[Array, "k b s s"] | None,
    out: Float[Array, "k f"] | None,
    features: Float[Array, " f"],
) -> Float[Array, "b s s"] | None:
    """Return matrices that vary along a few directions, if there are any; those of large blocks are not trained."""
    if center is None or basis is None or out is None:
        return None
    if center.shape[-1] > MAX_TRAINED:
        center, basis = stop_gradient((center, basis))
    return center + jnp.tensordot(out @ features, basis, 1)


class StructuredBernsteinFlow(AbstractScoredFlow):
    """A `BernsteinFlow` of the globals, and locals whose location, scale and correlations are functions of them.

    Nothing here is quadratic in the number of locals. Noise and log-determinants are in the order of `Structure.order`;
    x has the order of the target.
    """

    leaders: BernsteinFlow
    locals: Conditional
    structure: Structure = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __init__(
        self,
        key: Key[Array, ""],
        structure: Structure,
        loc: Float[Array, " c"],
        tril: Float[Array, "c c"],
        *,
        order: int,
        width: int,
        noise: str = "normal",
    ):
        leader_key, local_key = jax.random.split(key)
        self.dim = structure.dim
        self.structure = structure
        self.leaders = BernsteinFlow(leader_key, TriangularAffine(loc, tril), order=order, width=width, noise=noise)
        self.locals = Conditional(local_key, structure, order=order, width=width, noise=noise)

    @property
    def has_loops(self) -> bool:
        """Whether blocks are drawn one after the other."""
        return self.structure.chained

    def sample_base(self, key: Key[Array, ""], num: int) -> Float[Array, "s p"]:
        """Draw base noise."""
        return NOISES[self.leaders.noise].sample(key, (num, self.dim))

    def base_log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density of the base noise."""
        return NOISES[self.leaders.noise].log_prob(z)

    def transform_and_log_det(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise to a parameter vector; return x and log |dx/dz|."""
        first, rest = self._split(z)
        g, log_det = self.leaders.transform_and_log_det(first)
        given = self.locals.given(self._standardized(g))
        shape = self.locals.shape(rest)
        local = self._colored(given, self._mixed(given, shape.bent.value)[1])
        log_det = log_det + jnp.sum(shape.log_slope() + given.log_scale) + self.locals.log_det()
        return jnp.concatenate([g, local])[self.structure.places], log_det

    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise; return z and log |dz/dx|."""
        g, local = self._split(x[self.structure.order])
        z, _ = self.leaders.inverse_and_log_det(g)
        given = self.locals.given(self._standardized(g))
        mixed = self.locals.whiten(self.structure.by_block(local - given.loc))
        mixed = mixed * jnp.exp(-self.structure.by_block(given.log_scale))
        if given.carry is not None:
            before = jnp.concatenate([jnp.zeros_like(mixed[:1]), mixed[:-1]])
            mixed = mixed - jnp.einsum("bij,bj->bi", given.carry, before)
        e = mixed if given.mix is None else solve_unit(given.mix, mixed)
        z = jnp.concatenate([z, self.locals.invert_shapes(self.structure.flat(e) - given.shift)])
        return z, -self.transform_and_log_det(z)[1]

    def score(self, z: Float[Array, " p"]) -> Float[Array, " p"]:
        """Evaluate the gradient of log q with respect to x at x = T(z), exactly and without the inverse."""
        return self.transform_and_score(z)[2]

    def transform_and_score(
        self, z: Float[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " p"]]:
        """Return x = T(z), log |dx/dz| and the score at x, of which x alone can be differentiated.

        With a the gradient of the log density of the shapes and v = M^-T a for e' = M e, the score of the locals is
        F^-T exp(-r) v. At fixed locals, log q(l | g) moves with the shift by -a, with the location by minus that score,
        with r by -(v e' + 1), with K by -v e^T and with C by -w e'^T of the block before, w = (I + K)^-T a; a
        vector-Jacobian product with these gives what the locals add to the score of the globals.
        """
        first, rest = self._split(z)
        g, log_det, score_g = self.leaders.transform_and_score(first)
        given = self.locals.given(self._standardized(g))
        shape, slopes, value = self.locals.shape_and_slopes(rest)
        e, mixed = self._mixed(given, value)
        x = jnp.concatenate([g, self._colored(given, mixed)])[self.structure.places]
        log_slope = shape.log_slope()
        log_det = log_det + jnp.sum(log_slope + given.log_scale) + self.locals.log_det()

        g, given, e, mixed, log_slope = stop_gradient((g, given, e, mixed, log_slope))
        noise_score = jax.grad(self.base_log_prob)(z)[self.structure.num_leaders :]
        a = (noise_score - slopes.log_slope_by_z) * jnp.exp(-log_slope)
        blocks = self.structure.by_block(a)
        w = blocks if given.mix is None else solve_unit_transposed(given.mix, blocks)
        v, mixed_blocks = w, self.structure.by_block(mixed)
        mix = None if given.mix is None else -w[:, :, None] * self.structure.by_block(e)[:, None, :]
        carry = None
        if given.carry is not None:
            after = jnp.concatenate([jnp.einsum("bij,bi->bj", given.carry[1:], w[1:]), jnp.zeros_like(w[:1])])
            v = w - after
            before = jnp.concatenate([jnp.zeros_like(w[:1]), mixed_blocks[:-1]])
            carry = -w[:, :, None] * before[:, None, :]
        v = self.structure.flat(v)
        by_loc = jnp.exp(-given.log_scale) * v
        by_loc = self.structure.flat(self.locals.whiten_transposed(self.structure.by_block(by_loc)))
        moved = Given(-by_loc, -a, -(v * mixed + 1.0), mix, carry)
        fixed = constant(self)
        _, pull = jax.vjp(lambda g: fixed.locals.given(fixed._standardized(g)), g)
        score = jnp.concatenate([score_g + pull(moved)[0], by_loc])
        return x, log_det, stop_gradient(score[self.structure.places])

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved flow can be rebuilt."""
        return {
            "kind": "bernstein-structured",
            "order": self.leaders.order,
            "noise": self.leaders.noise,
            "width": self.locals.b1.shape[0],
            **self.structure.to_json(),
        }

    def _split(self, values: Float[Array, " p"]) -> tuple[Float[Array, " c"], Float[Array, " n"]]:
        return values[: self.structure.num_leaders], values[self.structure.num_leaders :]

    def _standardized(self, g: Float[Array, " c"]) -> Float[Array, " c"]:
        """Return the globals in units of the start."""
        outer: Any = self.leaders.outer  # triangular: see __init__
        return solve_triangular(stop_gradient(outer.start_tril), g - stop_gradient(outer.start_loc), lower=True)

    def _colored(self, given: Given, mixed: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the locals."""
        y = self.structure.by_block(jnp.exp(given.log_scale) * mixed)
        return given.loc + self.structure.flat(self.locals.color(y))

    def _mixed(self, given: Given, value: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Return shifted shapes e and what their blocks mix them to, e'."""
        e = value + given.shift
        if given.mix is None and given.carry is None:
            return e, e
        mixed = self.structure.by_block(e)
        if given.mix is not None:
            mixed = mixed + jnp.einsum("bij,bj->bi", given.mix, mixed)
        if given.carry is not None:
            mixed = carried(given.carry, mixed)
        return e, self.structure.flat(mixed)


def carried(carry: Float[Array, "b s s"], e: Float[Array, "b s"]) -> Float[Array, "b s"]:
    """Return e' with e'_b = e_b + C_b e'_{b-1}."""

    def step(before, inputs):
        matrix, own = inputs
        after = own + matrix @ before
        return after, after

    return jax.lax.scan(step, jnp.zeros_like(e[0]), (carry, e))[1]


def solve_unit(mix: Float[Array, "b s s"], e: Float[Array, "b s"]) -> Float[Array, "b s"]:
    """Solve (I + K) y = e for every block."""
    size = e.shape[-1]
    if size > MAX_UNROLLED:
        return solve_triangular(mix + jnp.eye(size), e[..., None], lower=True, unit_diagonal=True)[..., 0]
    solved: list[Array] = []
    for i in range(size):
        solved.append(e[:, i] - sum((mix[:, i, k] * solved[k] for k in range(i)), start=jnp.zeros(())))
    return jnp.stack(solved, -1)


def solve_unit_transposed(mix: Float[Array, "b s s"], e: Float[Array, "b s"]) -> Float[Array, "b s"]:
    """Solve (I + K)^T y = e for every block."""
    size = e.shape[-1]
    if size > MAX_UNROLLED:
        identity = jnp.eye(size)
        return solve_triangular(mix + identity, e[..., None], lower=True, trans="T", unit_diagonal=True)[..., 0]
    solved: list[Array] = []
    for i in reversed(range(size)):
        later = (mix[:, k, i] * solved[size - 1 - k] for k in range(i + 1, size))
        solved.append(e[:, i] - sum(later, start=jnp.zeros(())))
    return jnp.stack(solved[::-1], -1)
