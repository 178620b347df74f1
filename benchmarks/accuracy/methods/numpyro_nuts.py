"""NumPyro's NUTS: a method among the others, and the reference where nothing exact is known."""

import time

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

from benchmarks.accuracy.columns import to_columns
from benchmarks.accuracy.methods.base import Drawn, Fitted, Method, Settings
from benchmarks.targets import Benchmark
from bernflow.diagnostics.chains import ChainDiagnostics, convergence, judge_chains

NUM_CHAINS = 4
Chains = dict[str, np.ndarray]


def fit(benchmark: Benchmark, key: int, settings: Settings) -> Fitted:
    """Run four chains and judge them."""
    started = time.perf_counter()
    chains, found, gradients = run(benchmark, key, settings)
    seconds = time.perf_counter() - started

    def draw(num: int, seed: int) -> Drawn:
        return Drawn(chains, chains=True)

    return Fitted(draw, seconds, gradients, found.verdict, {"status": found.status})


def run(benchmark: Benchmark, key: int, settings: Settings) -> tuple[Chains, ChainDiagnostics, int]:
    """Return the draws, (chains, draws, *shape) per site, the verdict on them and the number of gradients."""
    with jax.enable_x64(True):
        kernel = NUTS(benchmark.model, **{k: v for k, v in settings.items() if k not in ("warmup", "samples")})
        mcmc = MCMC(
            kernel,
            num_warmup=settings["warmup"],
            num_samples=settings["samples"],
            num_chains=NUM_CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        warmup_key, run_key = jax.random.split(jax.random.key(key))
        mcmc.warmup(warmup_key, *benchmark.args, extra_fields=("num_steps",), collect_warmup=True)
        gradients = int(np.sum(np.asarray(mcmc.get_extra_fields()["num_steps"])))
        mcmc.run(run_key, *benchmark.args, extra_fields=("num_steps", "diverging"))
        extra = {name: np.asarray(values) for name, values in mcmc.get_extra_fields().items()}
        chains = {name: np.asarray(values) for name, values in mcmc.get_samples(group_by_chain=True).items()}
    columns = to_columns(chains, lead=2)
    found = judge_chains(
        convergence(np.stack(list(columns.values()))),
        list(columns),
        NUM_CHAINS * settings["samples"],
        int(np.sum(extra["diverging"])),
    )
    return chains, found, gradients + int(np.sum(extra["num_steps"]))


METHODS = (
    Method(
        "nuts",
        "NUTS (NumPyro)",
        fit,
        "NumPyro's NUTS with its defaults: four chains with 1,000 warmup steps and 1,000 draws each. It has no "
        "density, hence no KL. Its verdict is based on R-hat, effective sample size and divergences.",
        settings={"warmup": 1000, "samples": 1000},
    ),
)
