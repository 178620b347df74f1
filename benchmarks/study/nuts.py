"""The ground truth by NUTS, refused where the chains have not converged."""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS, init_to_uniform

from benchmarks.study.plan import Result, Task
from benchmarks.targets import BENCHMARKS, nn_mean
from bernflow import BernflowError
from bernflow.diagnostics.chains import MAX_RHAT, MIN_ESS, convergence

FUNCTION = f"{__name__}:run_nuts"
NUM_CHAINS = 4


def nuts_task(target: str, *, num_warmup: int, num_samples: int, num_kept: int, strict: bool = True) -> Task:
    """Describe a NUTS run; `strict=False` accepts chains that are too short, for trying things out."""
    arguments = {"target": target, "num_warmup": num_warmup, "num_samples": num_samples, "num_kept": num_kept}
    return Task(FUNCTION, {**arguments, "strict": strict})


def run_nuts(target: str, num_warmup: int, num_samples: int, num_kept: int, strict: bool, key: int = 0) -> Result:
    """Run four chains of NumPyro's NUTS and check them.

    Returns:
        rhat (worst), ess (worst, bulk or tail), num_divergent, and one array "draws/NAME" per quantity, derived ones
        included.
    """
    benchmark = BENCHMARKS[target]
    with jax.enable_x64(True):
        kernel = NUTS(
            benchmark.model, target_accept_prob=0.95, dense_mass=True, init_strategy=init_to_uniform(radius=1.0)
        )
        chains = {"num_chains": NUM_CHAINS, "chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, **chains)
        mcmc.run(jax.random.key(key), *map(jnp.asarray, benchmark.args))
        grouped = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
        num_divergent = int(np.sum(np.asarray(mcmc.get_extra_fields()["diverging"])))
    rhat, ess = check_chains(target, judged(target, grouped), strict)
    every = max(1, NUM_CHAINS * num_samples // num_kept)
    flat = {name: value.reshape(-1, *value.shape[2:])[::every] for name, value in grouped.items()}
    draws = {f"draws/{name}": np.asarray(value, np.float32) for name, value in flat.items()}
    return {"rhat": rhat, "ess": ess, "num_divergent": num_divergent, "num_draws": NUM_CHAINS * num_samples, **draws}


def judged(target: str, grouped: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the scalar quantities, (chains, draws) each, whose convergence is judged.

    The hidden units of a network can be exchanged: chains may differ in the weights and agree in the function.
    """
    if target == "nn-regression":
        inputs = np.linspace(-10.0, 10.0, 9)
        values = np.asarray(
            nn_mean(inputs, grouped["w_first"], grouped["bias_first"], grouped["w_output"], grouped["bias_output"])
        )
        return [values[..., i] for i in range(values.shape[-1])]
    return [value[(slice(None), slice(None), *i)] for value in grouped.values() for i in np.ndindex(value.shape[2:])]


def check_chains(target: str, quantities: list[np.ndarray], strict: bool = True) -> tuple[float, float]:
    """Return the worst R-hat and the smallest effective number of draws, bulk and tail.

    Args:
        target: what was sampled, for the message.
        quantities: scalar quantities, (chains, draws) each.
        strict: raise where the chains cannot serve as ground truth.
    """
    found = convergence(np.stack(quantities))
    rhat, ess = float(np.max(found.rhat)), float(min(np.min(found.ess_bulk), np.min(found.ess_tail)))
    # Written so that what is not a number has not converged.
    if strict and not (rhat <= MAX_RHAT and ess >= MIN_ESS):
        raise BernflowError(
            f"NUTS on {target} has not converged: R-hat {rhat:.3f} (at most {MAX_RHAT}), effective draws {ess:.0f} "
            f"(at least {MIN_ESS:.0f}). It cannot serve as ground truth; use more draws."
        )
    return rhat, ess
