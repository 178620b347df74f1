"""What a fit says of a model whose evidence and posterior are known.

With w(theta) = p(theta, y) / q(theta) the evidence is
Z = E_q[w], and the divergence of the fit from the posterior can be had from either side:

    KL(q || p) = log Z - E_q[log w]                  draws of the fit: the ELBO
               = E_q[W - 1 - log W],  W = w / Z      the same, of smaller variance, because E_q[W] = 1
               = E_p[r log r - r + 1], r = q / p     draws of the exact posterior, and log q at them through the inverse
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.exactness.answers import ExactModel


@dataclass(frozen=True)
class Exactness:
    """What a fit says of a model whose answers are known.

    Attributes:
        evidence_error: estimated less exact log evidence.
        evidence_se: the standard error that the fit states.
        kl: KL(q || p) by draws of the fit, with its standard error.
        kl_se: its standard error.
        kl_other: KL(q || p) by draws of the exact posterior.
        kl_other_se: its standard error.
    """

    evidence_error: float
    evidence_se: float
    kl: float
    kl_se: float
    kl_other: float
    kl_other_se: float

    @property
    def evidence_z(self) -> float:
        """Error of the evidence in units of its standard error."""
        return self.evidence_error / self.evidence_se

    @property
    def kl_z(self) -> float:
        """Difference of the two divergences in units of its standard error."""
        return (self.kl - self.kl_other) / float(np.hypot(self.kl_se, self.kl_other_se))


def examine(posterior: Any, exact: ExactModel, num: int = 20_000, seed: int = 0) -> Exactness:
    """Compare a fit with the answers; the formulae are in the module's documentation.

    Args:
        posterior: the fit of `exact.model` to `exact.args`.
        exact: the model with its answers.
        num: number of draws on either side.
        seed: seed of the draws.
    """
    log_w = posterior.log_weights(num, seed) - exact.log_evidence
    from_q = np.expm1(log_w) - log_w
    theta = exact.draws(np.random.default_rng(seed), num)
    with jax.enable_x64(True):
        log_p = np.asarray(jax.vmap(posterior.model.log_density)(jax.tree.map(jnp.asarray, theta)))
    log_r = posterior.log_prob(theta) - (log_p - exact.log_evidence)
    from_p = np.exp(log_r) * log_r - np.expm1(log_r)
    found = posterior.diagnostics
    return Exactness(
        found.log_evidence - exact.log_evidence,
        found.log_evidence_se,
        *(float(f(v)) for v in (from_q, from_p) for f in (np.mean, lambda v: np.std(v) / np.sqrt(num))),
    )
