"""One fit of one target by one method: the task that most experiments are made of."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import bernflow as bf
from benchmarks.families import fit_options
from benchmarks.study.methods import METHODS
from benchmarks.study.plan import Result, Task
from benchmarks.study.weights import largest_share
from benchmarks.targets import BENCHMARKS
from bernflow import Posterior
from bernflow.diagnostics import psis

# Draws for the evaluation must be none of those that the fit has seen: its keys are small integers.
EVALUATION_KEY = 10_000
NUM_BOOTSTRAP = 100
FUNCTION, SAVE = f"{__name__}:fit_once", f"{__name__}:fit_and_save"


def fit_task(target: str, method: str, key: int, *, num_draws: int, num_kept: int = 0, **settings: Any) -> Task:
    """Describe a fit; `settings` go to `bernflow.fit` on top of the method's own."""
    arguments = {"target": target, "method": method, "key": key, "num_draws": num_draws, "num_kept": num_kept}
    return Task(FUNCTION, {**arguments, **settings})


def fit_once(target: str, method: str, key: int, num_draws: int, num_kept: int, **settings: Any) -> Result:
    """Fit a target once and judge the fit with fresh draws.

    Args:
        target: name in `BENCHMARKS`.
        method: name in `METHODS`.
        key: seed of the fit.
        num_draws: draws behind ELBO, KL, k-hat and ESS.
        num_kept: draws of the parameters to keep for figures.
        **settings: told to `bernflow.fit` on top of the method's own.

    Returns:
        elbo, elbo_se, largest_share, kl (None without a known evidence; its error is that of the ELBO), khat,
        khat_variance (bootstrap of the draws), ess_fraction, seconds, steps, gradients, verdict, the history, and one
        array "draws/NAME" per parameter.
    """
    posterior = fit_posterior(target, method, key, **settings)
    log_weights = posterior.log_weights(num_draws, EVALUATION_KEY + key)
    kept = posterior.draws(num_kept, key=EVALUATION_KEY + key) if num_kept else {}
    return {
        **score(log_weights, BENCHMARKS[target].log_evidence, key),
        "seconds": posterior.settings["wall_seconds"],
        "steps": posterior.settings["steps"],
        "gradients": posterior.settings["training_gradients"],
        "verdict": posterior.diagnostics.verdict,
        **{f"history/{name}": np.asarray(values) for name, values in posterior.history.items()},
        **{f"draws/{name}": np.asarray(values, np.float32) for name, values in kept.items()},
    }


def fit_posterior(target: str, method: str, key: int, **settings: Any) -> Posterior:
    """Fit a target by a method; where no number of steps is given, until the ELBO stops improving."""
    benchmark, options = BENCHMARKS[target], fit_options({**METHODS[method].settings, **settings})
    family = options.get("family")
    if options.get("steps") is None and not (family is not None and family.paper_recipe):
        options = {"tolerance": 0, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a poor fit is a result here, and the tables say so
        posterior = bf.fit(benchmark.model, *benchmark.args, key=key, progress=False, **options)
    if posterior.settings["interrupted"]:
        raise KeyboardInterrupt  # half a fit is no result to keep
    return posterior


def fit_and_save(target: str, order: int, **settings: Any) -> Result:
    """Fit a target by bernflow's default and return the saved posterior as bytes."""
    posterior = fit_posterior(target, "bernflow", 0, order=order, **settings)
    with tempfile.TemporaryDirectory() as folder:
        content = posterior.save(Path(folder) / "posterior.bf").read_bytes()
    return {"saved": np.frombuffer(content, np.uint8)}


def draws_of(result: Result) -> dict[str, np.ndarray]:
    """Return the kept draws of a result by name."""
    return {name.partition("/")[2]: value for name, value in result.items() if name.startswith("draws/")}


def score(log_weights: np.ndarray, log_evidence: float | None, seed: int) -> Result:
    """Judge a fit by the log weights log p - log q of its own draws."""
    bad = np.isnan(log_weights) | (log_weights == np.inf)
    log_weights = np.where(bad, -np.inf, np.asarray(log_weights, np.float64))
    with np.errstate(invalid="ignore"):
        elbo = float(np.mean(log_weights))
        elbo_se = float(np.std(log_weights, ddof=1) / np.sqrt(log_weights.size))
        weights = np.exp(log_weights - np.max(log_weights))
    rng = np.random.default_rng(seed)
    shapes = [khat(rng.choice(log_weights, log_weights.size)) for _ in range(NUM_BOOTSTRAP)]
    return {
        "elbo": elbo,
        "elbo_se": elbo_se,
        "largest_share": largest_share(log_weights),
        "kl": None if log_evidence is None else log_evidence - elbo,
        "khat": khat(log_weights),
        "khat_variance": float(np.var(shapes, ddof=1)) if np.all(np.isfinite(shapes)) else float("nan"),
        "ess_fraction": float(np.mean(weights) ** 2 / np.mean(weights**2)),
    }


def khat(log_weights: np.ndarray) -> float:
    """Estimate the Pareto shape of the importance weights."""
    return psis(log_weights)[1]
