"""`bernflow reproduce`: run the paper's experiments and write what they found."""

import argparse
import os
from pathlib import Path

from benchmarks import results
from benchmarks.catalogue import EXPERIMENTS
from benchmarks.melanoma.plan import DTYPE_VARIABLE, FULL_VARIABLE, MODELS_VARIABLE
from benchmarks.melanoma.runs import DATA_VARIABLE
from benchmarks.study.runner import run_experiments
from bernflow import ArgumentError, BernflowError
from bernflow.cli import Command

ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments to run, or all; --list names them")
    parser.add_argument("--list", action="store_true", help="list the experiments and stop")
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", action="store_true", help="a run of minutes that keeps the message")
    scale.add_argument("--tiny", action="store_true", help="a run that only shows that everything works")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the results (default: results, or results-quick, results-tiny)",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="prepared pictures for melanoma (see `bernflow data melanoma --help`)"
    )
    parser.add_argument("--model", choices=("m1", "m2", "m3"), help="run this model of melanoma only")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="arithmetic of the melanoma network (default: bfloat16 on a GPU)",
    )
    parser.add_argument(
        "--all-pictures", action="store_true", help="train the melanoma networks in full also without a GPU (days)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of fits at once (default: 1)")
    parser.add_argument("--fresh", action="store_true", help="repeat what an earlier run has finished")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def run(options: argparse.Namespace) -> None:
    """Run the experiments; one that fails does not stop the others."""
    if options.list:
        width, durations = max(map(len, EXPERIMENTS)), results.durations()
        for experiment in EXPERIMENTS.values():
            gpu = ", needs a GPU" if experiment.name in results.ON_GPU else ""
            print(f"{experiment.name:<{width}}  {experiment.summary} ({durations[experiment.name]}{gpu})")
        return
    chosen = _chosen(options.names)
    if options.jobs < 1:
        raise ArgumentError(f"--jobs {options.jobs}: expected a whole number of at least 1.")
    if options.data is not None:
        os.environ[DATA_VARIABLE] = str(options.data.resolve())
    for variable, value in (
        (MODELS_VARIABLE, options.model),
        (DTYPE_VARIABLE, options.dtype),
        (FULL_VARIABLE, "1" if options.all_pictures else None),
    ):
        if value is not None:
            os.environ[variable] = value
    scale = "quick" if options.quick else "tiny" if options.tiny else "full"
    out = options.out or Path("results" if scale == "full" else f"results-{scale}")
    failed = []
    outcomes = run_experiments(chosen, scale, out, jobs=options.jobs, fresh=options.fresh, progress=not options.quiet)
    for outcome in outcomes:
        if outcome.error is None:
            print(f"{outcome.experiment.name}: {outcome.folder / 'index.html'}", flush=True)
        else:
            failed.append(outcome)
            print(f"{outcome.experiment.name}: {outcome.error}", flush=True)
    results.index(out)
    if failed:
        names = ", ".join(outcome.experiment.name for outcome in failed)
        raise BernflowError(f"not finished: {names}. Finished parts are kept; the same command continues from there.")


def _chosen(names: list[str]):
    if not names:
        raise ArgumentError(f"Name an experiment, or all: {', '.join(EXPERIMENTS)}.")
    unknown = [name for name in names if name not in EXPERIMENTS and name != ALL]
    if unknown:
        raise ArgumentError(f"There is no experiment {', '.join(unknown)}: expected all, or {', '.join(EXPERIMENTS)}.")
    return list(EXPERIMENTS.values()) if ALL in names else [EXPERIMENTS[name] for name in dict.fromkeys(names)]


COMMAND = Command(
    "reproduce",
    "run the paper's experiments",
    "Run experiments of the paper and write, for each, a folder with figures, tables, raw numbers and a page that "
    "compares our numbers with the paper's. The full settings are the paper's and take hours; --quick takes minutes. "
    "An interrupted run continues where it stopped.",
    add_arguments,
    run,
    """
examples:
  bernflow reproduce --list
  bernflow reproduce cauchy --quick
  bernflow reproduce all --jobs 2
""",
)
