"""Scales whose posterior does not fall, for poor fits of few parameters.

Straight rays out of a fit (`fit.rays`) leave a ridge whose width changes by orders of magnitude: the means of groups
close around each other as their scale goes to zero. Here the log of a scale is moved, and Newton steps carry the other
coordinates to their conditional mode. The Gaussian of the curvature there proposes a few values of them, whose
importance weights estimate the marginal density of the scale without bias. That takes second derivatives and a
compilation: it is done only where a fit is poor anyway.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from bernflow.compiled import filter_jit
from bernflow.diagnostics.properness import endless_until
from bernflow.fit.checks.evidence import Endless, Evidence, Subject
from bernflow.fit.checks.rays import bulk_of, names_of
from bernflow.flows.base import LOG_2PI
from bernflow.keys import generator
from bernflow.posterior.sampling import num_rows
from bernflow.target import Target

# Distances on the log scale: 3 to 400, in both directions. A scale of exp(-12) beside data of order one is as far as
# second derivatives in double precision can be followed.
RADII = 3.0 * 1.4 ** np.arange(15)
NUM_NEWTON_STEPS = 6
STEP_SIZES = (1.0, 0.25, 0.05, 0.0)
NUM_NOISE = 8
# After fewer steps a poor fit needs no other explanation.
MIN_STEPS = 1000
# Under a time limit, the least seconds for that explanation: most of them are spent compiling.
SECONDS = 6.0
# A scale whose logs spread over so many units, nine orders of magnitude, is followed at any verdict.
WIDE_LOG_SCALE = 20.0
# Up to so many dimensions, and so many rows of data times second derivatives.
MAX_DIM = 16
MAX_WORK = 2**28


class CurvedRays:
    """Does the density of a scale decay if the other parameters follow it?"""

    def applies(self, subject: Subject, evidence: Evidence) -> bool:
        """Poor fits, very wide scales and thorough checks, unless a straight ray has the answer."""
        if evidence.endless is not None or not subject.deadline.allows_stage(SECONDS):
            return False
        if subject.settings.checks.thorough or _has_wide_scales(subject):
            return True
        return subject.steps >= MIN_STEPS and subject.judge(evidence).verdict == "poor"

    def run(self, subject: Subject, evidence: Evidence) -> Evidence:
        """Follow the scales."""
        core, log_evidence, _ = bulk_of(subject.draws, subject.log_weights)
        if not len(core):
            return evidence
        until = endless_scales(subject.target, np.median(core, 0), log_evidence, subject.ray_key)
        if not until.any():
            return evidence
        reach = np.zeros(subject.target.dim)
        reach[: len(until)] = until > 0.0
        return evidence.replace(endless=Endless(names_of(subject.target.layout.labels(), reach), float(np.max(until))))


def _has_wide_scales(subject: Subject) -> bool:
    """Tell whether a scale is spread over so many orders of magnitude that its posterior may never end."""
    logs = subject.draws[:, : subject.target.layout.num_scales]
    if not logs.size:
        return False
    low, high = np.nanquantile(logs, (0.05, 0.95), axis=0)
    return bool(np.any(high - low > WIDE_LOG_SCALE))


def is_cheap(target: Target) -> bool:
    """Tell whether the second derivatives along all ridges can be had in seconds."""
    num_points = 2 * target.layout.num_scales * len(RADII) * (NUM_NEWTON_STEPS + 1)
    return target.dim <= MAX_DIM and num_points * target.dim * num_rows(target.model) <= MAX_WORK


def endless_scales(
    target: Target, center: Float[np.ndarray, " p"], log_evidence: float, key: Key[Array, ""]
) -> Float[np.ndarray, " n"]:
    """Return for every scale up to how far on its log scale the mass does not fall; 0 where it comes to an end."""
    num = target.layout.num_scales
    if num == 0 or not is_cheap(target):
        return np.zeros(num)
    axes = np.repeat(np.arange(num), 2)  # scales come first
    offsets = np.tile([1.0, -1.0], num)[:, None] * RADII
    noise = jnp.asarray(generator(key).standard_normal((NUM_NOISE, target.dim)))
    log_density = np.asarray(_follow(target, jnp.asarray(center), jnp.asarray(axes), jnp.asarray(offsets), noise))
    log_mass = np.where(np.isfinite(log_density), log_density, -np.inf) + np.log(RADII)
    until = [endless_until(row, np.log(RADII), log_evidence) or 0.0 for row in log_mass]
    return np.max(np.reshape(until, (num, 2)), axis=1)


@filter_jit
def _follow(
    target: Target,
    center: Float[Array, " p"],
    axes: Int[Array, " r"],
    offsets: Float[Array, "r k"],
    noise: Float[Array, "s p"],
) -> Float[Array, "r k"]:
    """Estimate the log marginal density of one coordinate at several values of it."""

    def ray(axis, offsets):
        def move(x, offset):
            x = x.at[axis].set(center[axis] + offset)
            x, _ = jax.lax.scan(lambda x, _: (_climb(target, x, axis), None), x, length=NUM_NEWTON_STEPS)
            return x, _log_marginal(target, x, axis, noise)

        return jax.lax.scan(move, center, offsets)[1]

    return jax.vmap(ray)(axes, offsets)


def _climb(target: Target, x: Float[Array, " p"], axis: Int[Array, ""]) -> Float[Array, " p"]:
    """Take one Newton step of all coordinates but one, as long as it leads uphill."""
    gradient = jax.grad(target.log_density)(x).at[axis].set(0.0)
    unit, curvature, vectors = _precision(target, x, axis)
    step = unit * (vectors @ ((vectors.T @ (unit * gradient)) / curvature))
    step = jnp.where(jnp.all(jnp.isfinite(step)), step, 0.0).at[axis].set(0.0)
    trials = x + jnp.asarray(STEP_SIZES, x.dtype)[:, None] * step
    return trials[jnp.argmax(jax.vmap(target.log_density)(trials))]


def _log_marginal(
    target: Target, x: Float[Array, " p"], axis: Int[Array, ""], noise: Float[Array, "s p"]
) -> Float[Array, ""]:
    """Integrate over all coordinates but one by importance sampling from the Gaussian of the curvature."""
    unit, curvature, vectors = _precision(target, x, axis)
    others = (unit * ((noise * jax.lax.rsqrt(curvature)) @ vectors.T)).at[:, axis].set(0.0)
    squares = jnp.sum(((others / unit) @ vectors) ** 2 * curvature, -1)
    log_det = 0.5 * jnp.sum(jnp.log(curvature)) - jnp.sum(jnp.log(unit))
    log_q = -0.5 * squares + log_det - 0.5 * (x.shape[0] - 1) * LOG_2PI
    return jax.nn.logsumexp(jax.vmap(target.log_density)(x + others) - log_q) - jnp.log(noise.shape[0])


def _precision(target: Target, x: Float[Array, " p"], axis: Int[Array, ""]) -> tuple[Array, Array, Array]:
    """Return the curvature of all coordinates but one: units, and eigenvalues and vectors in these units."""
    precision = -jax.hessian(target.log_density)(x)
    alone = jnp.arange(x.shape[0]) == axis
    precision = jnp.where(alone[:, None] | alone[None, :], 0.0, precision)
    diagonal = jnp.abs(jnp.diagonal(precision))
    unit = jnp.where(alone, 1.0, jax.lax.rsqrt(jnp.maximum(diagonal, jnp.finfo(x.dtype).tiny)))
    scaled = unit[:, None] * precision * unit[None, :] + jnp.diag(alone.astype(x.dtype))
    usable = jnp.all(jnp.isfinite(scaled))
    values, vectors = jnp.linalg.eigh(jnp.where(usable, scaled, jnp.eye(x.shape[0], dtype=x.dtype)))
    return unit, jnp.maximum(jnp.abs(values), jnp.finfo(x.dtype).eps), vectors
