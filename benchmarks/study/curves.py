"""Fits with one parameter: their density on a grid, and their distance to the posterior by quadrature."""

from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import beta

from benchmarks import data
from benchmarks.study.fits import fit_posterior
from benchmarks.study.plan import Result, Task
from benchmarks.targets import BENCHMARKS

FUNCTION = f"{__name__}:fit_curve"
NUM_GRID = 4001


def curve_task(target: str, method: str, key: int, **settings: Any) -> Task:
    """Describe a fit with one parameter."""
    return Task(FUNCTION, {"target": target, "method": method, "key": key, **settings})


def fit_curve(target: str, method: str, key: int, **settings: Any) -> Result:
    """Fit a one-dimensional target once.

    Returns:
        kl by quadrature (no Monte Carlo error), mass of q inside of the grid, density of q there, and the history.
    """
    posterior = fit_posterior(target, method, key, **settings)
    theta, widths, log_p = exact_posterior(target)
    (name,) = posterior.names
    log_q = np.asarray(posterior.log_prob({name: theta}))
    q = np.exp(log_q)
    contributions = np.where(q > 0.0, q * (np.where(q > 0.0, log_q, 0.0) - log_p), 0.0)
    return {
        "kl": float(np.sum(widths * contributions)),
        "mass": float(np.sum(widths * q)),
        "seconds": posterior.settings["wall_seconds"],
        "steps": posterior.settings["steps"],
        "density": np.asarray(q, np.float32),
        **{f"history/{name}": np.asarray(values) for name, values in posterior.history.items()},
    }


def exact_posterior(target: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a grid on the parameter's own scale, the width of its cells, and the normalized log posterior there."""
    if target == "bernoulli":
        # Even in the logit: the grid is finest at the ends of (0, 1), where the density changes fastest.
        logit, step = np.linspace(-36.0, 36.0, NUM_GRID, retstep=True)
        p = expit(logit)
        successes, num = float(np.sum(data.load_bernoulli())), len(data.load_bernoulli())
        return p, step * p * expit(-logit), beta.logpdf(p, 1.1 + successes, 1.1 + num - successes)
    xi, step = np.linspace(-12.0, 12.0, NUM_GRID, retstep=True)
    y, scale = data.load_cauchy()
    log_joint = -0.5 * xi**2 - 0.5 * np.log(2.0 * np.pi)
    log_joint += np.sum(-np.log(np.pi * scale * (1.0 + ((y[:, None] - xi) / scale) ** 2)), 0)
    evidence = BENCHMARKS["cauchy"].log_evidence
    assert evidence is not None
    return xi, np.full(NUM_GRID, step), log_joint - evidence
