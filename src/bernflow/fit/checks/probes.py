"""Mass that a fit misses, as far as the starts that were not taken tell.

A mode that no draw has reached leaves no trace in the weights of a fit. The Newton paths of the start end wherever
there is a mode near them, and the Gaussian that each has found is a probe: importance sampling tells how much mass
lies in its ellipsoid, and counting tells how many draws of the fit lie there. That needs no inverse of the flow.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.diagnostics.elsewhere import Found, nothing
from bernflow.fit.modes import distinct_places, radius
from bernflow.fit.start import Gaussian
from bernflow.flows.base import LOG_2PI
from bernflow.flows.factors import is_dense
from bernflow.keys import generator, nth
from bernflow.posterior import sampling
from bernflow.target import Target

NUM_DRAWS = 1000
# In very many dimensions as many as have so many coordinates together, and no fewer than these.
MAX_NUMBERS, MIN_DRAWS = 2_000_000, 100
# Probes that promise less than exp(-10) of the mass found so far are not looked at.
SMALLEST_PROMISE = -10.0
# A place is missed if the fit holds less than this share of the mass that it should.
COVERED = 0.1


def missed_modes(
    probes: Gaussian, target: Target, draws: Float[np.ndarray, "s p"], log_evidence: float, key: Key[Array, ""]
) -> tuple[Found, Gaussian | None]:
    """Estimate the posterior mass that lies around a probe and is not among the draws of a fit.

    Args:
        probes: Gaussians with their ELBO, the best first, leading axis: probes.
        target: the posterior.
        draws: draws of the fit.
        log_evidence: log of the mass that the fit has found.
        key: makes the draws of the probes.

    Returns:
        The mass, and the probes around which it lies.
    """
    missed: list[tuple[int, Gaussian, Found]] = []
    for count, i in enumerate(distinct_places(probes)):
        if not float(probes.elbo[i]) > log_evidence + SMALLEST_PROMISE:
            continue
        probe = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), probes.at(i))
        held = float(np.mean(_inside(probe, draws)))
        if held >= COVERED:  # whatever the share of the mass: it is at most 1
            continue
        found = _mass_inside(target, probe, log_evidence, nth(key, count))
        if held < COVERED * found.share:
            missed.append((i, probe, found))
    if not missed:
        return nothing(target.dim), None
    points = np.concatenate([found.points for _, _, found in missed])
    log_mass = np.concatenate([found.log_mass for _, _, found in missed])
    # What lies in several ellipsoids counts once.
    times = sum(_inside(probe, points).astype(float) for _, probe, _ in missed)
    return Found(points, log_mass - np.log(np.maximum(times, 1.0))), probes.at(np.array([i for i, _, _ in missed]))


def stack(gaussians: Sequence[Gaussian]) -> Gaussian:
    """Join several stacks of Gaussians, on the host."""
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *gaussians)


def ranked(gaussians: Gaussian) -> Gaussian:
    """Return the Gaussians of a stack by their ELBO, the highest first, without those that have none."""
    order = np.argsort(-np.nan_to_num(gaussians.elbo, nan=-np.inf), kind="stable")
    return gaussians.at(order[np.isfinite(gaussians.elbo[order])])


def _inside(probe: Gaussian, points: Float[np.ndarray, "s p"]) -> np.ndarray:
    """Tell which points lie in the ellipsoid of a Gaussian."""
    return np.sum(probe.whiten(points) ** 2, -1) < radius(len(probe.loc))


def _mass_inside(target: Target, probe: Gaussian, log_evidence: float, key: Key[Array, ""]) -> Found:
    """Estimate the posterior mass in the ellipsoid of a Gaussian by its draws."""
    dim = len(probe.loc)
    num = max(NUM_DRAWS if is_dense(dim) else MAX_NUMBERS // dim, MIN_DRAWS)
    z = generator(key).standard_normal((num, dim))
    log_g = -0.5 * np.sum(z**2 + LOG_2PI, -1) - probe.log_det()
    x = probe.color(z)
    log_p = sampling.log_density(target.layout, target.model, x)
    inside = (np.sum(z**2, -1) < radius(dim)) & np.isfinite(log_p)
    return Found(x[inside], (log_p - log_g)[inside] - np.log(num) - log_evidence)
