"""Mass that a fit misses, as far as the starts that were not taken tell.

A mode that no draw has reached leaves no trace in the weights of a fit. The Newton paths of the start end wherever
there is a mode near them, and the Gaussian that each has found is a probe: importance sampling tells how much mass
lies in its ellipsoid, and counting tells how many draws of the fit lie there. That needs no inverse of the flow.
"""

import jax
import numpy as np
from jaxtyping import Array, Float, Key

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


def mass_elsewhere(
    probes: Gaussian, target: Target, draws: Float[np.ndarray, "s p"], log_evidence: float, key: Key[Array, ""]
) -> float:
    """Estimate the share of the posterior mass that lies around a probe and is not among the draws of a fit.

    Args:
        probes: Gaussians with their ELBO, leading axis: probes.
        target: the posterior.
        draws: draws of the fit.
        log_evidence: log of the mass that the fit has found.
        key: makes the draws of the probes.
    """
    missed: list[float] = []
    for count, i in enumerate(distinct_places(probes)):
        if not float(probes.elbo[i]) > log_evidence + SMALLEST_PROMISE:
            continue
        probe = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), probes.at(i))
        held = float(np.mean(np.sum(probe.whiten(draws) ** 2, -1) < radius(len(probe.loc))))
        if held >= COVERED:  # whatever the share of the mass: it is at most 1
            continue
        log_mass = _log_mass_inside(target, probe, nth(key, count))
        if held < COVERED * np.exp(log_mass - np.logaddexp(log_evidence, log_mass)):
            missed.append(log_mass)
    total = np.logaddexp.reduce([log_evidence, *missed])
    return float(np.clip(np.sum(np.exp(np.array(missed) - total)), 0.0, 1.0))


def _log_mass_inside(target: Target, probe: Gaussian, key: Key[Array, ""]) -> float:
    """Estimate the log of the unnormalised posterior mass in the ellipsoid of a Gaussian by its draws."""
    dim = len(probe.loc)
    num = NUM_DRAWS if is_dense(dim) else MAX_NUMBERS // dim
    z = generator(key).standard_normal((max(num, MIN_DRAWS), dim))
    log_g = -0.5 * np.sum(z**2 + LOG_2PI, -1) - probe.log_det()
    log_p = sampling.log_density(target.layout, target.model, probe.color(z))
    inside = (np.sum(z**2, -1) < radius(dim)) & np.isfinite(log_p)
    return float(np.logaddexp.reduce((log_p - log_g)[inside], initial=-np.inf) - np.log(len(z)))
