"""Fit real posteriors with the defaults of `bf.fit` and compare means and standard deviations with reference draws."""

import argparse
import gc
import os
import sys
import time
import warnings
from pathlib import Path

import jax

import bernflow as bf
from benchmarks.posteriordb import table
from benchmarks.posteriordb.catalogue import FRONT_ENDS, POSTERIORS
from benchmarks.posteriordb.front_ends import build
from benchmarks.posteriordb.reference import find_folder, load_data, load_draws
from benchmarks.records import is_current, load, made_by
from bernflow.cli import Command
from bernflow.diagnostics.agreement import NUM_ERRORS, compare

RESULTS = Path(__file__).parent / "results"
NUM_DRAWS = 20_000
TOLERANCE = 0.02
NOTES = (
    "`bf.fit` with its defaults. k-hat, ESS fraction and verdict are those of the fit.",
    f"Errors of {NUM_DRAWS:,} draws against posteriordb's 10,000 reference draws, worst column, in units of the "
    "reference's standard deviation: draws of q as they are, and resampled by importance weights (weighted).",
    f"A column agrees if its mean and standard deviation are within {NUM_ERRORS:g} combined Monte Carlo standard "
    f"errors plus {TOLERANCE:g} sd; a posterior agrees if all its columns do; otherwise the columns that do not are "
    "named. Weighted draws are treated as independent, which they nearly are if the ESS fraction is above 0.25.",
    "Seconds of one fit with all compilation: wall time, then processor time. The machine was shared, so wall time "
    "is rough. The time to compile a Stan program is not included.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--front", choices=FRONT_ENDS, default="numpyro", help="front end (default: numpyro)")
    parser.add_argument(
        "--names", nargs="+", choices=list(POSTERIORS), metavar="NAME", help="posteriors (default: all)"
    )
    parser.add_argument("--key", type=int, default=0, metavar="N", help="random key of the fit (default: 0)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of posteriordb: its data and draws")
    parser.add_argument("--fresh", action="store_true", help="repeat what an earlier run has finished")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="folder (default: beside this suite)")


def run(entry, front, key, folder):
    """Fit one posterior and return what was measured, JSON-able."""
    reference = load_draws(entry, folder)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A poor verdict warns; it is in the record.
        model, args = build(entry, front, load_data(entry, folder))
        built, cpu = time.perf_counter(), time.process_time()
        post = bf.fit(model, *args, key=key, tolerance=0, progress=False)
    seconds, cpu_seconds = time.perf_counter() - built, time.process_time() - cpu
    found = post.diagnostics
    record = {
        "name": entry.name,
        "front": front,
        "key": key,
        "num_parameters": post.layout.dim,
        "khat": found.khat,
        "ess_fraction": found.ess_fraction,
        "elbo": found.elbo,
        "log_evidence": found.log_evidence,
        "verdict": found.verdict,
        "status": found.status,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "build_seconds": built - began,
        "settings": {k: v for k, v in post.settings.items() if isinstance(v, int | float | str | None)},
        "jax": jax.__version__,
        "load": os.getloadavg()[0],
    }
    for label, weighted in (("unweighted", False), ("weighted", True)):
        columns = entry.to_columns(post.draws(NUM_DRAWS, weighted=weighted))
        record[label] = table.describe(compare(columns, reference, TOLERANCE))
    return record


def run_suite(options: argparse.Namespace) -> None:
    """Run the fits one at a time, keep the results of others, print the table."""
    find_folder(options.data)
    path = options.out / "posteriordb.json"
    records = {table.identity(r): r for r in load(path)}
    names = options.names or [e.name for e in POSTERIORS.values() if options.front in e.front_ends]
    for count, name in enumerate(names, start=1):
        kept = records.get((options.front, name, options.key))
        if is_current(kept, __name__) and not options.fresh:
            continue
        progress(f"[{count}/{len(names)}] {name}, {options.front} ...")
        began = time.perf_counter()
        record = {**run(POSTERIORS[name], options.front, options.key, options.data), **made_by(__name__, began)}
        progress(f"    {table.line(record)}")
        records[table.identity(record)] = record
        table.save(path, list(records.values()), NOTES)
        jax.clear_caches()
        gc.collect()
    print(table.markdown(list(records.values()), NOTES))


def progress(text):
    """Say where the run stands, apart from the table on standard output."""
    print(text, file=sys.stderr, flush=True)


COMMAND = Command(
    "posteriordb",
    "posteriors of posteriordb by three front ends",
    "Fit posteriors of posteriordb with the defaults, and compare means and standard deviations with its reference "
    "draws. Writes posteriordb.json and posteriordb.md.",
    add_arguments,
    run_suite,
    """
examples:
  bernflow benchmark posteriordb
  bernflow benchmark posteriordb --front stan --names arK-arK
""",
)
