"""Where training starts: a Gaussian found by Newton paths from several points, chosen by its ELBO.

Like Pathfinder, every point on the way to a mode proposes the Gaussian of its local curvature, and the best ELBO
wins; unlike it, the curvature is the exact Hessian. A Laplace approximation at the mode is excellent for regressions
and useless for a funnel, whose mode is far from its mass: there a point on the way, or a unit scale, wins.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from bernflow.background import Effort, background_jit
from bernflow.flows.base import LOG_2PI
from bernflow.flows.factors import as_factor
from bernflow.placement import replicated
from bernflow.posterior import sampling
from bernflow.target import Target

MAX_ITERATIONS = 60
# Draws per point of a path: enough to reject a Gaussian that misses the mass. Half as many where each takes long: the
# more rows, the more nats are between a good Gaussian and a bad one.
NUM_DRAWS, NUM_DRAWS_MANY_ROWS = 16, 8
# At the point itself the density is looked at twice: an even number of points is dealt out to cores in equal parts.
NUM_CENTERS = 2
# Curvatures below this fraction of a dimension's own are rounding errors and taken for flat. Correlations of 1 - 1e-10
# are real (an intercept and the slope of calendar years); single precision cannot resolve them.
CURVATURE_FLOOR = {"float32": 1e-4, "float64": 1e-10}
# Below this fraction of the largest curvature a dimension is flat; units of 1e-5 and 1e5 make a fraction of 1e-20.
FLATTEST = 1e-22
SMALLEST_CURVATURE = 1e-12
# A path has arrived when a Newton step promises less than this many nats.
ARRIVED = 1e-8


class Gaussian(NamedTuple):
    """A Gaussian N(loc, F F^T) with its estimated ELBO; several of them have a leading axis.

    Its factor F is a triangular matrix or, in very many dimensions, a `LowRankFactor`.
    """

    loc: Float[Any, "*n p"]
    factor: Any
    elbo: Float[Any, "*n"]

    def at(self, which: Any) -> "Gaussian":
        """Return one of several, or some."""
        return jax.tree.map(lambda leaf: leaf[which], self)

    def color(self, z: Float[Any, "*s p"]) -> Float[Any, "*s p"]:
        """Map standard noise to draws."""
        return self.loc + as_factor(self.factor).color(z)

    def whiten(self, x: Float[np.ndarray, "*s p"]) -> Float[np.ndarray, "*s p"]:
        """Map points to the noise that they would be drawn with, on the host."""
        return as_factor(self.factor).whiten(x - self.loc)

    def log_det(self) -> float:
        """Return log |F|, on the host."""
        return float(as_factor(self.factor).log_det())


class Path(NamedTuple):
    """State of one Newton path; it is sound if density and gradient are finite where it began."""

    x: Float[Array, " p"]
    log_density: Float[Array, ""]
    damping: Float[Array, ""]
    arrived: Bool[Array, ""]
    sound: Bool[Array, ""]
    best: Gaussian

    def after_trial(
        self,
        trial: Float[Array, " p"],
        log_density: Float[Array, ""],
        usable: Bool[Array, ""],
        at_mode: Bool[Array, ""],
        sound: Bool[Array, ""],
        best: Gaussian,
    ) -> "Path":
        """Accept the step to a trial point if it increases the density; otherwise raise the damping."""
        uphill = usable & (log_density > self.log_density)
        move = uphill & ~self.arrived
        return Path(
            jnp.where(move, trial, self.x),
            jnp.where(move, log_density, self.log_density),
            jnp.where(uphill, self.damping / 8.0, 4.0 * self.damping + 1e-3),
            self.arrived | ~usable | at_mode | (self.damping > 1e12),
            self.sound | sound,
            best,
        )


@background_jit(Effort.LIGHT)
def find_start(target: Target, points: Float[Array, "k p"], key: Key[Array, ""]) -> Gaussian:
    """Return the Gaussian of highest ELBO seen on the paths from each point; leading axis: points, best first.

    The ELBO is NaN, which comes last, where density or gradient are not finite at the point.
    """
    rows = sampling.num_rows(target)
    num_draws = NUM_DRAWS if rows <= sampling.MANY_ROWS else NUM_DRAWS_MANY_ROWS
    z = jax.random.normal(key, (num_draws // 2, points.shape[1]), points.dtype)
    z = jnp.concatenate([z, -z])
    draws_at_once = sampling.draws_at_once(rows, NUM_CENTERS + num_draws)

    def follow(x: Float[Array, " p"]) -> Gaussian:
        path = walk(_begin(target, x, z, draws_at_once), lambda path: _advance(target, path, z, draws_at_once))
        return path.best._replace(elbo=jnp.where(path.sound, path.best.elbo, jnp.nan))

    # A CPU is as fast with one path after the other, each as long as it takes, and has less to compile.
    at_once = sampling.draws_at_once(rows * num_draws, len(points)) if jax.default_backend() != "cpu" else None
    found = jax.lax.map(follow, points, batch_size=at_once)
    ranking = jnp.argsort(-found.elbo)
    best = found.at(ranking)
    return replicated(best._replace(factor=jax.vmap(triangular)(best.factor)))


def walk(path: Path, advance: Callable[[Path], Path]) -> Path:
    """Follow a path step by step until it has arrived."""

    def unfinished(state):
        iteration, path = state
        return (iteration < MAX_ITERATIONS) & ~path.arrived

    def step(state):
        iteration, path = state
        return iteration + 1, advance(path)

    return jax.lax.while_loop(unfinished, step, (0, path))[1]


def _begin(target: Target, x: Float[Array, " p"], z: Float[Array, "s p"], at_once: int) -> Path:
    unit = jnp.eye(x.shape[0], dtype=x.dtype)
    log_density, elbo = _look(target, x, x, unit, jnp.zeros((), x.dtype), z, at_once)
    no = jnp.asarray(False)
    return Path(x, log_density, jnp.asarray(1e-3, x.dtype), no, no, Gaussian(x, unit, elbo))


def _advance(target: Target, path: Path, z: Float[Array, "s p"], at_once: int) -> Path:
    """Take one damped Newton step uphill and offer the local Gaussian as a start."""
    # Every mention of the density is traced and compiled anew: there are two of them.
    gradient, times_hessian = jax.linearize(jax.grad(target.log_density), path.x)
    precision = -jax.vmap(times_hessian)(jnp.eye(path.x.shape[0], dtype=path.x.dtype))
    # Unit diagonal before the eigendecomposition: parameters in wildly different units keep their small eigenvalues.
    diagonal = jnp.abs(jnp.diagonal(precision))
    unit = jax.lax.rsqrt(jnp.maximum(diagonal, FLATTEST * jnp.maximum(jnp.max(diagonal), SMALLEST_CURVATURE)))
    scaled = unit[:, None] * precision * unit[None, :]
    sound = jnp.isfinite(path.log_density) & jnp.all(jnp.isfinite(gradient))
    usable = jnp.all(jnp.isfinite(scaled)) & jnp.all(jnp.isfinite(gradient))
    values, vectors = jnp.linalg.eigh(jnp.where(usable, scaled, jnp.eye(path.x.shape[0], dtype=path.x.dtype)))
    # Absolute curvature turns saddle points into places to leave (saddle-free Newton).
    curvature = jnp.maximum(jnp.abs(values), CURVATURE_FLOOR[values.dtype.name])
    projected = vectors.T @ (unit * gradient)
    promised = 0.5 * jnp.sum(projected**2 / curvature)

    factor = unit[:, None] * vectors * jax.lax.rsqrt(curvature)
    log_det = jnp.sum(jnp.log(unit)) - 0.5 * jnp.sum(jnp.log(curvature))
    trial = path.x + unit * (vectors @ (projected / (curvature * (1.0 + path.damping))))
    log_density, elbo = _look(target, trial, path.x, factor, log_det, z, at_once)
    better = usable & (elbo > path.best.elbo)
    offer = Gaussian(path.x, factor, elbo)
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), offer, path.best)
    at_mode = (promised < ARRIVED) & jnp.all(values > 0)
    return path.after_trial(trial, log_density, usable, at_mode, sound, best)


def _look(target, x, loc, factor, log_det, z, at_once):
    """Return the log density at x, and the ELBO of a Gaussian."""
    points = jnp.concatenate([jnp.tile(x, (NUM_CENTERS, 1)), loc + z @ factor.T])
    log_p = jax.lax.map(target.log_density, points, batch_size=at_once)
    entropy = log_det + 0.5 * loc.shape[0] * (1.0 + LOG_2PI)
    elbo = jnp.mean(log_p[NUM_CENTERS:]) + entropy
    return log_p[0], jnp.where(jnp.isfinite(elbo), elbo, -jnp.inf)


def triangular(factor: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Return the lower triangular L with L L^T = factor factor^T, without squaring the condition number."""
    upper = jnp.linalg.qr(factor.T, mode="r")
    signs = jnp.where(jnp.diagonal(upper) < 0, -1.0, 1.0)
    return (signs[:, None] * upper).T
