"""Time a training step of the melanoma network alone and with a posterior of beta_1 beside it, in turn.

Run `python -m benchmarks.semistructured [--batch 256] [--steps 50] [--rounds 5] [--dtype bfloat16] [--out FILE]`.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bernflow as bf
from benchmarks.melanoma.cnn import paper_cnn
from benchmarks.melanoma.plain import RMSPROP, PlainTrainee, run_chunk
from bernflow.fit import joint
from bernflow.fit.settings import ADAM
from bernflow.fit.steps import network_steps_at_once
from bernflow.flows.families import FAMILIES, Spec
from bernflow.precision import use_precision
from bernflow.target import Target


def parse():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=50, help="steps per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--particles", type=int, default=32)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def chunks(steps):
    """Cut the steps as the training does: into compiled loops, or single steps on a CPU."""
    length = network_steps_at_once()
    return [slice(start, start + length) for start in range(0, steps, length)]


def plain(options, rows, indices):
    """Return a function that takes one round of steps by cross-entropy."""
    network = paper_cnn(jax.random.key(0), dtype=options.dtype)
    trainee = PlainTrainee(network.weights, network.state, RMSPROP.init(network.weights))
    keys = jax.random.split(jax.random.key(1), options.steps)
    data = {"images": rows["images"], "y": rows["y"].astype(jnp.float32)}

    def run():
        state = trainee
        for chunk in chunks(options.steps):
            state, losses = run_chunk(network, state, data, indices[chunk], keys[chunk], 1e-3)
        jax.block_until_ready(losses)

    return run


def with_posterior(options, rows, indices):
    """Return a function that takes one round of steps by the ELBO."""
    model = bf.Model(
        prior={"beta_1": dist.Normal(0.0, 1.0)},
        likelihood=lambda theta, x, h: dist.Bernoulli(logits=h + theta["beta_1"] * x),
        y=np.asarray(rows["y"]),
        x=np.asarray(rows["x"]),
        network=paper_cnn(jax.random.key(0), dtype=options.dtype),
        images=np.asarray(rows["images"]),
    )
    layout = Target(model).layout
    spec = Spec(dim=1, order=20, noise="normal", width=32)
    flow = FAMILIES["bernstein"].build(jax.random.key(0), spec, jnp.zeros(1), jnp.eye(1))
    method = joint.JointMethod(ADAM, 1e-2, RMSPROP, 1e-3, options.particles, use_score=True, constant_rate=True)
    trainee = joint.begin(flow, model, method)
    light = joint.on_device(model.without_rows())
    keys, rates = jax.random.split(jax.random.key(1), options.steps), jnp.ones(options.steps)
    on_device = {"y": rows["y"], "x": rows["x"], "images": rows["images"]}

    def run():
        state = trainee
        for chunk in chunks(options.steps):
            fixed = (light, layout, None, on_device, indices[chunk])
            state, trace = joint._run_chunk(fixed, state, keys[chunk], rates[chunk], method)
        jax.block_until_ready(trace)

    return run


def main():
    """Measure both in turn and print images per second and the ratio."""
    options = parse()
    rng = np.random.default_rng(0)
    num = max(2 * options.batch, 1024)
    with use_precision("float32"):
        rows = {
            "images": jnp.asarray(rng.integers(0, 256, (num, 128, 128, 3), dtype=np.uint8)),
            "y": jnp.asarray(rng.integers(0, 2, num)),
            "x": jnp.asarray(rng.normal(size=num), jnp.float32),
        }
        indices = jnp.asarray(rng.integers(0, num, (options.steps, options.batch)), jnp.int32)
        runs = {"plain": plain(options, rows, indices), "with posterior": with_posterior(options, rows, indices)}
        seconds = {name: [] for name in runs}
        for run in runs.values():
            run()  # compiles
        for _ in range(options.rounds):
            for name, run in runs.items():
                began = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - began)
    rate = {name: options.batch * options.steps / float(np.median(values)) for name, values in seconds.items()}
    ratios = [b / a for a, b in zip(seconds["plain"], seconds["with posterior"], strict=True)]
    result = {
        "device": jax.devices()[0].device_kind,
        "batch": options.batch,
        "dtype": options.dtype,
        "particles": options.particles,
        "images_per_second": rate,
        "cost_of_the_posterior": float(np.median(ratios)) - 1.0,
        "cost_in_every_round": [ratio - 1.0 for ratio in ratios],
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
