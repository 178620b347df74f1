"""How the posterior falls far from a fit: a posterior that does not is not proper.

Let x = T(z) map noise to parameters, and let z_j be fixed to t while the other coordinates of z are drawn from the
noise. Then p(T(z)) |dT/dz| / f(z_others) estimates without bias the density of z_j at t under the posterior, whatever T
is. Such estimates may well be too small, where T does not follow the posterior, but are rarely far too large (Markov's
inequality): a ray may be missed, but heavy tails that are proper are no false alarm. T is the flow itself, which
follows funnels, and the affine map with the mean and covariance of the draws, which no flow can bend. Besides the axes
of z there is one ray of all directions at once, whose volume grows with the radius.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Key
from threadpoolctl import threadpool_limits

from bernflow.diagnostics.properness import LOWEST_PLATEAU, NUM_LAST_STEPS, NUM_STEPS, endless_until
from bernflow.fit.checks.evidence import Endless, Evidence, Subject
from bernflow.fit.checks.flat import ridge
from bernflow.fit.modes import COVERED
from bernflow.fit.start import Gaussian
from bernflow.flows.base import LOG_2PI, AbstractDistribution, AbstractFlow
from bernflow.flows.factors import as_factor, is_dense, unit_factor
from bernflow.flows.mixture import Mixture
from bernflow.keys import generator
from bernflow.posterior import sampling
from bernflow.target import Target

# Radii in units of the noise: 4 to 2e7.
RADII = 4.0 * 3.0 ** np.arange(15)
LOG_RADII = np.log(RADII)
# Bundle are followed further from the radii of the first group only where something is left of the mass: densities such
# as the solution of a differential equation may take for ever far away.
NUM_NEAR = 2
NUM_NOISE = 4
# In more dimensions so many of the axes, evenly spread, are looked at.
MAX_AXES = 300
# In very many dimensions as many as have so many coordinates together, and no fewer than these.
MAX_NUMBERS, MIN_AXES = 150_000, 8
# There, so many draws tell where the fit is; in others ten for each dimension must be there.
MIN_CORE_WIDE = 200
# Draws that tell where the fit is and how wide: medians of all of them would take as long as all rays.
NUM_CORE = 4000
MIN_QR_ROWS = 100
# With fewer draws at which there is a density, the fit has run away.
MIN_USABLE = 0.99
# Standard deviation of a normal distribution per median distance from its center.
NORMAL_SD_PER_MEDIAN = 1.4826
# Where a step of the radius moves no parameter by so many standard deviations, the flow is flat, and not the density.
LEAST_MOVE = 0.1
# Parameters of a ray that are named in the verdict.
MAX_NAMES = 4


class Rays:
    """Does the density decay along straight rays out of the fit?"""

    def applies(self, subject: Subject, evidence: Evidence) -> bool:
        """Always."""
        return True

    def run(self, subject: Subject, evidence: Evidence) -> Evidence:
        """Follow the density along rays."""
        endless = find_endless(
            subject.distribution,
            subject.target,
            subject.draws,
            subject.log_weights,
            subject.ray_key,
            None if subject.probes is None else subject.probes.at(0),
            ran_away=evidence.lost is not None,
            mass_ends=evidence.mass_ends,
        )
        return evidence.replace(endless=endless)


class Bundle(NamedTuple):
    """Bundle z = rest + t step; each is a sum over several of them.

    Attributes:
        rest: coordinates that stay, (rays, noise, p).
        step: direction, (rays, noise, p).
        power: M(t) is t^power times the mean density, (rays,).
        log_factor: log of a constant that belongs to M, (rays,).
    """

    rest: Float[np.ndarray, "r s p"]
    step: Float[np.ndarray, "r s p"]
    power: Float[np.ndarray, " r"]
    log_factor: Float[np.ndarray, " r"]

    def at(self, chosen: np.ndarray) -> "Bundle":
        """Return some of the rays."""
        return Bundle(*(field[chosen] for field in self))


# Maps noise z and the resting part of it to x and log |dx/dz| - log f(rest).
Push = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@np.errstate(all="ignore")  # far away everything overflows
@threadpool_limits.wrap(limits=1, user_api="blas")
def find_endless(
    distribution: AbstractDistribution,
    target: Target,
    draws: Float[np.ndarray, "s p"],
    log_weights: Float[np.ndarray, " s"],
    key: Key[Array, ""],
    start: Gaussian | None = None,
    ran_away: bool = False,
    mass_ends: bool = False,
) -> Endless | None:
    """Return the parameters along which the density does not fall; None where it falls everywhere that was looked.

    Args:
        distribution: the fit.
        target: the posterior.
        draws: draws of the fit.
        log_weights: log p - log q at these draws, and maybe at others after them.
        key: makes the noise.
        start: the Gaussian that the fit began with. It comes from exact second derivatives, so that its rays stay on a
            ridge for longer.
        ran_away: whether the fit is known to be where numbers are no longer resolved.
        mass_ends: whether mass was found farther out than the fit that comes to an end there. It rises along rays, too.
    """
    core, log_evidence, share = bulk_of(draws, log_weights)
    reach, furthest = np.zeros(target.dim), 0.0
    ran_away |= share < MIN_USABLE
    for noise, push, is_of_fit, stretch in _maps(distribution, core, ran_away, start, key):
        rays = _make_rays(noise, stretch)
        whole = distribution if is_of_fit and isinstance(distribution, Mixture) else None
        until = _until(push, rays, target, log_evidence if is_of_fit else None, whole, mass_ends)
        flat = [i for i in map(int, np.flatnonzero(until)) if is_of_fit and _is_flat(push, rays, i, until[i], core)]
        until[flat] = 0.0
        furthest = max(furthest, float(np.max(until)))
        # The last ray moves all parameters, so that it names them only where no axis does.
        for ray in np.flatnonzero(until[:-1]) if until[:-1].any() else np.flatnonzero(until):
            reach = np.maximum(reach, _reach(push, rays, int(ray), core))
    lost = ridge(target, core) if furthest == 0.0 and len(core) else None
    if lost is not None:
        push = _axes(*lost)
        rays, until = _along_ridge(push, target, log_evidence, key)
        furthest = float(np.max(until[:-1]))  # the last ray moves all parameters
        for ray in np.flatnonzero(until[:-1]):
            reach = np.maximum(reach, _reach(push, rays, int(ray), core))
    return Endless(names_of(target.layout.labels(), reach), furthest) if furthest > 0.0 else None


def bulk_of(
    draws: Float[np.ndarray, "s p"], log_weights: Float[np.ndarray, " s"]
) -> tuple[Float[np.ndarray, "n p"], float, float]:
    """Return the draws that tell where a fit is, the log of its mass, and the share of draws with a density."""
    log_weights = log_weights[: len(draws)]
    usable = np.isfinite(draws).all(1) & np.isfinite(log_weights)
    core = _core(draws[usable])
    log_evidence = np.logaddexp.reduce(log_weights[usable]) - np.log(len(log_weights)) if len(core) else 0.0
    return core, float(log_evidence), float(np.mean(usable))


def _along_ridge(
    axes: Push, target: Target, log_evidence: float, key: Key[Array, ""]
) -> tuple[Bundle, Float[np.ndarray, " r"]]:
    """Follow the axes of the curvature on a very long ridge; return rays and how far they go."""
    noise = generator(key).standard_normal((NUM_NOISE, target.dim))
    rays = _make_rays(noise, np.ones(target.dim))
    # The unit is narrower than the fit: only what has not fallen at the end says something.
    last = slice(-NUM_STEPS - 1, None)
    log_mass = _log_mass(axes, rays, RADII[last], target)
    return rays, np.array([endless_until(row, LOG_RADII[last], log_evidence) or 0.0 for row in log_mass])


def _maps(
    distribution: AbstractDistribution,
    core: Float[np.ndarray, "s p"],
    ran_away: bool,
    start: Gaussian | None,
    key: Key[Array, ""],
) -> Iterator[tuple[Float[np.ndarray, "s p"], Push, bool, Float[np.ndarray, " p"]]]:
    """Yield maps from noise to parameters.

    With each come some of its noise, whether it has to do with the fit, and the noise that reaches as far as the draws.
    """
    ones = np.ones(distribution.dim)
    noise = generator(key).standard_normal((NUM_NOISE, distribution.dim))
    if ran_away:  # to where there is no density; where the paths of the start began, there was one
        origin = Gaussian(np.zeros(distribution.dim), unit_factor(distribution.dim), np.zeros(()))
        yield noise, _affine(origin), False, ones
    if not len(core):
        return
    if is_dense(distribution.dim):  # otherwise there are fewer draws than it takes to estimate a covariance
        yield noise, _affine(Gaussian(np.mean(core, 0), _factor(core), np.zeros(()))), True, ones
    if start is not None:
        yield noise, _affine(start), True, _stretch(start, core)
    if isinstance(distribution, Mixture):
        distribution = distribution.components[int(np.argmax(distribution.log_weights))]
    if isinstance(distribution, AbstractFlow):
        push = functools.partial(sampling.push, distribution)
        yield np.asarray(sampling.noise_block(distribution, key))[:NUM_NOISE], push, True, ones


def _make_rays(noise: Float[np.ndarray, "s p"], stretch: Float[np.ndarray, " p"]) -> Bundle:
    """Return both directions along every axis, whose unit is `stretch`, and one ray in all directions."""
    num, dim = noise.shape
    num_axes = MAX_AXES if is_dense(dim) else max(MIN_AXES, MAX_NUMBERS // dim)
    axes = np.unique(np.linspace(0, dim - 1, min(dim, num_axes)).astype(int))
    moved = np.zeros((2 * len(axes), 1, dim))
    moved[np.arange(2 * len(axes)), 0, np.repeat(axes, 2)] = np.tile([1.0, -1.0], len(axes))
    step = np.broadcast_to(moved * stretch, (len(moved), num, dim))
    rest = np.where(step == 0.0, noise, 0.0)
    longest = float(np.max(stretch))
    sphere = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    log_area = math.log(2.0) + 0.5 * dim * math.log(math.pi) - math.lgamma(0.5 * dim)
    # f at the resting coordinates alone: what f(rest) counts for those at zero is taken out again, as if all noise were
    # normal; a constant does not matter here.
    at_zero = -0.5 * LOG_2PI
    return Bundle(
        np.concatenate([rest, np.zeros((1, num, dim))]),
        np.concatenate([step, longest * sphere[None]]),
        np.append(np.ones(len(step)), float(dim)),
        np.append(at_zero + np.repeat(np.log(stretch[axes]), 2), log_area + dim * (at_zero + math.log(longest))),
    )


def _until(
    push: Push,
    rays: Bundle,
    target: Target,
    log_evidence: float | None,
    whole: Mixture | None = None,
    mass_ends: bool = False,
) -> Float[np.ndarray, " r"]:
    """Return up to which radius the mass along every ray does not fall; 0 where it comes to an end."""
    near = _log_mass(push, rays, RADII[:NUM_NEAR], target)
    # A density that does not fall gains what its radius gains.
    allowance = LOWEST_PLATEAU - (LOG_RADII[-1] - LOG_RADII[NUM_NEAR - 1])
    alive = np.flatnonzero(near[:, -1] > (-np.inf if log_evidence is None else log_evidence + allowance))
    until = np.zeros(len(near))
    if alive.size:
        far = _log_mass(push, rays.at(alive), RADII[NUM_NEAR:], target)
        mass = np.concatenate([near[alive], far], axis=1)
        until[alive] = [endless_until(row, LOG_RADII, log_evidence, mass_ends) or 0.0 for row in mass]
    doubtful = np.flatnonzero(until)
    if whole is not None and log_evidence is not None and doubtful.size:
        # From one component to a wider one the mass rises, too: what the mixture covers is no news but at the far end.
        for covered_by, at_end in (((whole, log_evidence), mass_ends), (None, True)):
            mass = _log_mass(push, rays.at(doubtful), RADII, target, covered_by)
            until[doubtful] = [endless_until(row, LOG_RADII, log_evidence, at_end) or 0.0 for row in mass]
            doubtful = doubtful[until[doubtful] == 0.0]
            if not doubtful.size:
                break
    return until


def _is_flat(push: Push, rays: Bundle, ray: int, until: float, core: Float[np.ndarray, "s p"]) -> bool:
    """Tell whether no parameter moves on the last steps of a ray up to a radius.

    A flow whose slope ends near zero maps very different noise to the same parameters, so that any density stays.
    """
    last = int(np.argmin(np.abs(RADII - until)))
    radii = RADII[max(0, last - NUM_LAST_STEPS) : last + 1]
    points = [push(rays.rest[ray] + t * rays.step[ray], rays.rest[ray])[0] for t in radii]
    moved = np.abs(np.diff(points, axis=0)) / np.maximum(np.std(core, 0), np.finfo(float).tiny)
    # What overflows has moved.
    moved = np.nan_to_num(moved, nan=np.inf, posinf=np.inf)
    return bool(np.min(np.max(np.mean(moved, 1), -1)) < LEAST_MOVE)


def _log_mass(
    push: Push, rays: Bundle, radii: np.ndarray, target: Target, covered_by: tuple[Mixture, float] | None = None
) -> Float[np.ndarray, "r k"]:
    """Estimate log M at radii; -inf where no density is there, or where a fit with this log evidence covers it."""
    z = rays.rest[:, None] + radii[:, None, None] * rays.step[:, None]
    rest = np.broadcast_to(rays.rest[:, None], z.shape)
    dim = target.dim
    x, log_ratio = push(z.reshape(-1, dim), rest.reshape(-1, dim))
    usable = np.isfinite(x).all(1) & np.isfinite(log_ratio)
    # Models of other software do not like infinite parameters.
    log_p = sampling.log_density(target.layout, target.model, np.where(usable[:, None], x, 0.0))
    usable &= np.isfinite(log_p)
    if covered_by is not None:
        whole, log_evidence = covered_by
        usable &= sampling.log_q(whole, np.where(usable[:, None], x, 0.0)) < log_p - log_evidence + math.log(COVERED)
    value = np.where(usable, np.where(usable, log_p, 0.0) + np.where(usable, log_ratio, 0.0), -np.inf)
    mean = np.logaddexp.reduce(value.reshape(z.shape[:-1]), axis=-1) - np.log(z.shape[-2])
    return mean + rays.power[:, None] * np.log(radii) + rays.log_factor[:, None]


def _core(draws: Float[np.ndarray, "s p"]) -> Float[np.ndarray, "s p"]:
    """Return the inner half of the draws, spread to the scale of all of them.

    The fit of a posterior that is not proper may have draws anywhere; medians do not mind.
    """
    dim = draws.shape[1]
    if len(draws) < (10 * (dim + 1) if is_dense(dim) else MIN_CORE_WIDE):
        return draws[:0]
    draws = draws[: max(NUM_CORE, 20 * (dim + 1)) if is_dense(dim) else MIN_CORE_WIDE]
    center = np.median(draws, 0)
    distance = np.abs(draws - center)
    rounding = np.finfo(float).eps * np.abs(center) + np.finfo(float).tiny
    scale = np.maximum(NORMAL_SD_PER_MEDIAN * np.median(distance, 0), rounding)
    farthest = np.max(distance / scale, 1)
    inner = draws[farthest <= np.median(farthest)] - center
    return center + inner * scale / np.maximum(np.std(inner, 0), rounding)


def _factor(draws: Float[np.ndarray, "s p"]) -> Float[np.ndarray, "p p"]:
    """Return the triangular factor of the covariance of draws."""
    center = np.mean(draws, 0)
    scale = np.maximum(np.std(draws, 0), np.finfo(float).tiny)
    # By a QR decomposition of the draws: their covariance would square the condition number.
    return scale[:, None] * _upper((draws - center) / scale).T / math.sqrt(len(draws))


def _upper(matrix: Float[np.ndarray, "s p"]) -> Float[np.ndarray, "p p"]:
    """Return R of a QR decomposition of many rows, from those of a few rows each.

    BLAS shares out a large matrix to threads, which on a busy machine wait for each other a thousand times longer than
    they compute.
    """
    num, dim = matrix.shape
    rows = max(MIN_QR_ROWS, 2 * dim)
    parts = np.zeros((math.ceil(num / rows), rows, dim))
    parts.reshape(-1, dim)[:num] = matrix
    triangles = np.asarray(np.linalg.qr(parts, mode="r"))
    return np.asarray(np.linalg.qr(triangles.reshape(-1, dim), mode="r"))


def _stretch(start: Gaussian, core: Float[np.ndarray, "s p"]) -> Float[np.ndarray, " p"]:
    """Return how far to go along each column of a factor to where the draws end; at least 1."""
    scale = np.maximum(np.std(core, 0), np.finfo(float).tiny)
    reach = as_factor(start.factor).reach(scale)
    return np.maximum(1.0, 1.0 / np.maximum(reach, np.finfo(float).tiny))


def _affine(gaussian: Gaussian) -> Push:
    """Return the map from noise to draws of a Gaussian."""
    log_det = max(gaussian.log_det(), np.finfo(float).min)  # of what has no width

    def push(z: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return gaussian.color(z), log_det + 0.5 * np.sum(rest**2 + LOG_2PI, -1)

    return push


def _axes(center: Float[np.ndarray, " p"], factor: Float[np.ndarray, "p p"]) -> Push:
    """Return the map from noise to points along the columns of a matrix."""
    log_det = float(np.linalg.slogdet(factor)[1])

    def push(z: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return center + z @ factor.T, log_det + 0.5 * np.sum(rest**2 + LOG_2PI, -1)

    return push


def _reach(push: Push, rays: Bundle, ray: int, draws: Float[np.ndarray, "s p"]) -> Float[np.ndarray, " p"]:
    """Return by how much a ray moves every parameter, in standard deviations of the draws, the most being 1."""
    rest, step = rays.rest[ray], rays.step[ray]
    near, far = (push(rest + t * step, rest)[0] for t in (0.0, RADII[0]))
    scale = np.maximum(np.std(draws, 0), np.finfo(float).tiny) if len(draws) else 1.0
    # What overflows has moved.
    moved = np.nan_to_num(np.mean(np.abs(far - near), 0) / scale, nan=np.finfo(float).max)
    return moved / max(float(np.max(moved)), np.finfo(float).tiny)


def names_of(labels: list[str], reach: Float[np.ndarray, " p"]) -> str:
    """Return the names of the parameters that a ray moves most."""
    chosen = [label for label, far in zip(labels, reach, strict=True) if far > 0.5]
    return ", ".join(chosen[:MAX_NAMES]) + (f" and {len(chosen) - MAX_NAMES} more" if len(chosen) > MAX_NAMES else "")
