"""Time a training step of the melanoma network alone and with a posterior of beta_1 beside it, in turn."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bernflow as bf
from benchmarks.melanoma.cnn import paper_cnn
from benchmarks.melanoma.plain import RMSPROP, PlainTrainee, run_chunk, steps_of_a_call
from benchmarks.speed.training import JointTraining, resolved
from bernflow.cli import Command

PIXELS = 128
MIN_ROWS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--batch", type=int, default=256, metavar="N", help="pictures of a step (default: 256)")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="steps per round (default: 50)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="number of rounds (default: 5)")
    parser.add_argument("--particles", type=int, default=32, metavar="N", help="draws of a step (default: 32)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="arithmetic of the network")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file for the figures, beside standard output")


def plain(options: argparse.Namespace, rows: dict[str, np.ndarray]) -> Callable[[], None]:
    """Return a function that takes one round of steps by cross-entropy."""
    network = paper_cnn(jax.random.key(0), dtype=options.dtype)
    trainee = PlainTrainee(network.weights, network.state, RMSPROP.init(network.weights))
    keys = jax.random.split(jax.random.key(1), options.steps)
    data = {"images": jnp.asarray(rows["images"]), "y": jnp.asarray(rows["y"], jnp.float32)}
    chosen = np.random.default_rng(0).integers(0, len(rows["y"]), (options.steps, options.batch))
    indices = jnp.asarray(chosen, jnp.int32)
    length = steps_of_a_call()

    def run() -> None:
        state = trainee
        for start in range(0, options.steps, length):
            chunk = slice(start, start + length)
            state, losses = run_chunk(network, state, data, indices[chunk], keys[chunk], 1e-3)
        jax.block_until_ready(losses)

    return run


def with_posterior(options: argparse.Namespace, rows: dict[str, np.ndarray]) -> Callable[[], None]:
    """Return a function that takes one round of steps by the ELBO."""
    model = bf.Model(
        prior={"beta_1": dist.Normal(0.0, 1.0)},
        likelihood=lambda theta, x, h: dist.Bernoulli(logits=h + theta["beta_1"] * x),
        y=rows["y"],
        x=rows["x"],
        network=paper_cnn(jax.random.key(0), dtype=options.dtype),
        images=rows["images"],
    )
    settings = resolved({"num_particles": options.particles, "precision": "float32"})
    return JointTraining(model, options.batch, settings, options.steps, resident=True).run


def run_suite(options: argparse.Namespace) -> None:
    """Measure both in turn and print images per second and the ratio."""
    rng = np.random.default_rng(0)
    num = max(2 * options.batch, MIN_ROWS)
    rows = {
        "images": rng.integers(0, 256, (num, PIXELS, PIXELS, 3), dtype=np.uint8),
        "y": rng.integers(0, 2, num),
        "x": rng.normal(size=num).astype(np.float32),
    }
    with jax.enable_x64(False):
        runs = {"plain": plain(options, rows), "with posterior": with_posterior(options, rows)}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run()  # compiles
        for _ in range(options.rounds):
            for name, run in runs.items():
                began = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - began)
    ratios = [b / a for a, b in zip(seconds["plain"], seconds["with posterior"], strict=True)]
    result = {
        "device": jax.devices()[0].device_kind,
        "batch": options.batch,
        "dtype": options.dtype,
        "particles": options.particles,
        "images_per_second": {
            name: options.batch * options.steps / float(np.median(values)) for name, values in seconds.items()
        },
        "cost_of_the_posterior": float(np.median(ratios)) - 1.0,
        "cost_in_every_round": [ratio - 1.0 for ratio in ratios],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


COMMAND = Command(
    "semistructured",
    "the cost of a posterior alongside a network",
    "Time a training step of the melanoma network alone and together with the posterior of one coefficient, in turn, "
    "on synthetic images. Prints images per second and the ratio.",
    add_arguments,
    run_suite,
    """
examples:
  bernflow benchmark semistructured
  bernflow benchmark semistructured --dtype bfloat16 --batch 1024
""",
)
