"""`bernflow benchmark`: measure how good and how fast fits are, in comparison with other libraries."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.accuracy import page
from benchmarks.accuracy.cases import GROUPS, all_cases
from benchmarks.accuracy.methods import METHODS
from benchmarks.accuracy.suite import TIERS, TIME_LIMIT, Options, Suite
from benchmarks.adversarial import arguments as adversarial
from benchmarks.exactness import suite as exactness
from benchmarks.models import page as models_page
from benchmarks.models import suite as models
from benchmarks.models.catalogue import catalogue
from benchmarks.models.entry import GROUPS as MODEL_GROUPS
from benchmarks.models.methods import METHODS as MODEL_METHODS
from benchmarks.nuts import suite as nuts
from benchmarks.posteriordb import suite as posteriordb
from benchmarks.semistructured import suite as semistructured
from benchmarks.speed import page as speed_page
from benchmarks.speed import suite as speed
from benchmarks.speed.catalogue import PARTS
from benchmarks.stan import suite as stan
from benchmarks.stopping import suite as stopping
from benchmarks.study.records import Record
from benchmarks.study.writing import ensure_writable, printable
from bernflow.cli import Command


def _say(line: str) -> None:
    """Say where a run stands, apart from its result on standard output."""
    print(printable(line), file=sys.stderr, flush=True)


def _run_and_write(suite: Suite | speed.Suite | models.Suite, write: Callable[[list[Record]], Path]) -> None:
    """Measure what is missing, write the page, say where it is; an interrupted run has its page, too."""
    try:
        suite.run()
    finally:
        records = suite.sorted_records()
        if records:
            print(write(records))


def add_accuracy_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the accuracy suite."""
    parser.add_argument("--tier", choices=tuple(TIERS), default="full", help="how much is measured (default: full)")
    parser.add_argument(
        "--targets", nargs="+", metavar="NAME", help=f"targets, or groups of them: {', '.join(GROUPS)} (default: all)"
    )
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), metavar="NAME", help="methods (default: all)")
    parser.add_argument("--keys", type=int, metavar="N", help="number of random keys (default: 3, quick: 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of fits at once (default: 1)")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help=f"most that one measurement may take, the same for all methods (default: {TIME_LIMIT:g})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the results (default: results/accuracy, or results-quick/accuracy)",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of posteriordb: its data and draws")
    parser.add_argument("--fresh", action="store_true", help="repeat what an earlier run has finished")
    parser.add_argument("--list", action="store_true", help="list the targets and methods and stop")


def run_accuracy(options: argparse.Namespace) -> None:
    """Measure what is missing, write the page, say where it is."""
    if options.list:
        for name, case in all_cases(options.data).items():
            print(f"{case.group:<12} {name}")
        for name, method in METHODS.items():
            print(f"{'method':<12} {name:<24} {method.label}")
        return
    out = options.out or Path("results" if options.tier == "full" else f"results-{options.tier}", "accuracy")
    suite = Suite(
        Options(
            tier=options.tier,
            out=ensure_writable(out).resolve(),
            targets=options.targets,
            methods=options.methods,
            keys=options.keys,
            jobs=options.jobs,
            fresh=options.fresh,
            data=None if options.data is None else options.data.resolve(),
            time_limit=options.time_limit,
        ),
        say=_say,
    )
    tier = "" if options.tier == "full" else f" --tier {options.tier}"
    command = f"bernflow benchmark accuracy{tier}"
    _run_and_write(suite, lambda records: page.write(out, records, all_cases(options.data), command))


ACCURACY = Command(
    "accuracy",
    "every method on every posterior, against the truth",
    "Fit posteriors with bernflow and with other libraries, each with its defaults and with the same number of "
    "gradient evaluations, and judge them by KL, k-hat, effective sample size, and errors against exact or reference "
    "draws. Writes accuracy.json, README.md and a picture. Every fit has a process of its own. The full tier takes "
    "many hours; --tier quick under half an hour on two cores with --jobs 2. An interrupted run continues where it "
    "stopped.",
    add_accuracy_arguments,
    run_accuracy,
    """
examples:
  bernflow benchmark accuracy --list
  bernflow benchmark accuracy --tier quick --jobs 2
  bernflow benchmark accuracy --targets stress --methods bernflow --keys 1
""",
)


def add_speed_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the speed suite."""
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), metavar="PART", help=f"some of: {', '.join(PARTS)}")
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", action="store_const", const="quick", dest="scale", help="minutes instead of hours")
    scale.add_argument("--full", action="store_const", const="full", dest="scale", help="also 10^8 rows from a file")
    scale.add_argument("--tiny", action="store_const", const="tiny", dest="scale", help="only show that it works")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the results (default: results/speed, or results-quick/speed, results-tiny/speed)",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="how often every comparison is repeated (default: 3)")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="most that one measurement may take (default: 3600)",
    )
    parser.add_argument("--peak-flops", type=float, metavar="X", help="most operations per second of the device")
    parser.add_argument("--peak-bandwidth", type=float, metavar="X", help="most bytes per second of its memory")
    parser.add_argument("--fresh", action="store_true", help="repeat what an earlier run has finished")
    parser.add_argument("--list", action="store_true", help="list the parts and stop")


def run_speed(options: argparse.Namespace) -> None:
    """Measure what is missing, write the page, say where it is."""
    if options.list:
        for name, part in PARTS.items():
            print(f"{name:<10} {part.title}")
        return
    scale = options.scale or "normal"
    out = options.out or Path("results" if scale in ("normal", "full") else f"results-{scale}", "speed")
    suite = speed.Suite(
        speed.Options(
            scale=scale,
            out=ensure_writable(out).resolve(),
            parts=options.parts,
            fresh=options.fresh,
            rounds=options.rounds,
            time_limit=options.time_limit,
            peak_flops=options.peak_flops,
            peak_bandwidth=options.peak_bandwidth,
        ),
        say=_say,
    )
    command = f"bernflow benchmark speed{'' if scale == 'normal' else f' --{scale}'}"
    _run_and_write(suite, lambda records: speed_page.write(out, records, command))


SPEED = Command(
    "speed",
    "steps, wall time, compilation and growth, as ratios",
    "Compare the speed of bernflow with that of the paper's flow in TensorFlow Probability, NUTS and an inverse "
    "autoregressive flow, as ratios of times measured in the same run. Every measurement has its own process, one at "
    "a time, on the default device of JAX. Writes speed.json, README.md and a picture. Run it on an idle machine. An "
    "interrupted run continues where it stopped; an interrupted comparison starts over.",
    add_speed_arguments,
    run_speed,
    """
examples:
  bernflow benchmark speed --list
  bernflow benchmark speed --quick
  bernflow benchmark speed --parts steps wall --rounds 5
""",
)


def add_models_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the suite of hierarchical models."""
    groups = ", ".join(MODEL_GROUPS)
    parser.add_argument("--models", nargs="+", metavar="NAME", help=f"models, or groups: {groups} (default: all)")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=tuple(MODEL_METHODS),
        metavar="NAME",
        help="methods (default: all but bernflow-to-nuts)",
    )
    parser.add_argument("--references", action="store_true", help="first make the reference runs that are missing")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", default=Path("results", "models"), help="folder (default: results/models)"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the data of the real posteriors")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="time limit of one measurement (default: 3600); a reference may take three times as long",
    )
    parser.add_argument(
        "--warm-limit",
        type=float,
        default=models.WARM_LIMIT,
        metavar="SECONDS",
        help=f"repeat a fit warm if it took at most this long (default: {models.WARM_LIMIT:g})",
    )
    parser.add_argument("--fresh", action="store_true", help="repeat what an earlier run has finished")
    parser.add_argument("--list", action="store_true", help="list the models and methods and stop")


def run_models(options: argparse.Namespace) -> None:
    """Measure what is missing, write the page, print its path."""
    if options.list:
        for name, entry in catalogue(options.data).items():
            print(f"{entry.group:<12} {name:<26} p = {entry.dim}")
        for name, method in MODEL_METHODS.items():
            print(f"{'method':<12} {name:<26} {method.label}")
        return
    suite = models.Suite(
        models.Options(
            out=ensure_writable(options.out).resolve(),
            models=options.models,
            methods=options.methods,
            references=options.references,
            fresh=options.fresh,
            data=None if options.data is None else options.data.resolve(),
            time_limit=options.time_limit,
            warm_limit=options.warm_limit,
        ),
        say=_say,
    )
    command = "bernflow benchmark models"
    _run_and_write(suite, lambda records: models_page.write(options.out, records, suite.references, command))


MODELS = Command(
    "models",
    "hierarchical models compared with NUTS: seconds, gradients, errors",
    "Fit hierarchical models with the default fit, with the full-rank Gaussian and with NumPyro's NUTS, and compare "
    "wall time, gradients, and the errors of means and standard deviations against long NUTS runs. Every fit runs in "
    "its own process, one at a time. Writes models.json and README.md. Run it on an idle machine. An interrupted run "
    "continues where it stopped.",
    add_models_arguments,
    run_models,
    """
examples:
  bernflow benchmark models --list
  bernflow benchmark models --models rats poisson-lkj
  bernflow benchmark models --models real --references
""",
)


ADVERSARIAL = Command(
    "adversarial",
    "how often the verdict is wrong, on posteriors of known answer",
    "Fit posteriors of known answer whose mass lies where a fit may not look (wide parts around narrow ones, far "
    "modes, spikes, priors in conflict, switching labels, improper densities) with the defaults, and count fits "
    "that are wrong and called good, or right and called poor. Writes adversarial.json and README.md. An interrupted "
    "run continues where it stopped.",
    adversarial.add_arguments,
    adversarial.run,
    """
examples:
  bernflow benchmark adversarial --list
  bernflow benchmark adversarial --cases concentric "far mode"
  bernflow benchmark adversarial --jobs 16 --minutes 60
""",
)

# Every suite is a command inside of this one.
SUITES: tuple[Command, ...] = (
    ACCURACY,
    SPEED,
    MODELS,
    ADVERSARIAL,
    posteriordb.COMMAND,
    exactness.COMMAND,
    nuts.COMMAND,
    stopping.COMMAND,
    stan.COMMAND,
    semistructured.COMMAND,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the suites, each with its own arguments."""
    suites = parser.add_subparsers(title="suites", metavar="SUITE", required=True)
    for suite in SUITES:
        details = suites.add_parser(
            suite.name,
            help=suite.summary,
            description=suite.description,
            epilog=suite.epilog,
            allow_abbrev=False,
            formatter_class=parser.formatter_class,
        )
        suite.add_arguments(details)
        details.set_defaults(suite=suite)


def run(options: argparse.Namespace) -> int | None:
    """Run the chosen suite."""
    return options.suite.run(options)


COMMAND = Command(
    "benchmark",
    "compare accuracy and speed with other libraries",
    "Measure how good and how fast fits are, in comparison with other libraries. `bernflow benchmark SUITE "
    "--help` explains one.",
    add_arguments,
    run,
    """
examples:
  bernflow benchmark accuracy --tier quick
  bernflow benchmark speed --quick
""",
)
