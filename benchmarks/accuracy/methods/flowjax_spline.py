"""A neural spline flow of flowjax, trained by flowjax."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accuracy.density import Density
from benchmarks.accuracy.methods.base import Drawn, Fitted, Method, Settings
from benchmarks.targets import Benchmark


def fit(
    benchmark: Benchmark,
    key: int,
    settings: Settings,
    make_density: Callable[[Benchmark, int], Any] = lambda benchmark, key: Density(benchmark),
) -> Fitted:
    """Train a masked autoregressive flow of rational quadratic splines on flowjax's ELBO."""
    from flowjax.bijections import RationalQuadraticSpline
    from flowjax.distributions import Normal
    from flowjax.flows import masked_autoregressive_flow
    from flowjax.train import fit_to_key_based_loss
    from flowjax.train.losses import ElboLoss

    with jax.enable_x64(True):
        started = time.perf_counter()
        flow_key, train_key = jax.random.split(jax.random.key(key))
        density = make_density(benchmark, key)
        flow = masked_autoregressive_flow(
            flow_key,
            base_dist=Normal(jnp.zeros(density.dim)),
            transformer=RationalQuadraticSpline(knots=settings["knots"], interval=settings["interval"]),
            invert=False,  # fast draws, which is what the ELBO needs
        )
        flow, _ = fit_to_key_based_loss(
            train_key,
            flow,
            loss_fn=ElboLoss(lambda x: density.log_density(jnp.asarray(x)), settings["num_particles"]),
            steps=settings["steps"],
            show_progress=False,
        )
        seconds = time.perf_counter() - started
        sample = jax.jit(lambda key: flow.sample_and_log_prob(key, (BLOCK,)))

    def draw(num: int, seed: int) -> Drawn:
        with jax.enable_x64(True):
            keys = jax.random.split(jax.random.key(seed), -(-num // BLOCK))
            blocks = [sample(key) for key in keys]
            x = np.concatenate([np.asarray(x) for x, _ in blocks])[:num]
            log_q = np.concatenate([np.asarray(log_q) for _, log_q in blocks])[:num]
            return Drawn(density.constrain(x), density.evaluate(x) - log_q)

    return Fitted(draw, seconds, settings["steps"] * settings["num_particles"])


BLOCK = 1000

METHODS = (
    Method(
        "flowjax-spline",
        "neural spline flow (flowjax)",
        fit,
        "flowjax's masked_autoregressive_flow with its sizes (8 layers, width 50) and RationalQuadraticSpline (8 "
        "knots on [-4, 4]) from a standard normal; ElboLoss with 10 particles, fit_to_key_based_loss with its Adam of "
        "5e-4, 20,000 steps. flowjax has no default for knots, particles and steps.",
        settings={"steps": 20_000, "num_particles": 10, "knots": 8, "interval": 4},
        quick={"steps": 5_000},
        needs=("flowjax", "peers"),
    ),
)
