"""The Bernstein flow of a hierarchical posterior: a flow of the globals, and blocks of locals given them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Key

from bernflow.flows.affine import TriangularAffine
from bernflow.flows.atoms import MAX_FACTORS, Atoms
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.base import AbstractScoredFlow, Fixed, constant
from bernflow.flows.bend import Bend
from bernflow.flows.bounded import from_logit, mask_of, to_logit
from bernflow.flows.curved import MAX_SIZE, Curved
from bernflow.flows.dense import DenseConditional, is_one_dense_block
from bernflow.flows.drift import Drift
from bernflow.flows.free import AbstractFreeShapes, identity_shapes
from bernflow.flows.natural import Eliminated, Natural, eliminate
from bernflow.flows.noise import NOISES
from bernflow.flows.structure import Structure
from bernflow.flows.views import View, plain_views

# Number of atoms: default, per global, minimum, and a bound on the total size of their coefficients.
NUM_ATOMS, ATOMS_PER_GLOBAL, MIN_ATOMS, MAX_NUMBERS = 96, 4, 8, 2**22
# Range of the functions of the globals (see `Atoms`) before the regression sets it.
START_REACH = np.array([[-4.0], [4.0]])


def num_atoms(structure: Structure) -> int:
    """Choose the number of atoms, fewer for large blocks, whose matrices take memory and time."""
    entries = len(structure.blocks) * structure.size**2 * (2 if structure.chained else 1)
    wanted = max(NUM_ATOMS, ATOMS_PER_GLOBAL * structure.num_leaders)
    return max(MIN_ATOMS, min(wanted, MAX_NUMBERS // entries))


class ConditionalParameters(NamedTuple):
    """Parameters of the locals given the globals: a Gaussian, and shift and log scale of its noise."""

    gaussian: Eliminated
    shift: Float[Array, " n"]
    log_scale: Float[Array, " n"]


class Conditional(AbstractFreeShapes):
    """The locals given the globals g.

        l = center + unit y,   y ~ N(Q^-1 h, Q^-1) with noise exp(r) (w + shift) instead of standard noise

    Precision Q and potential h are linear in atoms of g. They are fitted by a regression on modes and curvatures of the
    target and not trained. Between the points of the regression Q may fail to be positive definite, so the pivots of
    its factors have a lower bound. r and the shift are linear in the features (u, hidden(u)) of the standardized
    globals u. w is H(f(t)) or, in small blocks of several locals, a quadratic map of it (`Curved`); neither depends on
    g. For `bounded` locals, l is in the coordinates of `flows/bounded.py`.
    """

    atoms: Fixed[Atoms]
    center: Fixed[Float[Array, " n"]]
    unit: Fixed[Float[Array, " n"]]
    precision: Fixed[Float[Array, "a b s s"]]
    link: Fixed[Float[Array, "a b s s"]] | None
    potential: Fixed[Float[Array, "a b s"]]
    least: Fixed[Float[Array, "b s"]]
    drift: Drift
    inner_log_scale: Float[Array, " n"]
    inner_shift: Float[Array, " n"]
    raw: Float[Array, "n m"]
    tails: Float[Array, "n 4"]
    curved: Curved | None
    noise: str = eqx.field(static=True)
    structure: Structure = eqx.field(static=True)
    bounded: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        key: Key[Array, ""],
        structure: Structure,
        views: tuple[View, ...],
        bounded: tuple[int, ...],
        *,
        order: int,
        width: int,
        noise: str,
    ):
        num, context = structure.num_locals, structure.num_leaders
        blocks = (num_atoms(structure), len(structure.blocks), structure.size, structure.size)
        self.structure, self.bounded = structure, bounded
        # The first atom is the constant 1, so all locals start as standard normal.
        factors = jnp.zeros((blocks[0], MAX_FACTORS), jnp.int32)
        each = jnp.ones(len(views))
        self.atoms = Fixed(Atoms(0.0 * each, each, START_REACH * each, factors, views))
        self.center, self.unit = Fixed(jnp.zeros(num)), Fixed(jnp.ones(num))
        self.precision = Fixed(jnp.zeros(blocks).at[0].set(jnp.eye(structure.size)))
        self.link = Fixed(jnp.zeros(blocks)) if structure.chained else None
        self.potential = Fixed(jnp.zeros(blocks[:-1]))
        self.least = Fixed(jnp.zeros(blocks[1:-1]))
        self.drift = Drift(key, num, context, width)
        for name, value in identity_shapes(num, order, noise).items():
            setattr(self, name, value)
        self.curved = Curved(len(structure.blocks), structure.size) if 1 < structure.size <= MAX_SIZE else None

    def parameters(self, g: Float[Array, " c"], u: Float[Array, " c"]) -> ConditionalParameters:
        """Evaluate the parameters of the locals at globals g, which are u when standardized."""
        atoms = self.atoms.value(g)
        precision, potential = (jnp.tensordot(atoms, part.value, 1) for part in (self.precision, self.potential))
        link = None if self.link is None else jnp.tensordot(atoms, self.link.value, 1)
        return ConditionalParameters(eliminate(Natural(precision, link, potential), self.least.value), *self.drift(u))

    def color(
        self, params: ConditionalParameters, value: Float[Array, " n"]
    ) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """Map values of the shapes to locals l; return l and log |dl/dvalue|."""
        blocks = self.structure.by_block(value)
        log_det: Any = 0.0
        if self.curved is not None:
            blocks, log_det = self.curved(blocks, self.structure.is_member)
        z = jnp.exp(params.log_scale) * (self.structure.flat(blocks) + params.shift)
        y = self.structure.flat(params.gaussian.color(self.structure.by_block(z)))
        local, log_det = self.center.value + self.unit.value * y, log_det + self._log_det(params)
        if self.bounded:
            local, log_slope = to_logit(local, mask_of(self.bounded, len(local)))
            log_det += log_slope
        return local, log_det

    def whiten(
        self, params: ConditionalParameters, local: Float[Array, " n"]
    ) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """Map locals to values of the shapes; return them and log |dl/dvalue|."""
        log_det = self._log_det(params)
        if self.bounded:
            local, log_slope = from_logit(local, mask_of(self.bounded, len(local)))
            log_det += log_slope
        y = (local - self.center.value) / self.unit.value
        z = self.structure.flat(params.gaussian.whiten(self.structure.by_block(y)))
        value = jnp.exp(-params.log_scale) * z - params.shift
        if self.curved is not None:
            blocks = self.curved.invert(self.structure.by_block(value))
            value, log_det = self.structure.flat(blocks), log_det + self.curved(blocks, self.structure.is_member)[1]
        return value, log_det

    def pull_back(
        self,
        params: Callable[[Float[Array, " c"]], ConditionalParameters],
        g: Float[Array, " c"],
        local: Float[Array, " n"],
        value: Float[Array, " n"],
        by_value: Float[Array, " n"],
    ) -> tuple[Float[Array, " c"], Float[Array, " n"]]:
        """Return the gradient of log q(l | g) with respect to g and to l.

        With value = W(g, l) the values of the shapes, log q(l | g) = log f(W(g, l)) - log |dl/dvalue|, and one
        vector-Jacobian product of W and the determinant gives its gradient in both g and l.

        Args:
            params: the parameters of the locals as a function of the globals.
            g: the globals.
            local: the locals.
            value: values of the shapes.
            by_value: gradient of log f with respect to them.
        """
        (_, log_det), pull = jax.vjp(lambda g, local: self.whiten(params(g), local), g, local)
        return pull((by_value, -jnp.ones_like(log_det)))

    def recipe(self) -> dict[str, Any]:
        """Describe the views and the bounded locals, which are not part of the structure."""
        return {"views": [view.to_json() for view in self.atoms.value.views], "bounded": list(self.bounded)}

    def _log_det(self, params: ConditionalParameters) -> Float[Array, ""]:
        return params.gaussian.log_det() + jnp.sum(params.log_scale) + jnp.sum(jnp.log(self.unit.value))


class StructuredBernsteinFlow(AbstractScoredFlow):
    """A `BernsteinFlow` of the globals, and locals that are Gaussian given them, transformed by Bernstein polynomials.

    Memory and time are linear in the number of locals. The noise is in the order of `Structure.order`, x in the order
    of the target. With `num_neighbors`, noise first depends on so many coordinates of earlier noise (`Bend`).
    """

    bend: Bend | None
    leaders: BernsteinFlow
    # A Conditional or a DenseConditional, whose parameters have different types.
    locals: Any
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
        views: tuple[View, ...] | None = None,
        bounded: tuple[int, ...] = (),
        num_neighbors: int = 0,
    ):
        leader_key, local_key = jax.random.split(key)
        self.dim = structure.dim
        self.structure = structure
        self.bend = Bend(structure.dim, num_neighbors) if num_neighbors else None
        self.leaders = BernsteinFlow(leader_key, TriangularAffine(loc, tril), order=order, width=width, noise=noise)
        sizes: dict[str, Any] = {"order": order, "width": width, "noise": noise}
        if is_one_dense_block(structure):
            self.locals = DenseConditional(local_key, structure, **sizes)
        else:
            views = plain_views(structure.num_leaders) if views is None else views
            self.locals = Conditional(local_key, structure, views, bounded, **sizes)

    @property
    def has_loops(self) -> bool:
        """Whether there is a chain, which is scanned, or a dense block, whose score needs a loop."""
        return self.structure.chained or isinstance(self.locals, DenseConditional)

    def sample_base(self, key: Key[Array, ""], num: int) -> Float[Array, "s p"]:
        """Draw base noise."""
        return NOISES[self.leaders.noise].sample(key, (num, self.dim))

    def base_log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density of the base noise."""
        return NOISES[self.leaders.noise].log_prob(z)

    def transform_and_log_det(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise to a parameter vector; return x and log |dx/dz|."""
        z, log_det_bend = (z, 0.0) if self.bend is None else self.bend(z)
        first, rest = self._split(z)
        g, log_det = self.leaders.transform_and_log_det(first)
        shape = self.locals.shape(rest)
        local, log_det_local = self.locals.color(self._parameters(g), shape.tailed.value)
        log_det = log_det_bend + log_det + jnp.sum(shape.log_slope()) + log_det_local
        return jnp.concatenate([g, local])[self.structure.places], log_det

    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise; return z and log |dz/dx|."""
        g, local = self._split(x[self.structure.order])
        z, _ = self.leaders.inverse_and_log_det(g)
        value, _ = self.locals.whiten(self._parameters(g), local)
        z = jnp.concatenate([z, self.locals.invert_shapes(value)])
        z = z if self.bend is None else self.bend.invert(z)
        return z, -self.transform_and_log_det(z)[1]

    def score(self, z: Float[Array, " p"]) -> Float[Array, " p"]:
        """Evaluate the gradient of log q with respect to x at x = T(z), exactly and without the inverse."""
        return self.transform_and_score(z)[2]

    def transform_and_score(
        self, z: Float[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " p"]]:
        """Return x = T(z), log |dx/dz| and the score at x; only x can be differentiated."""
        noise_score, log_det_bend = jax.grad(self.base_log_prob)(z), jnp.zeros(())
        if self.bend is not None:
            noise_score, (z, log_det_bend) = self.bend.pull_back(z, noise_score), stop_gradient(self.bend(z))
        first, rest = self._split(z)
        score_first, score_rest = self._split(noise_score)
        g, log_det, score_g = self.leaders.transform_and_score(first, score_first)
        shape, slopes, value = self.locals.shape_and_slopes(rest)
        local, log_det_local = self.locals.color(self._parameters(g), value)
        x = jnp.concatenate([g, local])[self.structure.places]
        log_slope = shape.log_slope()
        log_det = log_det_bend + log_det + jnp.sum(log_slope) + log_det_local

        g, local, value, log_slope = stop_gradient((g, local, value, log_slope))
        by_value = (score_rest - slopes.log_slope_by_z) * jnp.exp(-log_slope)
        fixed = constant(self)
        by_g, by_local = fixed.locals.pull_back(fixed._parameters, g, local, value, by_value)
        score = jnp.concatenate([score_g + by_g, by_local])
        return x, log_det, stop_gradient(score[self.structure.places])

    def features(self, x: Float[Array, " p"]) -> Float[Array, " f"]:
        """Return the functions of the globals in which shift and log scale of the locals' noise are linear."""
        g, _ = self._split(x[self.structure.order])
        return self.locals.drift.features(self._standardized(g))

    def recipe(self) -> dict[str, Any]:
        """Describe the structure and the coordinates of globals and locals, so that a saved flow can be rebuilt."""
        return {
            "kind": "bernstein-structured",
            "order": self.leaders.order,
            "noise": self.leaders.noise,
            "width": self.locals.drift.b1.shape[0],
            "num_neighbors": 0 if self.bend is None else self.bend.num_neighbors,
            **self.locals.recipe(),
            **self.structure.to_json(),
        }

    def _split(self, values: Float[Array, " p"]) -> tuple[Float[Array, " c"], Float[Array, " n"]]:
        return values[: self.structure.num_leaders], values[self.structure.num_leaders :]

    def _parameters(self, g: Float[Array, " c"]) -> Any:
        return self.locals.parameters(g, self._standardized(g))

    def _standardized(self, g: Float[Array, " c"]) -> Float[Array, " c"]:
        """Return the globals in units of the start."""
        outer: Any = self.leaders.outer  # triangular: see __init__
        return solve_triangular(stop_gradient(outer.start_tril), g - stop_gradient(outer.start_loc), lower=True)
