"""`bernflow summary`: print the table and the verdict of a run or a saved posterior."""

import argparse
from pathlib import Path

from bernflow.cli.command import Command
from bernflow.cli.printing import figure_lines, wrapped
from bernflow.runs.folder import load_any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="folder written by `bernflow fit`, or a file written by post.save(path)",
    )
    parser.add_argument(
        "--var",
        action="append",
        metavar="NAME",
        help="show only this quantity, or ~NAME to exclude it; may be given several times",
    )
    parser.add_argument(
        "--filter",
        choices=("like", "regex"),
        help="interpret NAME as part of a name, or as a regular expression (default: the whole name)",
    )


def run(options: argparse.Namespace) -> None:
    """Print the table, the statistics and the verdict."""
    posterior = load_any(options.run)
    print(posterior.summary(options.var, options.filter).to_string())
    print()
    print("\n".join(figure_lines(posterior)))
    print()
    print("\n".join(wrapped(posterior.diagnostics.status)))


COMMAND = Command(
    name="summary",
    summary="print the table of a run or a saved posterior",
    description=(
        "Print mean, standard deviation, 90 % interval and Monte Carlo errors of every parameter and derived quantity, "
        "with the statistics of the fit and its verdict, from the files only: the model is not run."
    ),
    add_arguments=add_arguments,
    run=run,
    epilog="""
examples:
  bernflow summary schools
  bernflow summary demo/posterior.bernflow --var mu --var tau
""",
)
