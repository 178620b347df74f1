"""`bernflow report`: a page about a run or a saved posterior."""

import argparse
from pathlib import Path

import bernflow as bf
from bernflow.cli.command import Command
from bernflow.cli.printing import wrapped
from bernflow.errors import ArgumentError, FileFormatError, ModelError
from bernflow.report.material import Material, gather
from bernflow.report.page import TITLE, write_page
from bernflow.runs.material import material_of_run

NUM_DRAWS, KEY = 4000, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="folder that `bernflow fit` has written, or a file that post.save(path) has written",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page to write (default: the name of RUN and -report.html)"
    )
    parser.add_argument("--title", default=TITLE, help=f"heading of the page (default: {TITLE})")


def run(options: argparse.Namespace) -> None:
    """Write the page, and say where it is."""
    if not options.run.exists():
        raise ArgumentError(
            f"{options.run} does not exist: expected the folder of a run of bernflow fit, or a saved posterior."
        )
    out = options.out or Path(f"{options.run.resolve().name.removesuffix('.bernflow')}-report.html")
    material = material_of_run(options.run) if options.run.is_dir() else _material_of_file(options.run)
    write_page(material, out, options.title)
    print("\n".join(wrapped(material.diagnostics.status)))
    print(f"Report: {out}")


def _material_of_file(path: Path) -> Material:
    try:
        posterior = bf.load(path)
    except ModelError as error:
        raise FileFormatError(
            f"{path} cannot be used without its model ({error}) Make the report from the folder of its run, or in "
            "Python: bf.load(path, model=...).report()."
        ) from error
    return gather(posterior, NUM_DRAWS, KEY)


COMMAND = Command(
    name="report",
    summary="write a page about a run or a saved posterior",
    description=(
        "Write one HTML page, which needs no network, with the verdict in words, what to do next, a table of the "
        "parameters, pictures, settings and versions. `bernflow fit` writes such a page into its folder; this command "
        "makes one from the files of a run or from a saved posterior, without running the model: what only the model "
        "knows is left out."
    ),
    add_arguments=add_arguments,
    run=run,
    epilog="""
examples:
  bernflow report schools
  bernflow report demo/posterior.bernflow --title "Eight schools"
""",
)
