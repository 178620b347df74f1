"""`bernflow report`: write a report of a run or a saved posterior."""

import argparse
from pathlib import Path

from bernflow.cli.command import Command
from bernflow.cli.printing import wrapped
from bernflow.report.material import gather
from bernflow.report.page import TITLE, write_page
from bernflow.runs.folder import load_any
from bernflow.runs.material import material_of_run
from bernflow.text import printable

NUM_DRAWS, KEY = 4000, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="folder written by `bernflow fit`, or a file written by post.save(path)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: the name of RUN and -report.html)"
    )
    parser.add_argument("--title", default=TITLE, help=f"heading of the page (default: {TITLE})")


def run(options: argparse.Namespace) -> None:
    """Write the report and print its path."""
    out = options.out or Path(f"{options.run.resolve().name.removesuffix('.bernflow')}-report.html")
    is_run = options.run.is_dir()
    material = material_of_run(options.run) if is_run else gather(load_any(options.run), NUM_DRAWS, KEY)
    write_page(material, out, options.title)
    print("\n".join(wrapped(material.diagnostics.status)))
    print(printable(f"Report: {out}"))


COMMAND = Command(
    name="report",
    summary="write a report of a run or a saved posterior",
    description=(
        "Write a self-contained HTML page with the verdict, advice, a table of the parameters, figures, settings and "
        "versions. `bernflow fit` writes such a page to its folder; this command makes one from the files of a run or "
        "from a saved posterior, without running the model: content that needs the model is omitted."
    ),
    add_arguments=add_arguments,
    run=run,
    epilog="""
examples:
  bernflow report schools
  bernflow report demo/posterior.bernflow --title "Eight schools"
""",
)
