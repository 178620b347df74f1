"""The methods of the suite; each fits one model cold and, where that is cheap, once more warm."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

import bernflow as bf
from benchmarks.models.chains import NUM_CHAINS, PARALLEL, VECTORIZED, Sampler
from benchmarks.models.entry import Entry
from benchmarks.models.moments import Moments, convergence_of, moments, unconstrain
from bernflow.diagnostics.chains import judge_chains
from bernflow.precision import resolve_precision, use_precision

OURS, GAUSSIAN, EXACT = "bernflow", "gaussian-fullrank", "bernflow-to-nuts"
NUTS = {"nuts-vectorized": VECTORIZED, "nuts-parallel": PARALLEL}

# Draws behind the moments of a fit; none of them is one that the fit has seen: keys of fits are small integers.
NUM_DRAWS, EVALUATION_SEED = 10_000, 10_000
FIGURES = ("khat", "ess_fraction", "elbo", "elbo_se", "log_evidence", "log_evidence_se", "verdict", "status")

Settings = Mapping[str, Any]
Measured = tuple[dict[str, Any], Moments]


@dataclass(frozen=True)
class Method:
    """One way to approximate a posterior.

    Attributes:
        name: how the command line calls it.
        label: how tables call it.
        measure: fits a model with the settings; returns its figures, and the moments on the unconstrained scale.
        settings: what it is told.
        by_default: whether it is run where no methods are named.
    """

    name: str
    label: str
    measure: Callable[[Entry, Settings], Measured]
    settings: Settings = field(default_factory=dict)
    by_default: bool = True


def measure_ours(entry: Entry, settings: Settings) -> Measured:
    """Fit with `bf.fit`; the second fit has another key and uses what the first has compiled."""
    options = {name: value for name, value in settings.items() if name != "warm_limit"}
    args = entry.args
    cpu = time.process_time()

    def fit(key: int) -> tuple[bf.Posterior, float]:
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a poor verdict warns; it is in the record
            post = bf.fit(entry.model, *args, key=key, progress=False, **options)
        if post.settings["interrupted"]:
            raise KeyboardInterrupt  # half a fit is not a result to keep
        return post, time.perf_counter() - began

    post, cold = fit(0)
    cpu = time.process_time() - cpu
    warm = fit(1)[1] if cold <= settings["warm_limit"] else None
    judged = {name: getattr(post.diagnostics, name) for name in FIGURES}
    at_start = post.settings.get("start_gradients")
    counts = {
        "gradients": int(post.settings["training_gradients"]) + (at_start or 0),
        "start_gradients": at_start,
        "steps": int(post.settings["steps"]),
    }
    draws = post.draws(NUM_DRAWS, key=EVALUATION_SEED, deterministic=False)
    return {"cold_seconds": cold, "warm_seconds": warm, "cpu_seconds": cpu, **counts, **judged}, moments(
        unconstrain(entry, draws), 1
    )


def measure_nuts(entry: Entry, settings: Settings) -> Measured:
    """Run NumPyro's NUTS with its defaults, four chains; the verdict is part of the time, as it is of a fit."""
    options = {name: value for name, value in settings.items() if name != "warm_limit"}
    if options["chain_method"] == PARALLEL:
        # Takes effect only before JAX has looked for devices: this process has just begun.
        jax.config.update("jax_num_cpu_devices", NUM_CHAINS)
    with use_precision(resolve_precision(None)):
        sampler = Sampler(entry.model, entry.args, **options)

        def run(key: int) -> tuple[dict[str, Any], Moments]:
            began, cpu = time.perf_counter(), time.process_time()
            chains = sampler.run(key)
            free = unconstrain(entry, chains.draws)
            found, summary = convergence_of(free), moments(free, 2)
            num = NUM_CHAINS * options["samples"]
            judged = judge_chains(found, list(summary.names), num, chains.num_divergent)
            return {
                "cold_seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - cpu,
                "gradients": chains.num_steps,
                "divergences": chains.num_divergent,
                "min_ess_bulk": judged.ess_bulk,
                "rhat": judged.rhat,
                "verdict": judged.verdict,
                "status": judged.status,
            }, summary

        record, summary = run(0)
        warm = run(1)[0]["cold_seconds"] if record["cold_seconds"] <= settings["warm_limit"] else None
    return {**record, "warm_seconds": warm}, summary


def measure_to_nuts(entry: Entry, settings: Settings) -> Measured:
    """Fit with `bf.fit` and draw exactly by `post.to_nuts`; the seconds are those of both, cold."""
    began, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of verdicts, which are in the record
        post = bf.fit(entry.model, *entry.args, key=0, progress=False)
        fitted = time.perf_counter() - began
        run = post.to_nuts(num=settings["samples"], warmup=settings["warmup"], chains=NUM_CHAINS, progress=False)
    free = unconstrain(entry, run.draws(deterministic=False))
    found, summary = convergence_of(free), moments(free, 2)
    num_divergent = run.diagnostics.num_divergent
    judged = judge_chains(found, list(summary.names), NUM_CHAINS * settings["samples"], num_divergent)
    return {
        "cold_seconds": time.perf_counter() - began,
        "fit_seconds": fitted,
        "warm_seconds": None,
        "cpu_seconds": time.process_time() - cpu,
        "gradients": post.settings["training_gradients"] + (post.settings["start_gradients"] or 0) + run.num_gradients,
        "fit_verdict": post.diagnostics.verdict,
        "divergences": num_divergent,
        "min_ess_bulk": judged.ess_bulk,
        "rhat": judged.rhat,
        "verdict": judged.verdict,
        "status": judged.status,
    }, summary


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(OURS, "bernflow", measure_ours),
        Method(GAUSSIAN, 'bernflow, family="gaussian-fullrank"', measure_ours, {"family": "gaussian-fullrank"}),
        *(
            Method(name, f"NUTS, {how} chains", measure_nuts, {"warmup": 1000, "samples": 1000, "chain_method": how})
            for name, how in NUTS.items()
        ),
        Method(EXACT, "bernflow and to_nuts", measure_to_nuts, {"warmup": 300, "samples": 1000}, by_default=False),
    )
}
