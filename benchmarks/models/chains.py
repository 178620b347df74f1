"""NumPyro's NUTS on one model: draws, leapfrog steps of warmup and sampling, divergences."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

NUM_CHAINS = 4
VECTORIZED, PARALLEL = "vectorized", "parallel"


@dataclass(frozen=True)
class Chains:
    """A run of NUTS.

    Attributes:
        draws: (chains, draws, *shape) per site, deterministic ones included.
        num_steps: leapfrog steps, hence gradients, of all chains, warmup included.
        num_divergent: number of divergences after warmup.
        seconds: wall time, compilation included where it was needed.
    """

    draws: dict[str, np.ndarray]
    num_steps: int
    num_divergent: int
    seconds: float


class Sampler:
    """NUTS with four chains; a second run uses what the first has compiled.

    It is made and used in one precision.

    Args:
        model: a NumPyro model function.
        args: its arguments.
        warmup: steps of warmup of each chain.
        samples: draws of each chain.
        chain_method: "vectorized" or "parallel".
        **kernel: options of `numpyro.infer.NUTS`.
    """

    def __init__(
        self,
        model: Callable[..., None],
        args: tuple[Any, ...],
        *,
        warmup: int,
        samples: int,
        chain_method: str = VECTORIZED,
        **kernel: Any,
    ):
        self._warmup, self._samples = warmup, samples
        self._mcmc = MCMC(
            # NumPyro finds what it has compiled again only where the arguments can be hashed; dictionaries cannot.
            NUTS(partial(model, *args), **kernel),
            num_warmup=warmup,
            num_samples=samples,
            num_chains=NUM_CHAINS,
            chain_method=chain_method,
            progress_bar=False,
        )

    def run(self, key: int) -> Chains:
        """Run the chains from a seed."""
        began = time.perf_counter()
        # `MCMC.warmup(collect_warmup=True)` counts the steps of warmup, too, but compiles everything twice.
        total = self._warmup + self._samples
        self._mcmc._set_collection_params(0, total, total, "sample")
        self._mcmc.run(jax.random.key(key), extra_fields=("num_steps", "diverging"))
        samples = self._mcmc.get_samples(group_by_chain=True)
        draws = {name: np.asarray(values)[:, self._warmup :] for name, values in samples.items()}
        extra = self._mcmc.get_extra_fields(group_by_chain=True)
        steps, diverging = np.asarray(extra["num_steps"]), np.asarray(extra["diverging"])[:, self._warmup :]
        return Chains(draws, int(steps.sum()), int(diverging.sum()), time.perf_counter() - began)
