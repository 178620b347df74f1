"""Compare NUTS in the space of a fitted flow with NUTS on the model as it stands."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.nuts import table
from benchmarks.nuts.methods import CHAINS, METHODS, PLAIN_WARMUP, TRUTHS, run
from benchmarks.records import is_current, load, made_by
from bernflow.cli import Command

RESULTS = Path(__file__).parent / "results"
NOTES = (
    f"{CHAINS} chains, run together, in double precision on a CPU. Medians over the keys; every run is in the JSON "
    "file. ESS and R-hat are those of the worst component, derived quantities included.",
    f"plain: NumPyro's NUTS on the model, {PLAIN_WARMUP} steps of warmup, its default acceptance rate of 0.8, or 0.95.",
    "flow: bf.fit with its defaults, then post.to_nuts() with its own (300 steps of warmup, acceptance rate 0.9).",
    "poor fit: the mean-field Gaussian after 200 steps instead of the flow.",
    "gradients: of the log density, of all chains, warmup and starting points included. Those of the fit are listed "
    "separately: steps times particles. A gradient through the flow costs more time than one of such a small model.",
    "seconds: of a second run, without compilation (NumPyro's MCMC compiles again in every run, to_nuts does not). "
    "The times of the first run and of the fit include compilation and are the longest of the keys. The machine was "
    "shared, so times are rough.",
    "P(neck): the fraction of draws with tau below 0.1, or v below -6.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--targets",
        nargs="+",
        choices=list(TRUTHS),
        default=list(TRUTHS),
        metavar="NAME",
        help="targets (default: all)",
    )
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME", help="methods (default: all)"
    )
    parser.add_argument("--keys", type=int, default=3, metavar="N", help="number of random keys (default: 3)")
    parser.add_argument("--num", type=int, default=1000, metavar="N", help="draws per chain (default: 1000)")
    parser.add_argument("--fresh", action="store_true", help="repeat what an earlier run has finished")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="folder (default: beside this suite)")


def identity(record):
    """Return what two records of the same run have in common."""
    return tuple(record[name] for name in ("target", "method", "key", "num"))


def run_suite(options: argparse.Namespace) -> None:
    """Run what is missing, keep the rest, print the table."""
    path = options.out / "nuts.json"
    records = {identity(r): r for r in load(path)}
    plan = [(t, m, k) for t in options.targets for k in range(options.keys) for m in options.methods]
    fits: dict[Any, Any] = {}
    for count, (target, method, key) in enumerate(plan, start=1):
        if is_current(records.get((target, method, key, options.num)), __name__) and not options.fresh:
            continue
        print(f"[{count}/{len(plan)}] {target}, {method}, key {key} ...", file=sys.stderr, flush=True)
        began = time.perf_counter()
        record = {**run(target, method, key, options.num, fits), **made_by(__name__, began)}
        records[identity(record)] = record
        table.save(path, list(records.values()), NOTES)
    print(table.markdown(list(records.values()), NOTES))


COMMAND = Command(
    "nuts",
    "NUTS with and without a fitted flow",
    "Compare NUTS in the space of a fitted flow with NUTS on the model as it stands: what an effective draw costs, and "
    "whether the draws are right. Writes nuts.json and nuts.md. An interrupted run continues where it stopped.",
    add_arguments,
    run_suite,
    """
examples:
  bernflow benchmark nuts
  bernflow benchmark nuts --targets funnel --methods plain flow --keys 1
""",
)
