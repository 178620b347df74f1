"""The arguments of the suite, for `bernflow benchmark adversarial` and `python -m benchmarks.adversarial`."""

import argparse
import sys
from pathlib import Path

from benchmarks.adversarial import page
from benchmarks.adversarial.catalogue import CASES, FAMILIES
from benchmarks.adversarial.suite import Options, Suite
from benchmarks.study.writing import ensure_writable, printable

COMMAND = "bernflow benchmark adversarial"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    families = ", ".join(FAMILIES)
    parser.add_argument("--cases", nargs="+", metavar="NAME", help=f"posteriors, or families: {families}")
    parser.add_argument(
        "--keys", type=int, metavar="N", help="number of random keys (default: 3; 1 in families of many posteriors)"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="number of processes, with one thread each (default: 1)"
    )
    parser.add_argument("--minutes", type=float, metavar="X", help="begin no fit later than that (default: no limit)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("results", "adversarial"),
        help="folder (default: results/adversarial)",
    )
    parser.add_argument("--fresh", action="store_true", help="repeat what an earlier run has finished")
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="DIR",
        default=(),
        help="take over the results of runs in other folders; the last one counts where several have a fit",
    )
    parser.add_argument("--list", action="store_true", help="list the posteriors and stop")


def run(options: argparse.Namespace) -> None:
    """Fit what is missing, write the page, print its path; an interrupted run has its page, too."""
    if options.list:
        for case in CASES.values():
            print(f"{case.family:<26} {case.name}")
        return
    out = ensure_writable(options.out).resolve()
    merge = tuple(options.merge)
    chosen = Options(out, options.cases, options.keys, options.jobs, options.minutes, options.fresh, merge)
    suite = Suite(chosen, say=lambda line: print(printable(line), file=sys.stderr, flush=True))
    try:
        suite.run()
    finally:
        if suite.records:
            print(page.write(out, suite.sorted_records(), COMMAND))
