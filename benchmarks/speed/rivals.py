"""NumPyro's NUTS and its AutoIAFNormal, timed as their users would run them: once cold, once warm."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, autoguide

from benchmarks.accuracy.columns import to_columns
from benchmarks.accuracy.density import Density
from benchmarks.accuracy.judge import score
from benchmarks.study.plan import Result
from benchmarks.targets import Benchmark
from bernflow.diagnostics.chains import convergence, judge_chains
from bernflow.precision import resolve_precision, use_precision

NUM_CHAINS = 4
# A KL this near to the guide's own best counts as that: nats, and share of it.
NEAR, NEAR_SHARE = 1e-3, 0.05


def time_nuts(benchmark: Benchmark, settings: Mapping[str, Any]) -> Result:
    """Run four chains twice, the second time with what the first has compiled."""
    method = settings["chain_method"]
    if method == "parallel":
        method = _spread_over_devices()
    with use_precision(resolve_precision(None)):
        mcmc = MCMC(
            NUTS(benchmark.model),
            num_warmup=settings["warmup"],
            num_samples=settings["samples"],
            num_chains=NUM_CHAINS,
            chain_method=method,
            progress_bar=False,
        )
        seconds, chains = [], {}
        for key in range(2):
            began = time.perf_counter()
            mcmc.run(jax.random.key(key), *benchmark.args)
            chains = {name: np.asarray(values) for name, values in mcmc.get_samples(group_by_chain=True).items()}
            columns = to_columns(chains, lead=2)
            # The verdict is part of the wait, as it is of ours.
            diverging = int(np.sum(np.asarray(mcmc.get_extra_fields()["diverging"])))
            found = convergence(np.stack(list(columns.values())))
            judged = judge_chains(found, list(columns), NUM_CHAINS * settings["samples"], diverging)
            seconds.append(time.perf_counter() - began)
    return {
        "cold_seconds": seconds[0],
        "warm_seconds": seconds[1],
        "chain_method": method,
        "min_ess": min(judged.ess_bulk, judged.ess_tail),
        "verdict": judged.verdict,
        "device": jax.devices()[0].device_kind,
    }


def _spread_over_devices() -> str:
    """Give every chain a device of its own; where that cannot be, the chains follow each other."""
    # Counts only before JAX has looked for devices: this process has just begun.
    jax.config.update("jax_num_cpu_devices", NUM_CHAINS)
    return "parallel" if jax.device_count() >= NUM_CHAINS else "sequential"


def time_iaf(benchmark: Benchmark, settings: Mapping[str, Any]) -> Result:
    """Train AutoIAFNormal twice in blocks of steps; the clock rests while it is judged after each block."""
    with use_precision(resolve_precision(None)):
        guide = autoguide.AutoIAFNormal(benchmark.model)
        schedule = optax.cosine_decay_schedule(settings["learning_rate"], settings["steps"], alpha=0.01)
        svi = SVI(benchmark.model, guide, optax.adam(schedule), Trace_ELBO(num_particles=settings["num_particles"]))
        arguments = tuple(map(jnp.asarray, benchmark.args))

        @jax.jit
        def block(state):
            return jax.lax.scan(lambda s, _: svi.update(s, *arguments), state, None, length=settings["block"])

        density: Density | None = None
        paths = []
        for key in range(2):
            taken, path = 0.0, []
            began = time.perf_counter()
            state = svi.init(jax.random.key(key), *arguments)
            for _ in range(settings["steps"] // settings["block"]):
                state, losses = block(state)
                jax.block_until_ready(losses)
                taken += time.perf_counter() - began
                density = density or Density(benchmark)
                found = _judge(guide, svi.get_params(state), density, settings["num_draws"], benchmark.log_evidence)
                path.append({"seconds": taken, **found})
                began = time.perf_counter()
            paths.append(path)
    cold, warm = (_arrival(path) for path in paths)
    return {
        "cold_seconds": cold["seconds"],
        "warm_seconds": warm["seconds"],
        **{name: warm[name] for name in ("kl", "elbo", "ess_fraction", "khat")},
        "all_seconds": paths[1][-1]["seconds"],
        "device": jax.devices()[0].device_kind,
    }


def _judge(guide: Any, params: Any, density: Density, num: int, log_evidence: float | None) -> dict[str, Any]:
    posterior = guide.get_posterior(params)
    x, intermediates = posterior.sample_with_intermediates(jax.random.key(10_000), sample_shape=(num,))
    log_weights = density.evaluate(x) - np.asarray(posterior.log_prob(x, intermediates))
    return score(log_weights, log_evidence)


def _arrival(path: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first block whose ELBO is near to the best of all."""
    best = max(point["elbo"] for point in path)
    # Where the evidence is unknown so is the KL, and its share; the ELBO tells nats alone.
    least = min((point["kl"] for point in path if point["kl"] is not None), default=0.0)
    allowed = NEAR + NEAR_SHARE * max(least, 0.0)
    return next(point for point in path if point["elbo"] >= best - allowed)
