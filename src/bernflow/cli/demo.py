"""`bernflow demo`: one hierarchical model from the data to a picture."""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import bernflow as bf
from benchmarks.targets import BENCHMARKS
from bernflow.cli.command import INTERRUPTED, OK, Command
from bernflow.cli.printing import figure_lines, table_lines, wrapped

SHOWN = ("mu", "tau", "theta")
NUM_DRAWS = 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for the results (default: demo)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument("--quiet", action="store_true", help="print only the verdict and the names of the files")


def run(options: argparse.Namespace) -> int:
    """Fit eight schools, print a summary, save the picture, the report and the posterior."""
    # A folder that cannot be made should fail now, not after the fit.
    options.out.mkdir(parents=True, exist_ok=True)
    benchmark = BENCHMARKS["eight-schools-noncentered"]
    if not options.quiet:
        print("Eight schools: effects of coaching on test scores, a hierarchical model.", flush=True)
    with warnings.catch_warnings():
        # The verdict is printed below, whatever it is.
        warnings.filterwarnings("ignore", message="bernflow: ", category=UserWarning)
        posterior = bf.fit(benchmark.model, *benchmark.args, key=options.seed, progress=not options.quiet)
    if not options.quiet:
        print("\n".join(_summary(posterior, benchmark.log_evidence)))
    print("\n".join(wrapped(posterior.diagnostics.status)))
    if not options.quiet:
        print()
    picture = options.out / "posterior.png"
    posterior.plot(var_names=SHOWN, num=NUM_DRAWS).savefig(picture, dpi=120)
    report = posterior.report(options.out / "report.html", title="Eight schools")
    saved = posterior.save(options.out / "posterior.bernflow")
    print(f"Picture:   {picture}\nReport:    {report}   (open it in a browser)")
    print(f"Posterior: {saved}   (read it with bernflow.load)")
    return INTERRUPTED if posterior.settings["interrupted"] else OK


def _summary(posterior: bf.Posterior, log_evidence: float | None) -> Iterator[str]:
    """Yield the table of the parameters and the figures of the fit."""
    table = posterior.summary(num=NUM_DRAWS)
    yield ""
    yield from table_lines([(str(name), row[:4]) for name, row in table.iterrows() if str(name).split("[")[0] in SHOWN])
    yield ""
    yield from figure_lines(posterior, log_evidence)
    yield ""


COMMAND = Command(
    name="demo",
    summary="fit a well-known model and draw its posterior",
    description=(
        "Fit eight schools (non-centered), print the posterior with k-hat, effective sample size, evidence and "
        "verdict, and save its picture, a report and the posterior to a folder."
    ),
    add_arguments=add_arguments,
    run=run,
    epilog="""
examples:
  bernflow demo
  bernflow demo --seed 1 --out other --quiet
""",
)
