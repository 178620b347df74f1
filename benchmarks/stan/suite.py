"""Compare the wall time of fits through a compiled Stan program and through NumPyro: same posterior, same steps.

It needs `pip install "bernflow[stan]"`.
Gradients are timed in batches, fits twice: the first one with the compilation of JAX, the best of the others without.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

import bernflow as bf
from benchmarks.records import made_by
from benchmarks.study.writing import ensure_writable
from benchmarks.targets import BENCHMARKS
from bernflow.cli import Command
from bernflow.models import as_model
from bernflow.target import Target

RESULTS = Path(__file__).parent / "results"
EIGHT_SCHOOLS = """
data {
  int<lower=0> J;
  vector[J] y;
  vector<lower=0>[J] sigma;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[J] eta;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5) T[0, ];
  eta ~ normal(0, 1);
  y ~ normal(mu + tau * eta, sigma);
}
"""
DIAMONDS = """
data {
  int<lower=1> N;
  int<lower=1> K;
  matrix[N, K] x;
  vector[N] y;
}
parameters {
  vector[K] b;
  real Intercept;
  real<lower=0> sigma;
}
model {
  b ~ normal(0, 1);
  Intercept ~ student_t(3, 8, 10);
  sigma ~ student_t(3, 0, 10) T[0, ];
  y ~ normal_id_glm(x, Intercept, b, sigma);
}
"""
PROGRAMS = {
    "eight-schools-noncentered": (EIGHT_SCHOOLS, lambda y, sigma: {"J": len(y), "y": y, "sigma": sigma}),
    "diamonds": (DIAMONDS, lambda x, y: {"N": len(y), "K": x.shape[1], "x": x, "y": y}),
}
BATCHES = (1, 32, 1000)
NUM_CALLS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--models", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME", help="models (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="timed fits of each kind (default: 5)")
    parser.add_argument("--steps", type=int, default=1000, metavar="N", help="steps of every fit (default: 1000)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="folder (default: beside this suite)")


def run_suite(options: argparse.Namespace) -> None:
    """Time the models one after the other, print the figures."""
    path, began = ensure_writable(options.out) / "stan.json", time.perf_counter()
    records: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "steps": options.steps}
    for name in options.models:
        records[name] = compare(name, options)
        path.write_text(json.dumps({**records, **made_by(__name__, began)}, indent=1) + "\n")
    json.dump(records, sys.stdout, indent=1)


def compare(name, options):
    benchmark = BENCHMARKS[name]
    program, to_data = PROGRAMS[name]
    data = benchmark.load()
    began = time.perf_counter()
    models: dict[str, Any] = {"stan": bf.from_stan(program, data=to_data(*data))}
    record: dict[str, Any] = {"seconds_from_stan": time.perf_counter() - began}
    models["stan-callback"] = bf.from_stan(program, data=to_data(*data), callback=True)
    with jax.enable_x64(True):
        models["numpyro"] = as_model(benchmark.model, data)
        record["gradient_microseconds"] = {kind: time_gradients(model) for kind, model in models.items()}
    record["first_fit_seconds"] = {kind: time_fit(model, options.steps)[0] for kind, model in models.items()}
    runs: dict[str, list] = {kind: [] for kind in models}
    for _ in range(options.rounds):
        for kind, model in models.items():  # in turn, so that all see the same load of the machine
            runs[kind].append(time_fit(model, options.steps))
    record["fit_seconds"] = {kind: min(seconds for seconds, _ in values) for kind, values in runs.items()}
    record["log_evidence"] = {kind: values[0][1].diagnostics.log_evidence for kind, values in runs.items()}
    record["verdict"] = {kind: values[0][1].diagnostics.verdict for kind, values in runs.items()}
    seconds = record["fit_seconds"]
    record["ratio_to_numpyro"] = {kind: seconds[kind] / seconds["numpyro"] for kind in ("stan", "stan-callback")}
    return record


def time_fit(model, steps):
    began = time.perf_counter()
    posterior = bf.fit(model, steps=steps, progress=False)
    return time.perf_counter() - began, posterior


def time_gradients(model):
    """Return microseconds per call of the value and gradient of a batch, for several sizes of it."""
    target = Target(model)
    function = eqx.filter_jit(lambda target, x: jax.vmap(jax.value_and_grad(target.log_density))(x))
    result = {}
    for num in BATCHES:
        x = 0.1 * jax.random.normal(jax.random.key(0), (num, target.dim))
        jax.block_until_ready(function(target, x))
        times = []
        for _ in range(NUM_CALLS):
            began = time.perf_counter()
            jax.block_until_ready(function(target, x))
            times.append(time.perf_counter() - began)
        result[num] = 1e6 * float(np.min(times))
    return result


COMMAND = Command(
    "stan",
    "a compiled Stan program compared with the same model in NumPyro",
    "Compare the wall time of gradients and fits through a compiled Stan program and through NumPyro: same posterior, "
    "same steps. Writes stan.json. It needs `pip install 'bernflow[stan]'` and a C++ compiler.",
    add_arguments,
    run_suite,
    """
examples:
  bernflow benchmark stan
  bernflow benchmark stan --models diamonds --rounds 3
""",
)
