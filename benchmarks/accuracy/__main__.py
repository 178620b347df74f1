"""Measure the accuracy of approximate posteriors: one table of every target by every method.

Run `python -m benchmarks.accuracy [--quick] [--targets ...] [--methods ...] [--keys 5] [--out DIR]`.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.accuracy import numpyro_guides, table
from benchmarks.accuracy.methods import METHODS, NUM_DRAWS, run, settings
from benchmarks.records import load
from bernflow.experiments.targets import BENCHMARKS

RESULTS = Path(__file__).parent / "results"
NOTES = (
    "KL = exact log evidence - ELBO. ELBO, k-hat and ESS fraction from fresh draws in double precision: "
    f"{NUM_DRAWS:,} each, 5,000 with --quick. Medians over the keys; every run is in the JSON file.",
    "Seconds include compilation. Gradients are steps x particles.",
    "bernflow: bf.fit with its defaults; order 50 for Cauchy.",
    "bernstein-paper: the paper's flow and recipe, order 50, 100,000 steps, 10 particles, RMSprop.",
    numpyro_guides.DESCRIPTION,
)


def parse(argv):
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS), metavar="TARGET")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--keys", type=int, default=5, help="number of random keys: 0, 1, ... (default 5)")
    parser.add_argument("--quick", action="store_true", help="few steps and draws, to see that everything runs")
    parser.add_argument("--fresh", action="store_true", help="repeat runs that are already in the results")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"folder for the results (default {RESULTS})")
    return parser.parse_args(argv)


def identity(record):
    """Return what two records of the same run have in common."""
    return record["target"], record["method"], record["key"]


def main(argv=None):
    """Run what is missing, keep the rest, print the table."""
    options = parse(argv)
    path = options.out / ("quick.json" if options.quick else "accuracy.json")
    records = {identity(r): r for r in load(path)}
    plan = [(t, m, k) for t in options.targets for m in options.methods for k in range(options.keys)]
    for count, (target, method, key) in enumerate(plan, start=1):
        benchmark = BENCHMARKS[target]
        kept = records.get((target, method, key))
        reusable = kept and kept["settings"] == settings(method, benchmark, options.quick)
        if reusable and not kept["status"].startswith("failed") and not options.fresh:
            continue
        progress(f"[{count}/{len(plan)}] {target}, {method}, key {key} ...")
        record = run(method, benchmark, key, options.quick)
        progress(f"    {describe(record)}")
        records[target, method, key] = record
        table.save(path, list(records.values()), NOTES)
    print(table.markdown(list(records.values()), NOTES))


def describe(record):
    """Put one record into a line."""
    if record["status"] != "ok":
        return record["status"]
    kl = "unknown" if record["kl"] is None else f"{record['kl']:.4f}"
    return (
        f"KL {kl}, ELBO {record['elbo']:.4f}, k-hat {record['khat']:.2f}, ESS {record['ess_fraction']:.3f}, "
        f"{record['seconds']:.0f} s"
    )


def progress(text):
    """Say where the run stands, apart from the table on standard output."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
