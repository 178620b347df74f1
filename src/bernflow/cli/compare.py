"""`bernflow compare`: compare runs or saved posteriors."""

import argparse
from pathlib import Path

import bernflow as bf
from bernflow.cli.command import Command
from bernflow.runs.folder import load_any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="at least two folders written by `bernflow fit`, or files written by post.save(path); the others are "
        "compared with the first",
    )


def run(options: argparse.Namespace) -> None:
    """Print the comparison."""
    if len(options.runs) < 2:
        options.parser.error(f"compare got one run, {options.runs[0]}: expected at least two.")
    names = [str(path) for path in options.runs]
    if len(set(names)) < len(names):
        options.parser.error(f"compare got the same run twice ({', '.join(names)}): expected different ones.")
    posteriors = {name: load_any(path) for name, path in zip(names, options.runs, strict=True)}
    shapes = [{site.name: site.shape for site in post.layout.sites} for post in posteriors.values()]
    shared = [name for name, shape in shapes[0].items() if all(other.get(name) == shape for other in shapes)]
    print(bf.compare(posteriors, var_names=shared))
    different = sorted({name for own in shapes for name in own} - set(shared))
    if different:
        print(f"Not compared, because not all have them with the same shape: {', '.join(different)}.")


COMMAND = Command(
    name="compare",
    summary="compare runs or saved posteriors",
    description=(
        "Compare two or more posteriors from their files: verdicts and log evidence side by side, and the means and "
        "standard deviations of common parameters, with Monte Carlo errors, against the first."
    ),
    add_arguments=add_arguments,
    run=run,
    epilog="""
examples:
  bernflow compare schools schools-pooled
  bernflow compare demo/posterior.bernflow schools
""",
)
