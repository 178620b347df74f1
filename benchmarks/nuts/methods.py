"""One run of one method on one posterior, as a record of plain numbers."""

import time
import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS

import bernflow as bf
from benchmarks.targets import BENCHMARKS
from bernflow.diagnostics.chains import convergence

CHAINS = 4
PLAIN_WARMUP = 1000


@dataclass(frozen=True)
class Truth:
    """The quantity that is hard to sample, with its exact moments and the exact probability of its neck."""

    quantity: str
    mean: float
    sd: float
    neck: float
    neck_probability: float


# 8 schools: by quadrature over log tau, with mu and the effects integrated out. The funnel's v is N(0, 3).
TAU = Truth("tau", mean=3.5977, sd=3.2200, neck=0.1, neck_probability=0.02031)
TRUTHS = {
    "eight-schools-centered": TAU,
    "eight-schools-noncentered": TAU,
    "funnel": Truth("v", mean=0.0, sd=3.0, neck=-6.0, neck_probability=0.02275),
}

# What is fitted before NUTS runs in the space of the fit.
FLOWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "flow": ({"tolerance": 0}, {}),
    "flow, blackjax": ({"tolerance": 0}, {"sampler": "blackjax"}),
    "flow, 1000 of warmup": ({"tolerance": 0}, {"warmup": 1000}),
    "poor fit": ({"family": "gaussian", "steps": 200}, {}),
    "poor fit, 1000 of warmup": ({"family": "gaussian", "steps": 200}, {"warmup": 1000}),
}
PLAIN = {"plain": 0.8, "plain, 0.95": 0.95}
METHODS = (*PLAIN, *FLOWS)


def run(target, method, key, num, fits):
    """Measure one method; `fits` keeps the posteriors that several methods start from."""
    record = {"target": target, "method": method, "key": key, "num": num}
    measure = _plain if method in PLAIN else _flow
    draws, more = measure(BENCHMARKS[target], method, key, num, fits)
    return record | more | _score(draws, TRUTHS[target]) | _rates(draws, more)


class Clock:
    """Wall time since its start, and how much of it went into compilation."""

    _compiled, _listens = 0.0, False

    def __init__(self) -> None:
        if not Clock._listens:
            jax.monitoring.register_event_duration_secs_listener(Clock.hear)
            Clock._listens = True
        self._began, self._compiled_before = time.perf_counter(), Clock._compiled

    def stop(self):
        self.wall = time.perf_counter() - self._began
        self.compiling = Clock._compiled - self._compiled_before

    @classmethod
    def hear(cls, event: str, duration_secs: float, **_: str | int) -> None:
        """Add up the seconds of compilation."""
        if event.endswith(("/backend_compile_duration", "/jaxpr_to_mlir_module_duration")):
            cls._compiled += duration_secs


def _seconds(first, second):
    """Return the wall time of a first run, and that of a second one less compilation.

    NumPyro's MCMC compiles in every run, so that its second one is no measure of the sampling as it stands.
    """
    return {
        "seconds_first": first.wall,
        "seconds_second": second.wall,
        "seconds": second.wall - second.compiling,
    }


def _plain(benchmark, method, key, num, fits):
    """Run NumPyro's NUTS on the model as it stands."""
    with jax.enable_x64(True):
        args = tuple(jnp.asarray(a) for a in benchmark.args)
        kernel = NUTS(benchmark.model, target_accept_prob=PLAIN[method])
        mcmc = MCMC(
            kernel,
            num_warmup=PLAIN_WARMUP,
            num_samples=num,
            num_chains=CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        clocks = []
        for seed in (key + 1000, key):  # the second run is the one that is kept
            clocks.append(Clock())
            warmup_key, run_key = jax.random.split(jax.random.key(seed))
            mcmc.warmup(warmup_key, *args, extra_fields=("num_steps",), collect_warmup=True)
            warmup = int(np.sum(np.asarray(mcmc.get_extra_fields()["num_steps"])))
            mcmc.run(run_key, *args, extra_fields=("num_steps",))
            draws = {name: np.asarray(v) for name, v in mcmc.get_samples(group_by_chain=True).items()}
            clocks[-1].stop()
        extra = {name: np.asarray(v) for name, v in mcmc.get_extra_fields().items()}
    sampling = int(np.sum(extra["num_steps"]))
    more = {"gradients": warmup + sampling + CHAINS, "gradients_sampling": sampling, "gradients_fit": 0}
    more |= {"divergences": int(np.sum(extra["diverging"])), "warmup": PLAIN_WARMUP}
    return draws, more | _seconds(*clocks) | {"seconds_fit": 0.0}


def _flow(benchmark, method, key, num, fits):
    """Fit, then run NUTS in the space of the fit."""
    fit_options, nuts_options = FLOWS[method]
    identity = (benchmark.name, key, str(fit_options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is poor is in the table
        if identity not in fits:
            fits[identity] = bf.fit(benchmark.model, *benchmark.args, key=key, progress=False, **fit_options)
        post = fits[identity]
        clocks = []
        for seed in (key + 1000, key):
            clocks.append(Clock())
            found = post.to_nuts(num, chains=CHAINS, key=seed, progress=False, **nuts_options)
            clocks[-1].stop()
    more = {
        "gradients": found.num_gradients,
        "gradients_sampling": int(np.sum(found.stats["n_steps"])),
        "gradients_fit": int(post.settings["steps"]) * int(post.settings["num_particles"]),
        "divergences": found.diagnostics.num_divergent,
        "warmup": found.settings["warmup"],
        **_seconds(*clocks),
        "seconds_fit": float(post.settings["wall_seconds"]),
        "khat": float(post.diagnostics.khat),
        "ess_fraction": float(post.diagnostics.ess_fraction),
    }
    return found.draws(), more


def _score(draws, truth):
    values = np.asarray(draws[truth.quantity], np.float64)
    return {
        "quantity": truth.quantity,
        "mean": float(values.mean()),
        "sd": float(values.std(ddof=1)),
        "neck_probability": float(np.mean(values < truth.neck)),
    }


def _rates(draws, more):
    """Judge every component of the draws that varies, in the same way for all methods."""
    columns = [v[(slice(None), slice(None), *i)] for v in draws.values() for i in np.ndindex(v.shape[2:])]
    found = convergence(np.stack(columns))
    bulk, tail = float(found.ess_bulk.min()), float(found.ess_tail.min())
    return {
        "rhat": float(found.rhat.max()),
        "ess_bulk": bulk,
        "ess_tail": tail,
        "bulk_per_1000": 1000 * bulk / more["gradients"],
        "tail_per_1000": 1000 * tail / more["gradients"],
    }
