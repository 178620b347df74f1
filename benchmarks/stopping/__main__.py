"""See whether a fit with its defaults ends too early or too late.

Run `python -m benchmarks.stopping [--targets ...] [--keys 3] [--fresh] [--out DIR]`.
"""

import argparse
import itertools
import statistics
import sys
import warnings
from pathlib import Path

import numpy as np

import bernflow as bf
from benchmarks import records as kept
from bernflow.experiments.accuracy.cases import all_cases
from bernflow.fit.loop import CYCLES
from bernflow.fit.stopping import CLOSE_ENOUGH

TARGETS = (
    "bernoulli",
    "cauchy",
    "toy-regression",
    "eight-schools-noncentered",
    "eight-schools-centered",
    "diamonds",
    "funnel-2",
    "funnel-10",
    "banana",
    "student-10",
    "multivariate-10",
    "boundary",
)
NUM_DRAWS = 50_000
LONGER = 4
ALLOWED_SHARE = 1.1
# The numbers of steps at which training may end.
ENDS = tuple(itertools.accumulate(cycle.length for cycle in CYCLES))
RESULTS = Path(__file__).parent / "results"
NOTES = (
    f"KL is the exact log evidence minus the ELBO of {NUM_DRAWS:,} draws, in nats; medians over the keys.",
    f"early: the KL is above {ALLOWED_SHARE} times that of a fit with {LONGER} times the steps, by more than "
    f"{CLOSE_ENOUGH:g} nats, which shift no mean by more than 0.03 standard deviations.",
    "late: steps taken, per least steps of a fit whose KL is as good in the same sense. Training may end after "
    + ", ".join(f"{end:,}" for end in ENDS)
    + " steps, and what the next cycle brings is known after it, so that 1.3 to 1.5 is the price of one cycle in vain.",
    "Fits with a given number of steps have two cycles, not those of the default: they are as long, not the same.",
)


def parse(argv):
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stopping", description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS, metavar="TARGET")
    parser.add_argument("--keys", type=int, default=3, help="number of random keys: 0, 1, ... (default 3)")
    parser.add_argument("--fresh", action="store_true", help="repeat runs that are already in the results")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"folder for the results (default {RESULTS})")
    return parser.parse_args(argv)


def fit(benchmark, key, steps=None):
    """Return the steps and the KL of a fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a poor fit is in the table
        post = bf.fit(benchmark.model, *benchmark.args, key=key, steps=steps, components=1, progress=False)
    log_weights = post.log_weights(NUM_DRAWS, key=1)
    return {"steps": post.settings["steps"], "kl": float(benchmark.log_evidence - np.mean(log_weights))}


def run(name, key):
    """Fit with the defaults, for longer, and for every shorter number of steps at which it might have ended."""
    benchmark = all_cases()[name].benchmark
    ours = fit(benchmark, key)
    others = [end for end in ENDS if end < ours["steps"]] + ([LONGER * ours["steps"]] if ours["steps"] else [])
    return {"target": name, "key": key, "ours": ours, "others": [fit(benchmark, key, steps) for steps in others]}


def is_as_good(kl, other):
    """Tell whether a KL is as good as another one, for all that can be seen."""
    return kl <= max(ALLOWED_SHARE * other, other + CLOSE_ENOUGH)


def lateness(record):
    """Return the steps taken per least steps of a fit that is as good."""
    ours = record["ours"]
    least = [r["steps"] for r in record["others"] if r["steps"] < ours["steps"] and is_as_good(r["kl"], ours["kl"])]
    return ours["steps"] / min(least) if least else 1.0


def is_early(record):
    """Tell whether a longer fit would have been better."""
    return not all(
        is_as_good(record["ours"]["kl"], r["kl"]) for r in record["others"] if r["steps"] > record["ours"]["steps"]
    )


def markdown(records):
    """Return one row per target, and what all of them say."""
    lines = ["# When training ends", "", *(f"* {note}" for note in NOTES), ""]
    columns = ("target", "steps", "KL", f"KL after {LONGER} times the steps", "early", "late, median and most", "keys")
    lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in dict.fromkeys(record["target"] for record in records):
        runs = [record for record in records if record["target"] == name]
        late = [lateness(record) for record in runs]
        longer = [record["others"][-1]["kl"] for record in runs if record["others"]]
        cells = (
            name,
            ", ".join(f"{steps:,}" for steps in sorted({record["ours"]["steps"] for record in runs})),
            f"{statistics.median(record['ours']['kl'] for record in runs):.5f}",
            f"{statistics.median(longer):.5f}" if longer else "",
            f"{sum(map(is_early, runs))} of {len(runs)}",
            f"{statistics.median(late):.1f}, {max(late):.1f}",
            str(len(runs)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    late = [lateness(record) for record in records]
    lines += [
        "",
        f"* Early: {sum(map(is_early, records))} of {len(records)} fits.",
        f"* Late by more than 1.5: {sum(ratio > 1.5 for ratio in late)} of {len(records)} fits; median ratio "
        f"{statistics.median(late):.2f}.",
    ]
    return "\n".join(lines) + "\n"


def main(argv=None):
    """Run what is missing, keep the rest, print the table."""
    options = parse(argv)
    path = options.out / "stopping.json"
    records = {(r["target"], r["key"]): r for r in kept.load(path)}
    plan = [(target, key) for target in options.targets for key in range(options.keys)]
    for count, (target, key) in enumerate(plan, start=1):
        if (target, key) in records and not options.fresh:
            continue
        print(f"[{count}/{len(plan)}] {target}, key {key} ...", file=sys.stderr, flush=True)
        records[target, key] = run(target, key)
        kept.save(path, list(records.values()), NOTES, markdown(list(records.values())))
    print(markdown(list(records.values())))


if __name__ == "__main__":
    main()
